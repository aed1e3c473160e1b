-- Pages of runs: in the order of their numbers, and from a time on.
CREATE INDEX runs_by_number ON runs (app, no);
CREATE INDEX runs_by_time ON runs (app, created_at);
