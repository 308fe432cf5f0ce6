//! The statements that both databases understand. `$1` is always the instance.
//!
//! CROSS JOIN, with the few rows first: SQLite keeps that order, and without statistics of its own it guesses a worse one.

pub(super) const COMMIT: &str = "COMMIT";
pub(super) const ROLLBACK: &str = "ROLLBACK";

/// Columns of a stored record, in the order that `tables::row` reads them.
pub(super) const RECORDS: &str = "SELECT seq, at, actor, body, prev_hash, hash, instance FROM records WHERE instance = $1 ORDER BY seq";

/// The same with the derived columns behind them, for `verify`.
pub(super) const RECORDS_DERIVED: &str = "SELECT seq, at, actor, body, prev_hash, hash, instance, at_us, kind, incident_id, mcp_server FROM records WHERE instance = $1 ORDER BY seq";

pub(super) const LAST: &str =
    "SELECT seq, at, actor, body, prev_hash, hash, instance FROM records WHERE instance = $1 ORDER BY seq DESC LIMIT 1";

pub(super) const INSERT: &str = "INSERT INTO records (instance, seq, at, actor, body, prev_hash, hash, at_us, kind, incident_id, mcp_server) \
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

pub(super) const HEAD: &str = "SELECT seq, hash FROM heads WHERE instance = $1";
pub(super) const HEAD_SET: &str = "INSERT INTO heads (instance, seq, hash) VALUES ($1, $2, $3) \
     ON CONFLICT (instance) DO UPDATE SET seq = excluded.seq, hash = excluded.hash";
pub(super) const INSTANCES: &str = "SELECT instance FROM heads ORDER BY instance";

/// `$2` = start of the longest window, `$3` = start of the storm window, `$4` = its length, all in µs.
///
/// Whole incidents: the open ones and those with any record in the window. Besides: what stands, and the two ends of every
/// incident that the storm brake looks at, and of those that went on with one of these. In chain order, folding these and pruning gives what folding all and pruning gives.
pub(super) const HISTORY: &str = "WITH lately AS (SELECT seq, incident_id FROM records WHERE instance = $1 AND at_us >= $2), \
     whole AS (SELECT incident_id FROM lately WHERE incident_id IS NOT NULL \
               UNION SELECT incident_id FROM incidents WHERE instance = $1 AND ended_seq IS NULL), \
     recent AS (SELECT incident_id, opened_seq, ended_seq FROM incidents WHERE instance = $1 AND opened_us >= $3 \
                UNION SELECT n.incident_id, n.opened_seq, n.ended_seq FROM incidents o CROSS JOIN incidents n \
                WHERE o.instance = $1 AND o.ended_seq IS NULL AND n.instance = $1 AND n.opened_us BETWEEN o.opened_us - $4 AND o.opened_us + $4), \
     ends AS (SELECT opened_seq, ended_seq FROM recent \
              UNION SELECT n.opened_seq, n.ended_seq FROM recent p CROSS JOIN incidents n WHERE n.instance = $1 AND n.reopens = p.incident_id), \
     wanted AS (SELECT seq FROM lately \
                UNION SELECT r.seq FROM whole w CROSS JOIN records r WHERE r.instance = $1 AND r.incident_id = w.incident_id \
                UNION SELECT seq FROM standing WHERE instance = $1 \
                UNION SELECT opened_seq FROM ends \
                UNION SELECT ended_seq FROM ends WHERE ended_seq IS NOT NULL) \
     SELECT r.seq, r.at, r.actor, r.body, r.prev_hash, r.hash, r.instance \
     FROM wanted w CROSS JOIN records r WHERE r.instance = $1 AND r.seq = w.seq ORDER BY r.seq";

/// The records of some incidents, those of each together and in order, oldest incident first.
macro_rules! of_incidents {
    ($ids:literal) => {
        concat!(
            "WITH ids AS (",
            $ids,
            ") SELECT r.seq, r.at, r.actor, r.body, r.prev_hash, r.hash, r.instance, r.incident_id \
             FROM ids i CROSS JOIN records r WHERE r.instance = $1 AND r.incident_id = i.incident_id ORDER BY i.opened_seq, r.seq"
        )
    };
}

// The newest; `$2` = limit.
pub(super) const INCIDENTS_ALL: &str =
    of_incidents!("SELECT incident_id, opened_seq FROM incidents WHERE instance = $1 ORDER BY opened_seq DESC LIMIT $2");
pub(super) const INCIDENTS_OPEN: &str = of_incidents!(
    "SELECT incident_id, opened_seq FROM incidents WHERE instance = $1 AND ended_seq IS NULL ORDER BY opened_seq DESC LIMIT $2"
);
pub(super) const INCIDENTS_CLOSED: &str = of_incidents!(
    "SELECT incident_id, opened_seq FROM incidents WHERE instance = $1 AND how IS NOT NULL ORDER BY opened_seq DESC LIMIT $2"
);
pub(super) const INCIDENTS_OF_ATTEMPTS: &str = of_incidents!(
    "SELECT incident_id, MIN(opened_seq) AS opened_seq FROM \
     (SELECT incident_id, opened_seq FROM attempts WHERE instance = $1 ORDER BY opened_seq DESC LIMIT $2) AS newest GROUP BY incident_id"
);
/// `$2` = incident.
pub(super) const INCIDENT: &str = of_incidents!("SELECT incident_id, opened_seq FROM incidents WHERE instance = $1 AND incident_id = $2");

