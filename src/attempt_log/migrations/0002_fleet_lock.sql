-- Of several replicas of one Hangar one at a time is reloaded or restarted. A row stays when it is given back, so that
-- `epoch` only rises: one that was taken over is known by it. `deadline_us` is the database's own time.
CREATE TABLE fleet_lock (
    target      TEXT   NOT NULL PRIMARY KEY,
    holder      TEXT,
    epoch       BIGINT NOT NULL,
    deadline_us BIGINT NOT NULL
);
