//! Sources that give different reasons for one death: told once each, counted, and shown.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::metrics::Metrics;
use crate::policy::{History, Provenance, Reason, Snapshot, Source, disagree, told};

/// What one source says, and where.
pub type Said = Vec<(Reason, Provenance)>;

/// Sources hear of one death at different moments; only what lasts is a disagreement.
const LASTS: SignedDuration = SignedDuration::from_secs(2);

/// The disagreements that stand.
#[derive(Debug, Default)]
pub struct Disagreements {
    standing: BTreeMap<String, Standing>,
}

#[derive(Debug)]
struct Standing {
    since: Timestamp,
    who: Vec<(Source, Reason)>,
    counted: bool,
    said: Said,
}

impl Disagreements {
    /// Looks at every open incident. Returns when to look again, if something does not last long enough yet.
    pub fn look(&mut self, snapshot: &Snapshot, history: &History, metrics: &Metrics, now: Timestamp) -> Option<Timestamp> {
        let mut standing = BTreeMap::new();
        for id in history.open.keys() {
            let said = snapshot.servers.get(id).map(|server| told(server, now)).unwrap_or_default();
            if !disagree(&said) {
                continue;
            }
            let who: Vec<(Source, Reason)> = said.iter().map(|(reason, provenance)| (provenance.source, *reason)).collect();
            let before = self.standing.remove(id).filter(|b| b.who == who);
            let (since, counted) = before.map_or((now, false), |b| (b.since, b.counted));
            let due = now.duration_since(since) >= LASTS;
            if due && !counted {
                metrics.classification_disagreed();
                let words: Vec<String> = who.iter().map(|(source, reason)| format!("{source} {reason}")).collect();
                tracing::warn!(event = "sources_disagree", mcp_server = %id, said = words.join(", "), "the stricter reason is acted on");
            }
            standing.insert(id.clone(), Standing { since, who, counted: counted || due, said });
        }
        self.standing = standing;
        let next = self.standing.values().filter(|s| !s.counted).filter_map(|s| s.since.checked_add(LASTS).ok());
        next.min()
    }

    /// What each source says, for every incident of which they disagree.
    #[must_use]
    pub fn shown(&self) -> BTreeMap<String, Said> {
        self.standing.iter().filter(|(_, s)| s.counted).map(|(id, s)| (id.clone(), s.said.clone())).collect()
    }
}
