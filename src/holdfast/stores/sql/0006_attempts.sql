-- Attempts that workers elsewhere execute: of which app, and since when a worker has them.
ALTER TABLE attempts ADD COLUMN app TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN claimed_at INTEGER;
DROP INDEX attempts_waiting;
CREATE INDEX attempts_waiting ON attempts (app, queue, not_before) WHERE worker IS NULL;

-- Whether a worker owns runs or only executes attempts; of which queues, and of which steps.
ALTER TABLE workers ADD COLUMN kind TEXT NOT NULL DEFAULT 'engine';
ALTER TABLE workers ADD COLUMN queues TEXT NOT NULL DEFAULT '[]';
ALTER TABLE workers ADD COLUMN steps TEXT NOT NULL DEFAULT '[]';
