-- What is true of the store as a whole: schema version, signing key.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
);

-- One row per run. `owner` is the worker that may write its history. `wake_at` is when somebody should claim it
-- (NULL: only a message wakes it). `held` runs (PAUSED, STUCK) are woken by control messages alone.
CREATE TABLE runs (
    no          INTEGER PRIMARY KEY AUTOINCREMENT, -- never that of a run that was deleted
    app         TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    workflow    TEXT    NOT NULL,
    status      TEXT    NOT NULL,
    reason      TEXT    NOT NULL DEFAULT '',
    stuck       TEXT    NOT NULL DEFAULT '',
    held        INTEGER NOT NULL DEFAULT 0,
    owner       TEXT,
    wake_at     INTEGER,
    attempt     INTEGER NOT NULL DEFAULT 1,
    losses      INTEGER NOT NULL DEFAULT 0,
    base_seq    INTEGER NOT NULL DEFAULT 1,
    end_seq     INTEGER NOT NULL DEFAULT 0,
    priority    INTEGER NOT NULL DEFAULT 0,
    parent_id   TEXT,
    parent_cmd  TEXT,
    root_id     TEXT,
    build       TEXT    NOT NULL DEFAULT '',
    durable     INTEGER NOT NULL DEFAULT 1,
    options     BLOB    NOT NULL,
    fingerprint BLOB    NOT NULL,
    correlation TEXT,
    created_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER,
    expires_at  INTEGER,
    UNIQUE (app, id)
);
CREATE INDEX runs_due ON runs (app, wake_at) WHERE owner IS NULL AND wake_at IS NOT NULL;
CREATE INDEX runs_owned ON runs (owner) WHERE owner IS NOT NULL;
CREATE INDEX runs_by_status ON runs (app, status, no);
CREATE INDEX runs_by_workflow ON runs (app, workflow, no);
CREATE INDEX runs_by_parent ON runs (app, parent_id, no) WHERE parent_id IS NOT NULL;
CREATE INDEX runs_expiring ON runs (app, expires_at) WHERE expires_at IS NOT NULL;

-- What happened in each run. The payload is the whole event; the columns are for people and for queries.
CREATE TABLE history (
    run     INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    cmd     TEXT    NOT NULL,
    cause   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker  TEXT    NOT NULL,
    ts      INTEGER NOT NULL,
    payload BLOB    NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

-- Messages to runs from anyone but their owner. Senders only insert.
CREATE TABLE inbox (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    run     INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    control INTEGER NOT NULL DEFAULT 0,
    dedupe  TEXT,
    body    BLOB    NOT NULL,
    ts      INTEGER NOT NULL
);
CREATE INDEX inbox_by_run ON inbox (run);
CREATE UNIQUE INDEX inbox_once ON inbox (run, dedupe) WHERE dedupe IS NOT NULL;

-- Attempts of steps that are remote, limited or waiting for a slot.
CREATE TABLE attempts (
    token      TEXT PRIMARY KEY,
    run        INTEGER NOT NULL,
    cmd        TEXT    NOT NULL,
    step       TEXT    NOT NULL,
    number     INTEGER NOT NULL,
    state      TEXT    NOT NULL,
    worker     TEXT,
    queue      TEXT    NOT NULL DEFAULT '',
    limit_key  TEXT,
    not_before INTEGER NOT NULL DEFAULT 0,
    published  INTEGER NOT NULL DEFAULT 0,
    clock      INTEGER NOT NULL DEFAULT 0,
    body       BLOB    NOT NULL
);
CREATE INDEX attempts_by_run ON attempts (run);
CREATE INDEX attempts_waiting ON attempts (queue, not_before) WHERE worker IS NULL;
CREATE INDEX attempts_by_worker ON attempts (worker) WHERE worker IS NOT NULL;

-- Processes with an engine or an executor. A worker may write only while its row is here.
CREATE TABLE workers (
    id          TEXT PRIMARY KEY,
    app         TEXT    NOT NULL,
    host        TEXT    NOT NULL,
    pid         INTEGER NOT NULL,
    build       TEXT    NOT NULL,
    names       TEXT    NOT NULL,
    address     TEXT    NOT NULL DEFAULT '',
    started_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
);

-- What starts runs by the clock.
CREATE TABLE schedules (
    app      TEXT    NOT NULL,
    name     TEXT    NOT NULL,
    workflow TEXT    NOT NULL,
    spec     BLOB    NOT NULL,
    paused   INTEGER NOT NULL DEFAULT 0,
    next_at  INTEGER,
    last_at  INTEGER,
    PRIMARY KEY (app, name)
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE paused = 0 AND next_at IS NOT NULL;

-- What reacts to domain events: workflows to start, and runs that wait.
CREATE TABLE subscriptions (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    app    TEXT    NOT NULL,
    event  TEXT    NOT NULL,
    target TEXT    NOT NULL,
    run    INTEGER,
    cmd    TEXT,
    spec   BLOB    NOT NULL
);
CREATE UNIQUE INDEX subscriptions_once ON subscriptions (app, event, target, ifnull(run, 0), ifnull(cmd, ''));
CREATE INDEX subscriptions_by_run ON subscriptions (run) WHERE run IS NOT NULL;

-- Counters for concurrency and rate limits.
CREATE TABLE limits (
    app   TEXT NOT NULL,
    key   TEXT NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (app, key)
);

-- What runs can be found by: their data ("data.customer"), the keys of hooks they wait for ("hook").
CREATE TABLE attributes (
    run   INTEGER NOT NULL,
    key   TEXT    NOT NULL,
    value TEXT    NOT NULL,
    body  BLOB    NOT NULL,
    PRIMARY KEY (run, key, value)
) WITHOUT ROWID;
CREATE INDEX attributes_by_value ON attributes (key, value);

-- What steps and workflows stream to those who watch.
CREATE TABLE streams (
    run     INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    cmd     TEXT    NOT NULL,
    attempt INTEGER NOT NULL,
    ts      INTEGER NOT NULL,
    item    BLOB    NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
