//! The management lease of several replicas: who holds it where, and waiting out one whose holder is gone.
//!
//! One replica manages the fleet under a lease in the store that they share; it renews it, and the others take it over once
//! it has run out. `expires_in_s` is what the holder wrote, so it is never longer than the holder's own TTL.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::broad::held_back;
use super::{Done, Executor};
use crate::hangar::{HangarClient, Lease, System};
use crate::policy::{Outcome, Receipt};

const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// A lease that lasts longer is not waited out.
const WAIT_MAX: SignedDuration = SignedDuration::from_mins(5);
/// Replicas read their store's clock with their own: a lease that ends this much later was renewed.
const RENEWED: f64 = 1.0;
const LEASES: &str = "management_leases";

/// One replica, and what it says.
struct Replica {
    name: String,
    told: Result<System, String>,
}

/// All of them together.
#[derive(Debug, Clone, PartialEq)]
enum Stands {
    /// Somebody manages the fleet: nothing is stale.
    Managed(String),
    /// Nobody who answers manages, and the lease has not run out yet.
    RunsOut(Lease),
    /// Nobody manages, and the lease that was told has run out.
    RanOut(Lease),
    /// Every replica was asked: none manages, and none knows of a lease.
    Free,
    /// Whoever could not be asked may hold it.
    Unknown,
}

fn stands(replicas: &[Replica], unlisted: usize) -> Stands {
    let answers = || replicas.iter().filter_map(|r| Some((r, r.told.as_ref().ok()?)));
    if let Some((replica, _)) = answers().find(|(_, system)| system.manages_fleet == Some(true)) {
        return Stands::Managed(replica.name.clone());
    }
    let newest = answers().filter_map(|(_, system)| system.lease.clone()).max_by_key(|lease| (lease.generation, lease.expires_in));
    match newest {
        Some(lease) if lease.expires_in.is_positive() => Stands::RunsOut(lease),
        Some(lease) => Stands::RanOut(lease),
        None if unlisted == 0 && replicas.iter().all(|r| r.told.is_ok()) => Stands::Free,
        None => Stands::Unknown,
    }
}

/// The holder's own TTL, where it can be asked; else that of those that wait for it, or what is left, if that is more.
fn ttl(replicas: &[Replica], lease: &Lease) -> SignedDuration {
    let answers = || replicas.iter().filter_map(|r| r.told.as_ref().ok());
    let holder = answers().find(|system| system.instance_id.as_deref() == Some(lease.holder.as_str()));
    let others = answers().filter_map(|system| system.lease.as_ref()).map(|lease| lease.own_ttl).max();
    holder.and_then(|system| Some(system.lease.as_ref()?.own_ttl)).unwrap_or_else(|| others.unwrap_or_default().max(lease.expires_in))
}

impl Executor {
    /// Who holds the lease where, as evidence; nothing where there is one replica.
    pub(super) async fn leases_told(&self) -> BTreeMap<String, Value> {
        if self.broad.others == 0 {
            return BTreeMap::new();
        }
        self.told(&self.replicas().await)
    }

    /// Rung 4 of a server that is in no group. Sends nothing: once the lease is over the start is the second half.
    pub(super) async fn wait_out_lease(&self) -> Done {
        let begun = Instant::now();
        let replicas = self.replicas().await;
        let unlisted = self.unlisted();
        let mut done = match stands(&replicas, unlisted) {
            Stands::Managed(by) => {
                let detail = format!("no management lease is stale: {by} manages the fleet; nothing sent");
                Done::new(Receipt::Refused, Some(Outcome::NotApplicable), detail)
            }
            Stands::Unknown => held_back("who holds the management lease is unknown: a replica that may hold it could not be asked"),
            Stands::Free => half("no replica holds the management lease".to_owned()),
            Stands::RanOut(lease) => half(format!("the management lease of {} has run out", lease.holder)),
            Stands::RunsOut(lease) => return self.wait_for(begun, &replicas, &lease).await,
        };
        done.evidence.extend(self.told(&replicas));
        done
    }

