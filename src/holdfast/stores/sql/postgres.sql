-- What PostgreSQL needs in other words than the shared queries: rows that others have locked are left to them, and the
-- inboxes are walked from run to run by their index, whatever the statistics say.

-- part: mailed
FROM runs m
WHERE m.no = ANY(ARRAY(
    WITH RECURSIVE box (run) AS (
        (SELECT run FROM inbox ORDER BY run LIMIT 1)
        UNION ALL
        SELECT (SELECT i.run FROM inbox i WHERE i.run > box.run ORDER BY i.run LIMIT 1) FROM box WHERE run IS NOT NULL)
    SELECT run FROM box WHERE run IS NOT NULL))
  AND m.app = :app AND m.owner IS NULL AND m.workflow {among names}
  AND ((m.held = 0 AND (m.status NOT IN ('PENDING', 'RETRY') OR m.wake_at <= :now))
       OR EXISTS (SELECT 1 FROM inbox i WHERE i.run = m.no AND i.control = 1))

-- name: claim
WITH due AS (
    SELECT no FROM runs
    WHERE app = :app AND owner IS NULL AND wake_at <= :now AND workflow {among names}
    ORDER BY wake_at LIMIT :limit {skip}),
mailed AS (SELECT m.no {mailed} LIMIT :limit {skip})
UPDATE runs
SET owner = :worker, wake_at = NULL, started_at = coalesce(started_at, :now),
    status = CASE WHEN status IN ('PENDING', 'WAITING', 'RETRY') THEN 'RUNNING' ELSE status END
WHERE no = ANY(ARRAY(SELECT no FROM due UNION SELECT no FROM mailed LIMIT :limit)) AND owner IS NULL
RETURNING {columns};

-- name: message_waits
SELECT 1 {mailed} LIMIT 1;

-- name: beat
-- On the way the time of the database is asked for.
UPDATE workers SET lease_until = :until, clock = :clock WHERE id = :worker
RETURNING (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: database_time
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: settle
-- Waits for every transaction that has this worker's row as its fence.
SELECT 1 FROM workers WHERE id = :worker FOR UPDATE;

-- name: booted
-- The table is emptied whenever the server had to recover: all locks were let go of then.
INSERT INTO boots (id, at) VALUES (1, clock_timestamp()) ON CONFLICT DO NOTHING;

-- name: life_locks
-- For how many seconds locks have been held undisturbed, and those that are held in this database.
SELECT (SELECT extract(epoch FROM clock_timestamp() - greatest(at, pg_postmaster_start_time()))::float8 FROM boots),
    ARRAY(SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks
          WHERE locktype = 'advisory' AND objsubid = 1 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()));

-- name: record_outcome
-- From here on others may wait for this transaction, so it must not stay open if its process is frozen.
INSERT INTO attributes (run, key, value, body)
SELECT r.no, 'outcome', :value, :body
FROM runs r, (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) soon
WHERE r.no = :run FOR KEY SHARE OF r
ON CONFLICT (run, key, value) DO NOTHING;

-- name: dead_messages
-- Messages to runs that were deleted while these were under way.
DELETE FROM inbox i WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.no = i.run);

-- name: claim_attempts
-- Whether the worker is alive, and what it has claimed, in one statement.
WITH alive AS MATERIALIZED (SELECT 1 FROM workers WHERE id = :worker {fence}),
due AS MATERIALIZED (
    SELECT a.token FROM attempts a
    WHERE a.app = :app AND a.worker IS NULL AND a.state = 'READY' AND a.queue = :queue AND a.step {among steps}
      AND EXISTS (SELECT 1 FROM alive)
    ORDER BY a.not_before LIMIT :limit {skip}),
claimed AS (
    UPDATE attempts a SET worker = :worker, state = 'CLAIMED', claimed_at = :now FROM due WHERE a.token = due.token
    RETURNING a.token, a.body, a.not_before, a.clock)
SELECT (SELECT count(*) FROM alive), c.token, c.body, c.clock FROM (SELECT 1) one LEFT JOIN claimed c ON true
ORDER BY c.not_before;

-- name: claim_attempt
WITH alive AS MATERIALIZED (SELECT 1 FROM workers WHERE id = :worker {fence}),
claimed AS (
    UPDATE attempts a SET worker = :worker, state = 'CLAIMED', claimed_at = :now
    WHERE a.token = :token AND a.app = :app AND a.worker IS NULL AND a.state = 'READY' AND EXISTS (SELECT 1 FROM alive)
    RETURNING a.token, a.body, a.clock)
SELECT (SELECT count(*) FROM alive), c.token, c.body, c.clock FROM (SELECT 1) one LEFT JOIN claimed c ON true;

-- name: lost_attempts
-- From one worker that has claimed something to the next by the index, whatever the statistics say.
SELECT {attempt} FROM attempts a
WHERE a.worker = ANY(ARRAY(
    WITH RECURSIVE who (worker) AS (
        (SELECT worker FROM attempts WHERE worker IS NOT NULL ORDER BY worker LIMIT 1)
        UNION ALL
        SELECT (SELECT n.worker FROM attempts n WHERE n.worker > who.worker ORDER BY n.worker LIMIT 1) FROM who
        WHERE who.worker IS NOT NULL)
    SELECT worker FROM who
    WHERE worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = who.worker)))
  AND a.app = :app LIMIT :limit;
