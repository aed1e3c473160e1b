-- Attempts that workers elsewhere execute. A row is the truth about who may execute what: it is claimed by one worker at
-- a time, and deleted with what puts its outcome into the inbox of its run.

-- name: claim_attempts
-- Those that are due first, though none is left for later: the clock may have been set back since they were due. Of one
-- queue, which the index has in this order: there may be very many.
UPDATE attempts SET worker = :worker, state = 'CLAIMED', claimed_at = :now
WHERE token IN (
    SELECT token FROM attempts
    WHERE app = :app AND worker IS NULL AND state = 'READY' AND queue = :queue AND step {among steps}
    ORDER BY not_before LIMIT :limit)
RETURNING token, body, not_before, clock;

-- name: claim_attempt
UPDATE attempts SET worker = :worker, state = 'CLAIMED', claimed_at = :now
WHERE token = :token AND app = :app AND worker IS NULL AND state = 'READY'
RETURNING token, body, clock;

-- name: end_attempt
DELETE FROM attempts WHERE token = :token AND worker = :worker RETURNING run;

-- name: post_outcome
INSERT INTO inbox (run, kind, control, dedupe, body, ts, clock)
SELECT no, :kind, 0, :dedupe, :body, :now, :clock FROM runs
WHERE no = :run AND status NOT IN ('SUCCESS', 'FAILURE', 'CANCELLED')
ON CONFLICT DO NOTHING;

-- name: owners
SELECT no, owner FROM runs WHERE no {numbered nos};

-- name: drop_attempts
DELETE FROM attempts WHERE token IN (
    SELECT token FROM attempts WHERE token {among tokens} ORDER BY token {lock});

-- name: withdraw_attempts
-- One that somebody is about to claim is waited for, and then left alone.
DELETE FROM attempts WHERE worker IS NULL AND token IN (
    SELECT token FROM attempts WHERE token {among tokens} ORDER BY token {lock});

-- name: release_attempts
UPDATE attempts SET worker = NULL, state = 'READY', claimed_at = NULL
WHERE token IN (
    SELECT token FROM attempts WHERE token {among tokens} AND worker = :worker ORDER BY token {lock});

-- name: report_attempt
INSERT INTO attributes (run, key, value, body)
SELECT run, :key, cmd, :body FROM attempts WHERE token = :token AND worker = :worker {fence}
ON CONFLICT (run, key, value) DO UPDATE SET body = excluded.body;

-- name: held_attempts
SELECT token FROM attempts WHERE worker = :worker;

-- name: lost_attempts
-- By the index of those that are claimed: they are few, and an order would have all others looked at.
SELECT {attempt} FROM attempts a
WHERE a.worker IS NOT NULL AND a.app = :app AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = a.worker)
LIMIT :limit;

-- name: unclaimed
-- So many of each step in each queue: those that nobody executes must not be all that is seen.
SELECT {attempt} FROM (
    SELECT {attempt}, row_number() OVER (PARTITION BY a.queue, a.step ORDER BY a.not_before) AS place FROM attempts a
    WHERE a.app = :app AND a.worker IS NULL AND a.state = 'READY' AND a.queue {among queues} AND a.not_before < :before) a
WHERE a.place <= :limit ORDER BY a.not_before;

-- name: attempts_of_runs
SELECT {attempt} FROM attempts a WHERE a.run {numbered nos} ORDER BY a.token;

-- name: attempts_of_run
SELECT {attempt} FROM attempts a WHERE a.run = :no ORDER BY a.token;

-- name: queues
SELECT queue, sum(CASE WHEN worker IS NULL THEN 1 ELSE 0 END), min(CASE WHEN worker IS NULL THEN not_before END),
    sum(CASE WHEN worker IS NULL THEN 0 ELSE 1 END)
FROM attempts WHERE app = :app GROUP BY queue ORDER BY queue;
