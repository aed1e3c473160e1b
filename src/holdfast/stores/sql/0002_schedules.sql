-- Whether code declares a schedule, why it is paused, the run it started last, the ticks that wait for that run's end,
-- and a number that each change makes larger.
ALTER TABLE schedules ADD COLUMN declared INTEGER NOT NULL DEFAULT 0;
ALTER TABLE schedules ADD COLUMN reason TEXT NOT NULL DEFAULT '';
ALTER TABLE schedules ADD COLUMN active TEXT;
ALTER TABLE schedules ADD COLUMN queued TEXT NOT NULL DEFAULT '[]';
ALTER TABLE schedules ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
DROP INDEX schedules_due;
CREATE INDEX schedules_due ON schedules (app, next_at) WHERE paused = 0 AND next_at IS NOT NULL;
CREATE INDEX schedules_queued ON schedules (app) WHERE queued <> '[]';

-- The schedules that a worker's code declares.
ALTER TABLE workers ADD COLUMN schedules TEXT NOT NULL DEFAULT '[]';
