-- Which blobs, by the digests of what they hold, the histories of runs name.
CREATE TABLE blobs (
    run INTEGER NOT NULL,
    key TEXT    NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;

CREATE INDEX blobs_by_key ON blobs (key);
