-- The logical clock of the process that wrote a row; 0 in rows of older versions.
ALTER TABLE history ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN clock INTEGER NOT NULL DEFAULT 0;

-- No clock in this store has shown more than `value`. It is raised in large steps, so that few commits write it.
CREATE TABLE logical_clock (
    id    INTEGER PRIMARY KEY,
    value INTEGER NOT NULL
);
INSERT INTO logical_clock (id, value) VALUES (1, 0);

-- What workers tell those who watch, for a moment: nothing is written here while nobody does.
CREATE TABLE telemetry (
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    app  TEXT    NOT NULL,
    ts   INTEGER NOT NULL,
    body BLOB    NOT NULL
);

-- Who watches, and until when that is believed.
CREATE TABLE watchers (
    id    TEXT PRIMARY KEY,
    app   TEXT    NOT NULL,
    until INTEGER NOT NULL
);
