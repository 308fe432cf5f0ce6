//! What is looked at before a store is used.

use super::super::chain::{Fault, FaultKind};
use super::super::driver::{Link, all, args, first};
use super::super::error::Place;
use super::super::migrate::{NEWEST, VERSION};
use super::super::{Head, LogError, sql};
use super::read::{head_of, int, number, row, text};

/// The end of the chain must be what it was when it was last written: a lost end may have held an attempt under way.
pub(in super::super) async fn check_end<L: Link>(
    link: &mut L,
    place: &Place,
    instance: &str,
    remembered: Option<Head>,
) -> Result<(), LogError> {
    let reading = |e| LogError::reading(place, e);
    let broken =
        |seq, kind, detail: &str| Err(LogError::Broken { place: place.clone(), fault: Fault { seq, kind, detail: detail.to_owned() } });
    let head = head_of(link, instance).await.map_err(reading)?;
    let last = first(link, sql::LAST, args![instance]).await.map_err(reading)?.map(|r| row(&r));
    match (&head, &last) {
        (None, None) => {}
        (Some(head), Some(last)) if head.seq == last.seq && head.hash == last.hash => {
            if !last.is_intact() {
                return Err(LogError::Broken { place: place.clone(), fault: last.altered() });
            }
        }
        (Some(head), _) if last.as_ref().is_none_or(|last| last.seq < head.seq) => {
            return broken(last.map_or(1, |l| l.seq + 1), FaultKind::Missing, "the log once reached further");
        }
        (_, last) => return broken(last.as_ref().map_or(1, |l| l.seq), FaultKind::Altered, "it is not the record that was last written"),
    }
    let Some(remembered) = remembered else { return Ok(()) };
    let reached = head.map_or(0, |h| h.seq);
    if remembered.seq > reached {
        let detail = "medic.head remembers a later record: was medic.db-wal deleted, or an older copy restored? Remove medic.head to go on without what is lost";
        return broken(reached + 1, FaultKind::Missing, detail);
    }
    let found = first(link, sql::HASH_AT, args![instance, int(remembered.seq)]).await.map_err(reading)?;
    match found {
        Some(row) if text(&row, 0) != remembered.hash => {
            broken(remembered.seq, FaultKind::Altered, "medic.head remembers another record; remove medic.head if this is wanted")
        }
        _ => Ok(()),
    }
}

/// The version of tables that are ours; a newer one is refused.
pub(in super::super) async fn version<L: Link>(link: &mut L, place: &Place) -> Result<i64, LogError> {
    let version = number(link, VERSION, args![]).await.map_err(|e| LogError::reading(place, e))?.unwrap_or_default();
    if version > NEWEST { Err(LogError::Newer { place: place.clone(), version }) } else { Ok(version) }
}

/// Whose chain is to be read, in tables that must be up to date.
pub(in super::super) async fn readable<L: Link>(link: &mut L, place: &Place, instance: Option<&str>) -> Result<String, LogError> {
    if version(link, place).await? < NEWEST {
        return Err(LogError::Older { place: place.clone() });
    }
    whose(link, place, instance).await
}

/// The instance that is named, or the only one there is.
pub(in super::super) async fn whose<L: Link>(link: &mut L, place: &Place, instance: Option<&str>) -> Result<String, LogError> {
    if let Some(instance) = instance {
        return Ok(instance.to_owned());
    }
    let found = all(link, sql::INSTANCES, args![]).await.map_err(|e| LogError::reading(place, e))?;
    let mut instances: Vec<String> = found.iter().map(|row| text(row, 0)).collect();
    match instances.len() {
        0 => Ok(String::new()),
        1 => Ok(instances.remove(0)),
        _ => Err(LogError::WhichInstance { place: place.clone(), instances }),
    }
}
