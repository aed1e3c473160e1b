-- Domain events as they were emitted. The id is that of app, name and key.
CREATE TABLE domain_events (
    no          INTEGER PRIMARY KEY AUTOINCREMENT,
    app         TEXT    NOT NULL,
    id          TEXT    NOT NULL UNIQUE,
    name        TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    payload     BLOB    NOT NULL,
    correlation TEXT    NOT NULL,
    run_id      TEXT,
    cmd         TEXT    NOT NULL,
    quiet       INTEGER NOT NULL,
    ts          INTEGER NOT NULL
);
CREATE INDEX domain_events_by_correlation ON domain_events (correlation);

-- Events that an app has yet to bring to its subscriptions: those numbered after `after`, up to the last there was when
-- the event was emitted.
CREATE TABLE deliveries (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    app   TEXT    NOT NULL,
    event INTEGER NOT NULL,
    after INTEGER NOT NULL DEFAULT 0,
    upto  INTEGER NOT NULL
);
CREATE INDEX deliveries_by_app ON deliveries (app, id);
CREATE INDEX deliveries_by_event ON deliveries (event);

-- What listens to domain events: functions to start, and runs that wait. Of runs that compare a place of the payload,
-- `path`, with a value, those are found by `lookup` that an event is for.
DROP TABLE subscriptions;
CREATE TABLE subscriptions (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    app         TEXT    NOT NULL,
    event       TEXT    NOT NULL,
    target      TEXT    NOT NULL,
    run         INTEGER,
    cmd         TEXT    NOT NULL,
    path        TEXT    NOT NULL,
    lookup      TEXT    NOT NULL,
    spec        BLOB    NOT NULL,
    declared_at INTEGER NOT NULL
);
CREATE UNIQUE INDEX subscriptions_once ON subscriptions (app, event, target, ifnull(run, 0), cmd);
CREATE INDEX subscriptions_by_lookup ON subscriptions (event, app, lookup, id);
CREATE INDEX subscriptions_by_path ON subscriptions (event, app, path);
CREATE INDEX subscriptions_by_run ON subscriptions (run) WHERE run IS NOT NULL;

-- The subscriptions that a worker's code declares: "event target".
ALTER TABLE workers ADD COLUMN listens TEXT NOT NULL DEFAULT '[]';

CREATE INDEX runs_by_correlation ON runs (correlation) WHERE correlation IS NOT NULL;
