-- What was asked of runs, once for each id, and what they answered: the event of that number, nothing before there is one.
CREATE TABLE requests (
    run  INTEGER NOT NULL,
    id   TEXT    NOT NULL,
    seq  INTEGER,
    body BLOB,
    PRIMARY KEY (run, id)
) WITHOUT ROWID;
