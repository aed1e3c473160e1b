-- The newest runs of one app among those of many, and those since some time.
CREATE INDEX runs_by_number ON runs (app, no);
CREATE INDEX runs_by_time ON runs (app, created_at);
