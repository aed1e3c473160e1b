-- Limits that code declares; 0 is no limit. The row is also the lock under which slots are granted.
DROP TABLE limits;
CREATE TABLE limits (
    app         TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    keyed       INTEGER NOT NULL,
    of_runs     INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    rate        INTEGER NOT NULL,
    period      INTEGER NOT NULL,
    burst       INTEGER NOT NULL,
    PRIMARY KEY (app, name)
);

-- Of limits with a rate, by key: when the next one could begin if there were no burst.
CREATE TABLE lines (
    app  TEXT    NOT NULL,
    lim  TEXT    NOT NULL,
    key  TEXT    NOT NULL,
    next INTEGER NOT NULL,
    PRIMARY KEY (app, lim, key)
);

-- A step of a run (or the whole run, with an empty cmd) that has a slot of a limit, or waits for one: `turn` is 0 until
-- it has its place in the line. `rest` are the lines it will stand in next. The letters are what its run is told.
CREATE TABLE slots (
    no         INTEGER PRIMARY KEY AUTOINCREMENT,
    app        TEXT    NOT NULL,
    lim        TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    fair       TEXT    NOT NULL,
    run        INTEGER NOT NULL,
    cmd        TEXT    NOT NULL,
    holder     TEXT    NOT NULL,
    token      TEXT    NOT NULL,
    rest       TEXT    NOT NULL,
    letter     BLOB    NOT NULL,
    refusal    BLOB,
    eviction   BLOB,
    control    INTEGER NOT NULL DEFAULT 0,
    granted    INTEGER NOT NULL DEFAULT 0,
    turn       INTEGER NOT NULL DEFAULT 0,
    evicted    INTEGER NOT NULL DEFAULT 0,
    asked_at   INTEGER NOT NULL,
    granted_at INTEGER
);
CREATE UNIQUE INDEX slots_once ON slots (holder, lim);
CREATE INDEX slots_by_run ON slots (run);
CREATE INDEX slots_new ON slots (app, lim, no) WHERE granted = 0 AND turn = 0;
CREATE INDEX slots_waiting ON slots (app, lim, key, turn, no) WHERE granted = 0;
CREATE INDEX slots_fair ON slots (app, lim, key, fair, turn) WHERE granted = 0;
CREATE INDEX slots_held ON slots (app, lim, key) WHERE granted = 1;

-- Whether a run has, or has had, rows in `slots`: only those are looked for there.
ALTER TABLE runs ADD COLUMN limited INTEGER NOT NULL DEFAULT 0;