    /// Waits no longer than the holder's TTL.
    async fn wait_for(&self, begun: Instant, replicas: &[Replica], lease: &Lease) -> Done {
        let ttl = ttl(replicas, lease);
        if ttl > WAIT_MAX {
            let mut done = held_back(format!("the management lease of {} lasts up to {ttl:#}: not waited for", lease.holder));
            done.evidence.extend(self.told(replicas));
            return done;
        }
        let ends = |since: Instant, lease: &Lease| since.elapsed().as_secs_f64() + lease.expires_in.as_secs_f64();
        let (deadline, expected) = (begun + Duration::try_from(ttl).unwrap_or_default(), ends(begun, lease));
        loop {
            tokio::time::sleep_until(deadline.min(Instant::now() + LOOK_AGAIN)).await;
            let replicas = self.replicas().await;
            let over = Instant::now() >= deadline;
            let holder = &lease.holder;
            let done = match stands(&replicas, self.unlisted()) {
                Stands::Managed(by) => half(format!("the management lease of {holder} is over: {by} manages the fleet now")),
                Stands::RunsOut(now) if now.generation > lease.generation || ends(begun, &now) > expected + RENEWED => {
                    let by = &now.holder;
                    let detail = format!("no management lease is stale: {by}, which could not be asked, goes on renewing it; nothing sent");
                    Done::new(Receipt::Refused, Some(Outcome::NotApplicable), detail)
                }
                Stands::RunsOut(_) | Stands::RanOut(_) | Stands::Free | Stands::Unknown if !over => continue,
                Stands::RanOut(_) | Stands::Free => half(format!("the management lease of {holder} has run out")),
                Stands::RunsOut(_) => held_back(format!("the management lease of {holder} is still not over after its TTL of {ttl:#}")),
                Stands::Unknown => held_back("who holds the management lease is unknown: a replica that may hold it could not be asked"),
            };
            let mut done = done;
            done.evidence.extend(self.told(&replicas));
            done.evidence.insert("management_lease_before".to_owned(), json!({"holder": holder, "generation": lease.generation}));
            done.evidence.insert("waited_s".to_owned(), Value::from(begun.elapsed().as_secs()));
            return done;
        }
    }

    fn unlisted(&self) -> usize {
        self.broad.others.saturating_sub(self.broad.peers.len())
    }

    /// All at once; each call has its own bound.
    async fn replicas(&self) -> Vec<Replica> {
        let ask = async |name: &str, client: &HangarClient| {
            let told = client.system().await.map_err(|error| error.to_string());
            Replica { name: name.to_owned(), told }
        };
        let own = ask(&self.broad.instance, &self.hangar);
        let peers = join_all(self.broad.peers.iter().map(|peer| ask(&peer.name, &peer.client)));
        let (own, peers) = tokio::join!(own, peers);
        [own].into_iter().chain(peers).collect()
    }

    fn told(&self, replicas: &[Replica]) -> BTreeMap<String, Value> {
        let each = |replica: &Replica| match &replica.told {
            Err(why) => json!({"replica": replica.name, "unknown": why}),
            Ok(System { manages_fleet, lease, instance_id, .. }) => json!({
                "replica": replica.name,
                "instance_id": instance_id,
                "manages_fleet": manages_fleet,
                "holder": lease.as_ref().map(|l| &l.holder),
                "generation": lease.as_ref().map(|l| l.generation),
                "expires_in_s": lease.as_ref().map(|l| l.expires_in.as_secs_f64()),
                "ttl_s": lease.as_ref().map(|l| l.own_ttl.as_secs_f64()),
            }),
        };
        let mut told = BTreeMap::from([(LEASES.to_owned(), Value::Array(replicas.iter().map(each).collect()))]);
        if self.unlisted() > 0 {
            told.insert("replicas_not_listed".to_owned(), Value::from(self.unlisted()));
        }
        told
    }
}

fn half(detail: String) -> Done {
    Done { half: true, ..Done::new(Receipt::Accepted, None, detail) }
}