/// Newest first; `$2` = limit.
pub(super) const ATTEMPT_IDS: &str = "SELECT attempt_id FROM attempts WHERE instance = $1 ORDER BY opened_seq DESC LIMIT $2";

pub(super) const COUNT_SETTLED: &str =
    "SELECT action, outcome, count(*) FROM attempts WHERE instance = $1 AND outcome IS NOT NULL GROUP BY action, outcome";
pub(super) const COUNT_RECOVERIES: &str = "SELECT action, reason, count(*) FROM attempts WHERE instance = $1 AND outcome = 'recovered' AND reason IS NOT NULL GROUP BY action, reason";
pub(super) const COUNT_INCIDENTS: &str = "SELECT reason, how, count(*) FROM incidents WHERE instance = $1 GROUP BY reason, how";

// The index, in the order of the chain.

/// A server has one open incident: a new one takes the place of one that was never closed, as in `History`.
pub(super) const INCIDENT_REPLACED: &str =
    "UPDATE incidents SET ended_seq = $3 WHERE instance = $1 AND mcp_server = $2 AND ended_seq IS NULL";
pub(super) const INCIDENT_OPENED: &str = "INSERT INTO incidents (instance, incident_id, mcp_server, opened_seq, opened_us, reason, reopens) \
     VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (instance, incident_id) DO UPDATE SET mcp_server = excluded.mcp_server, \
     opened_seq = excluded.opened_seq, opened_us = excluded.opened_us, reason = excluded.reason, \
     reopens = excluded.reopens, ended_seq = NULL, how = NULL";
pub(super) const INCIDENT_REASON: &str = "UPDATE incidents SET reason = $3 WHERE instance = $1 AND incident_id = $2 AND ended_seq IS NULL";
pub(super) const INCIDENT_CLOSED: &str =
    "UPDATE incidents SET ended_seq = $3, how = $4 WHERE instance = $1 AND incident_id = $2 AND ended_seq IS NULL";
pub(super) const ATTEMPT_OPENED: &str = "INSERT INTO attempts (instance, attempt_id, incident_id, opened_seq, action) \
     VALUES ($1, $2, $3, $4, $5) ON CONFLICT (instance, attempt_id) DO UPDATE SET incident_id = excluded.incident_id, \
     opened_seq = excluded.opened_seq, action = excluded.action, outcome = NULL, reason = NULL";
pub(super) const ATTEMPT_SETTLED: &str = "UPDATE attempts SET outcome = $3, reason = (SELECT i.reason FROM incidents i \
     WHERE i.instance = attempts.instance AND i.incident_id = attempts.incident_id) WHERE instance = $1 AND attempt_id = $2";
pub(super) const STANDS: &str = "INSERT INTO standing (instance, topic, seq) VALUES ($1, $2, $3) \
     ON CONFLICT (instance, topic) DO UPDATE SET seq = excluded.seq";
pub(super) const ENDS: &str = "DELETE FROM standing WHERE instance = $1 AND topic = $2";

pub(super) const FORGET_INDEX: [&str; 3] =
    ["DELETE FROM incidents WHERE instance = $1", "DELETE FROM attempts WHERE instance = $1", "DELETE FROM standing WHERE instance = $1"];
/// `$2` = seq, `$3..$6` = derived columns.
pub(super) const REDERIVE: &str =
    "UPDATE records SET at_us = $3, kind = $4, incident_id = $5, mcp_server = $6 WHERE instance = $1 AND seq = $2";

pub(super) const INDEX_OPEN: &str = "SELECT mcp_server, incident_id, opened_seq FROM incidents WHERE instance = $1 AND ended_seq IS NULL";
pub(super) const INDEX_STANDING: &str = "SELECT topic, seq FROM standing WHERE instance = $1";

// Retention.

pub(super) const FIRST_SEQ: &str = "SELECT MIN(seq) FROM records WHERE instance = $1";
/// `$2` = µs. The first record that is not older.
pub(super) const FIRST_FROM: &str = "SELECT MIN(seq) FROM records WHERE instance = $1 AND at_us >= $2";
pub(super) const FIRST_NEEDED: &str = "SELECT MIN(seq) FROM (SELECT MIN(opened_seq) AS seq FROM incidents WHERE instance = $1 AND ended_seq IS NULL \
     UNION ALL SELECT MIN(seq) AS seq FROM standing WHERE instance = $1) AS needed";
/// `$2` = last seq to go. The first incident that begins within and goes on after.
pub(super) const FIRST_STRADDLING: &str = "SELECT MIN(i.opened_seq) FROM incidents i WHERE i.instance = $1 AND i.opened_seq <= $2 \
     AND EXISTS (SELECT 1 FROM records r WHERE r.instance = $1 AND r.incident_id = i.incident_id AND r.seq > $2)";
pub(super) const HASH_AT: &str = "SELECT hash FROM records WHERE instance = $1 AND seq = $2";
pub(super) const CUT: [&str; 3] = [
    "DELETE FROM records WHERE instance = $1 AND seq <= $2",
    "DELETE FROM incidents WHERE instance = $1 AND opened_seq <= $2",
    "DELETE FROM attempts WHERE instance = $1 AND opened_seq <= $2",
];

pub(super) const CHECKPOINT: &str = "SELECT value FROM checkpoints WHERE instance = $1 AND name = $2";
pub(super) const CHECKPOINT_SET: &str = "INSERT INTO checkpoints (instance, name, value) VALUES ($1, $2, $3) \
     ON CONFLICT (instance, name) DO UPDATE SET value = excluded.value";
