-- Emptied when the server recovers from a crash, which lets go of all locks.
CREATE UNLOGGED TABLE boots (id INTEGER PRIMARY KEY, at TIMESTAMPTZ NOT NULL);
INSERT INTO boots (id, at) VALUES (1, clock_timestamp() - interval '1 day');
