-- The chain. `body` is the exact text that was hashed; it is never rewritten.
-- `at_us`, `kind`, `incident_id` and `mcp_server` are read off `at` and `body`: they find records, they prove nothing.
CREATE TABLE records (
    instance    TEXT   NOT NULL,
    seq         BIGINT NOT NULL,
    at          TEXT   NOT NULL,
    actor       TEXT   NOT NULL,
    body        TEXT   NOT NULL,
    prev_hash   TEXT   NOT NULL,
    hash        TEXT   NOT NULL,
    at_us       BIGINT NOT NULL,
    kind        TEXT   NOT NULL,
    incident_id TEXT,
    mcp_server  TEXT,
    PRIMARY KEY (instance, seq)
);
CREATE INDEX records_at ON records (instance, at_us, seq);
CREATE INDEX records_incident ON records (instance, incident_id, seq) WHERE incident_id IS NOT NULL;

-- The last record of each chain, written with it: records missing at the end show against it.
CREATE TABLE heads (
    instance TEXT   NOT NULL PRIMARY KEY,
    seq      BIGINT NOT NULL,
    hash     TEXT   NOT NULL
);

-- From here on: the index. All of it can be rebuilt from `records`.
CREATE TABLE incidents (
    instance    TEXT   NOT NULL,
    incident_id TEXT   NOT NULL,
    mcp_server  TEXT   NOT NULL,
    opened_seq  BIGINT NOT NULL,
    opened_us   BIGINT NOT NULL,
    reason      TEXT   NOT NULL,
    ended_seq   BIGINT,
    how         TEXT,
    reopens     TEXT,
    PRIMARY KEY (instance, incident_id)
);
CREATE INDEX incidents_opened ON incidents (instance, opened_seq);
CREATE INDEX incidents_opened_at ON incidents (instance, opened_us);
CREATE INDEX incidents_reopens ON incidents (instance, reopens) WHERE reopens IS NOT NULL;
CREATE INDEX incidents_open ON incidents (instance, mcp_server) WHERE ended_seq IS NULL;
CREATE INDEX incidents_count ON incidents (instance, reason, how);

CREATE TABLE attempts (
    instance    TEXT   NOT NULL,
    attempt_id  TEXT   NOT NULL,
    incident_id TEXT   NOT NULL,
    opened_seq  BIGINT NOT NULL,
    action      TEXT   NOT NULL,
    outcome     TEXT,
    reason      TEXT,
    PRIMARY KEY (instance, attempt_id)
);
CREATE INDEX attempts_opened ON attempts (instance, opened_seq);
CREATE INDEX attempts_count ON attempts (instance, outcome, action, reason);

-- Records that hold until another ends them: live hold orders, the Hangar process seen last.
CREATE TABLE standing (
    instance TEXT   NOT NULL,
    topic    TEXT   NOT NULL,
    seq      BIGINT NOT NULL,
    PRIMARY KEY (instance, topic)
);

-- Values changed in place, outside the chain (log position, refusals, when servers were last seen dead).
CREATE TABLE checkpoints (
    instance TEXT NOT NULL,
    name     TEXT NOT NULL,
    value    TEXT NOT NULL,
    PRIMARY KEY (instance, name)
);
