//! The check of the whole chain, and its export.

use std::collections::BTreeMap;
use std::io::Write;

use futures_util::TryStreamExt;
use jiff::Timestamp;

use super::super::chain::{self, FaultKind, Stored, Verifier};
use super::super::derive::Derived;
use super::super::driver::{Columns, Driver, Link, all, args};
use super::super::{LogError, Progress, VerifyReport, sql};
use super::Tables;
use super::read::{head_of, int, number, row, text};
use super::write::{RESTART_TOPIC, grant_topic, hold_topic, pause_topic, request_topic};

/// Records between two reports of progress.
const PROGRESS_EVERY: u64 = 10_000;

impl<D: Driver> Tables<D> {
    pub(super) async fn check_chain(&self, progress: &mut (dyn FnMut(Progress) + Send)) -> Result<VerifyReport, LogError> {
        // Before the snapshot, so that it is never ahead of it.
        let remembered = self.driver.remembered(&self.instance);
        let mut verifier = Verifier::new(&self.instance);
        let mut tx = match self.snapshot().await {
            Ok(tx) => tx,
            Err(LogError::Damaged { what, .. }) => {
                verifier.fail(1, FaultKind::Unreadable, what);
                return Ok(verifier.finish(remembered.as_ref()));
            }
            Err(error) => return Err(error),
        };
        let mut index = Index::default();
        // Damage may hide the head too; the records themselves are what counts.
        let head = head_of(&mut *tx, &self.instance).await.unwrap_or_default();
        let first = number(&mut *tx, sql::FIRST_SEQ, args![&self.instance]).await.unwrap_or_default();
        let total = head.as_ref().map_or(0, |h| h.seq + 1 - u64::try_from(first.unwrap_or(1)).unwrap_or(1).min(h.seq));
        let mut done = 0;
        {
            let mut rows = tx.rows(sql::RECORDS_DERIVED, args![&self.instance]);
            loop {
                let row = match rows.try_next().await {
                    Ok(Some(row)) => row,
                    Ok(None) => break,
                    Err(error) => {
                        let error = LogError::reading(self.driver.place(), error);
                        let LogError::Damaged { what, .. } = error else { return Err(error) };
                        verifier.fail(verifier.expected().max(1), FaultKind::Unreadable, what);
                        break;
                    }
                };
                let stored = self::row(&row);
                if !verifier.push(&stored) {
                    break;
                }
                index.see(&stored, &row);
                done += 1;
                if done % PROGRESS_EVERY == 0 {
                    progress(Progress { done, total });
                }
            }
        }
        progress(Progress { done, total });
        // The later of the two: each may have been left behind.
        let known = [head, remembered].into_iter().flatten().max_by_key(|h| h.seq);
        let mut report = verifier.finish(known.as_ref());
        if report.fault.is_none() {
            report.index_fault = index.compare(&mut *tx, &self.instance).await.map_err(self.reading())?;
        }
        Ok(report)
    }

    pub(super) async fn write_export(&self, out: &mut (dyn Write + Send)) -> Result<u64, LogError> {
        let mut snapshot = self.snapshot().await?;
        let mut rows = snapshot.rows(sql::RECORDS, args![&self.instance]);
        let mut lines = 0;
        while let Some(row) = rows.try_next().await.map_err(self.reading())? {
            let stored = self::row(&row);
            let Some(line) = chain::export_line(&stored) else {
                return Err(LogError::Broken { place: self.driver.place().clone(), fault: stored.altered() });
            };
            writeln!(out, "{line}").map_err(LogError::Export)?;
            lines += 1;
        }
        out.flush().map_err(LogError::Export)?;
        Ok(lines)
    }
}

/// What the index must say, gathered from the chain: bounded by the number of servers.
#[derive(Debug, Default)]
struct Index {
    /// Open incidents by server.
    open: BTreeMap<String, (String, u64)>,
    standing: BTreeMap<String, u64>,
    fault: Option<String>,
}

impl Index {
    fn see(&mut self, stored: &Stored, row: &impl Columns) {
        let derived = Derived::of(&stored.body);
        let at_us = stored.at.parse().map_or(0, Timestamp::as_microsecond);
        let as_found = (row.int(7).unwrap_or(0), text(row, 8), row.text(9), row.text(10));
        if as_found != (at_us, derived.kind.clone(), derived.incident_id.clone(), derived.mcp_server.clone()) {
            self.fault.get_or_insert_with(|| format!("record {} is indexed as what it is not", stored.seq));
        }
        let paused = derived.mcp_server.clone();
        let server = derived.mcp_server.unwrap_or_default();
        match derived.kind.as_str() {
            "incident_opened" => {
                self.open.insert(server, (derived.incident_id.unwrap_or_default(), stored.seq));
            }
            "incident_closed" => self.open.retain(|_, (id, _)| Some(&*id) != derived.incident_id.as_ref()),
            "hold_ordered" => {
                self.standing.insert(hold_topic(&server), stored.seq);
            }
            "hold_released" => {
                self.standing.remove(&hold_topic(&server));
            }
            "paused" => {
                self.standing.insert(pause_topic(paused.as_deref()), stored.seq);
            }
            "unpaused" => {
                self.standing.remove(&pause_topic(paused.as_deref()));
            }
            "granted" => {
                self.standing.insert(grant_topic(&derived.grant_id), stored.seq);
            }
            "grant_used" | "grant_expired" => {
                self.standing.remove(&grant_topic(&derived.grant_id));
            }
            "request" if derived.acts => {
                self.standing.insert(request_topic(&derived.request_id), stored.seq);
            }
            "request_ended" => {
                self.standing.remove(&request_topic(&derived.request_id));
            }
            "hangar_restarted" => {
                self.standing.insert(RESTART_TOPIC.to_owned(), stored.seq);
            }
            _ => {}
        }
    }

    async fn compare<L: Link>(mut self, link: &mut L, instance: &str) -> Result<Option<String>, sqlx::Error> {
        let open = all(link, sql::INDEX_OPEN, args![instance]).await?;
        let open: BTreeMap<_, _> = open.iter().map(|row| (text(row, 0), (text(row, 1), row.int(2).unwrap_or(0)))).collect();
        let expected: BTreeMap<_, _> = std::mem::take(&mut self.open).into_iter().map(|(s, (id, seq))| (s, (id, int(seq)))).collect();
        let standing = all(link, sql::INDEX_STANDING, args![instance]).await?;
        let standing: BTreeMap<_, _> = standing.iter().map(|row| (text(row, 0), row.int(1).unwrap_or(0))).collect();
        let expected_standing: BTreeMap<_, _> = self.standing.into_iter().map(|(topic, seq)| (topic, int(seq))).collect();
        let fault = self.fault;
        let fault = fault.or_else(|| (open != expected).then(|| "its open incidents are not those of the chain".to_owned()));
        Ok(fault.or_else(|| (standing != expected_standing).then(|| "its hold orders are not those of the chain".to_owned())))
    }
}
