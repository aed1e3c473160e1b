-- name: insert_run
-- A run begins: nothing happens if its id is taken.
INSERT INTO runs (app, id, workflow, status, wake_at, priority, parent_id, parent_cmd, root_id, correlation, durable,
                  options, fingerprint, base_seq, created_at)
VALUES (:app, :id, :workflow, :status, :wake_at, :priority, :parent_id, :parent_cmd, :root_id, :correlation, :durable,
        :options, :fingerprint, :base_seq, :created_at)
ON CONFLICT (app, id) DO NOTHING
RETURNING no;

-- name: put_off
-- Only what no worker has seen may still become another.
UPDATE runs SET wake_at = :wake_at, fingerprint = :fingerprint
WHERE no = :no AND app = :app AND status = 'PENDING' AND owner IS NULL AND started_at IS NULL AND held = 0;

-- name: select_run
SELECT {columns} FROM runs WHERE app = :app AND id = :id;

-- name: lock_run
-- Before it is deleted: nobody may claim it in between.
SELECT {columns} FROM runs WHERE app = :app AND id = :id {lock};

-- name: run_number
SELECT no FROM runs WHERE app = :app AND id = :id;

-- name: am_i_alive
-- Fencing: a worker may write only while its row is there.
SELECT 1 FROM workers WHERE id = :worker {fence};

-- name: claim
-- Runs that are due, then runs with a message waiting; the head start of priority is in wake_at. What is to begin
-- later (a delayed start, a retry of the whole run) is not begun by a message; orders are looked at even so.
UPDATE runs
SET owner = :worker, wake_at = NULL, started_at = coalesce(started_at, :now),
    status = CASE WHEN status IN ('PENDING', 'WAITING', 'RETRY') THEN 'RUNNING' ELSE status END
WHERE no IN (
    SELECT no FROM (
        SELECT no, wake_at FROM runs
        WHERE app = :app AND owner IS NULL AND wake_at <= :now AND workflow {among names}
        ORDER BY wake_at LIMIT :limit)
    UNION ALL
    SELECT no FROM (
        SELECT DISTINCT r.no FROM inbox i {ordered_join} runs r ON r.no = i.run
        WHERE r.app = :app AND r.owner IS NULL AND r.workflow {among names}
          AND (i.control = 1 OR (r.held = 0 AND (r.status NOT IN ('PENDING', 'RETRY') OR r.wake_at <= :now)))
        LIMIT :limit)
    LIMIT :limit)
RETURNING {columns};

-- name: history_from_base
SELECT h.run, h.payload, h.clock FROM runs r {ordered_join} history h ON h.run = r.no AND h.seq >= r.base_seq
WHERE r.no {numbered nos} ORDER BY h.run, h.seq;

-- name: beginnings
-- Of new runs: their histories, numbered 0, which are short, then their messages; before them attempts, if they are not as
-- new as they look.
SELECT 0 AS number, h.run, '' AS kind, h.payload, h.seq AS ts, h.clock
FROM runs r {ordered_join} history h ON h.run = r.no AND h.seq >= r.base_seq WHERE r.no {numbered nos}
UNION ALL
SELECT id, run, kind, body, ts, clock FROM inbox WHERE run {numbered nos}
UNION ALL
SELECT -1, run, '', NULL, 0, 0 FROM attempts WHERE run {numbered nos}
ORDER BY 1, 2, 5;

-- name: inbox_of_runs
SELECT id, run, kind, body, ts, clock FROM inbox WHERE run {numbered nos} ORDER BY id;

-- name: inbox_of_worker
SELECT i.id, i.run, i.kind, i.body, i.ts, i.clock FROM inbox i {ordered_join} runs r ON r.no = i.run
WHERE r.owner = :worker ORDER BY i.id;

-- name: inbox_for_runs
SELECT i.id, i.run, i.kind, i.body, i.ts, i.clock FROM inbox i
WHERE i.run {numbered nos} AND EXISTS (SELECT 1 FROM runs r WHERE r.no = i.run AND r.owner = :worker) ORDER BY i.id;

-- name: consume
DELETE FROM inbox WHERE id {numbered ids};

-- name: post
-- Senders only insert. A run that has ended takes only what is meant for it even so.
INSERT INTO inbox (run, kind, control, dedupe, body, ts, clock)
SELECT no, :kind, :control, :dedupe, :body, :now, :clock FROM runs
WHERE app = :app AND id = :run_id AND (:late = 1 OR status NOT IN ('SUCCESS', 'FAILURE', 'CANCELLED'))
  AND no = coalesce(CAST(:run_no AS BIGINT), no)
  AND (CAST(:child_of AS TEXT) IS NULL OR parent_id = CAST(:child_of AS TEXT))
ON CONFLICT DO NOTHING
RETURNING id, run;

-- name: addressed
SELECT no, status FROM runs
WHERE app = :app AND id = :run_id AND no = coalesce(CAST(:run_no AS BIGINT), no)
  AND (CAST(:child_of AS TEXT) IS NULL OR parent_id = CAST(:child_of AS TEXT));

-- name: take_once
-- The inbox forgets what was read; what is good for one answer has to be known for longer.
INSERT INTO attributes (run, key, value, body) VALUES (:run, 'once', :value, '') ON CONFLICT DO NOTHING;

-- name: add_request
INSERT INTO requests (run, id) VALUES (:run, :id) ON CONFLICT DO NOTHING;

-- name: answer_request
-- The first answer stands.
UPDATE requests SET seq = :seq, body = :body WHERE run = :run AND id = :id AND seq IS NULL;

-- name: answer
SELECT body FROM requests WHERE run = :no AND id = :id AND seq IS NOT NULL;

-- name: forget_history
DELETE FROM history WHERE run = :run AND seq < :before;

-- name: forget_requests
DELETE FROM requests WHERE run = :run AND seq < :before;

-- name: orders
SELECT kind FROM inbox WHERE run = :no AND control = 1 ORDER BY id;

-- name: set_attribute
INSERT INTO attributes (run, key, value, body) VALUES (:run, :key, :value, :body)
ON CONFLICT (run, key, value) DO UPDATE SET body = excluded.body;

-- name: clear_attribute
DELETE FROM attributes WHERE run = :run AND key = :key;

-- name: drop_attribute
DELETE FROM attributes WHERE run = :run AND key = :key AND value = :value;

-- name: set_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: add_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT DO NOTHING;

-- name: insert_worker
INSERT INTO workers (id, app, host, pid, build, names, schedules, address, started_at, lease_until, kind, queues, steps,
                     clock)
VALUES (:id, :app, :host, :pid, :build, :names, :schedules, :address, :started_at, :lease_until, :kind, :queues, :steps,
        :clock);

-- name: beat
UPDATE workers SET lease_until = :until, clock = :clock WHERE id = :worker;

-- name: select_workers
SELECT id, app, host, pid, build, names, address, started_at, lease_until, schedules, kind, queues, steps, clock
FROM workers WHERE app = :app ORDER BY started_at, id;

-- name: addresses
SELECT address FROM workers WHERE (app = :app OR :everyone = 1) AND address <> '' AND (:kind = '' OR kind = :kind);

-- name: apps
-- From one name to the next by the index, as a plain DISTINCT would read every run.
WITH RECURSIVE found (app) AS (
    SELECT min(app) FROM runs
    UNION ALL
    SELECT (SELECT min(r.app) FROM runs r WHERE r.app > found.app) FROM found WHERE found.app IS NOT NULL)
SELECT app FROM found WHERE app IS NOT NULL UNION SELECT app FROM workers UNION SELECT app FROM schedules ORDER BY 1;

-- name: delete_worker
DELETE FROM workers WHERE id = :worker RETURNING listens;

-- name: expire_worker
-- Only if it has not renewed its lease since that was read.
DELETE FROM workers WHERE id = :worker AND lease_until = :lease_until RETURNING listens;

-- name: release_runs
-- What a worker leaves behind can be claimed at once. Runs that have ended or are held need nobody.
UPDATE runs
SET owner = NULL,
    losses = losses + CASE WHEN held = 0 AND finished_at IS NULL THEN (CASE WHEN durable = 0 THEN 1 ELSE :loss END) ELSE 0 END,
    wake_at = CASE WHEN held = 0 AND finished_at IS NULL THEN :now ELSE wake_at END,
    status = CASE WHEN status = 'RUNNING' THEN 'PENDING' ELSE status END
WHERE owner = :worker;

-- name: release_lost
-- Runs of workers that have no row. Nobody should leave any; a run must not be lost if somebody does.
UPDATE runs SET owner = NULL, wake_at = CASE WHEN held = 0 AND finished_at IS NULL THEN :now ELSE wake_at END,
    status = CASE WHEN status = 'RUNNING' THEN 'PENDING' ELSE status END
WHERE app = :app AND owner IS NOT NULL AND NOT EXISTS (SELECT 1 FROM workers w WHERE w.id = runs.owner);

-- name: learn
UPDATE workers SET names = :names, schedules = :schedules, queues = :queues, steps = :steps WHERE id = :worker;

-- name: welcome
-- A new worker may know code that nobody knew, or have corrected code that diverged.
UPDATE runs SET held = 0, stuck = '', reason = '', status = 'PENDING', wake_at = :now
WHERE no IN (
    SELECT no FROM runs
    WHERE app = :app AND owner IS NULL AND status = 'STUCK'
      AND (stuck = 'unknown' OR (stuck = 'diverged' AND build <> :build)) AND workflow {among names}
    ORDER BY no {lock});

-- name: payloads
SELECT payload, clock FROM history WHERE run = :no AND seq > :after AND seq <= :until ORDER BY seq;

-- name: payloads_of_kinds
SELECT payload, clock FROM history WHERE run = :no AND seq > :after AND seq <= :until
AND kind {among kinds} ORDER BY seq;

-- name: histories
SELECT run, payload FROM history WHERE run {numbered nos} ORDER BY run, seq;

-- name: histories_of_kinds
SELECT run, payload FROM history WHERE run {numbered nos} AND kind {among kinds} ORDER BY run, seq;

-- name: first_from
SELECT no FROM runs WHERE app = :app AND created_at >= :time ORDER BY created_at LIMIT 1;

-- name: last_before
SELECT no FROM runs WHERE app = :app AND created_at < :time ORDER BY created_at DESC LIMIT 1;

-- name: workflow_names
-- From one name to the next by the index, as in `apps`.
WITH RECURSIVE found (name) AS (
    SELECT min(workflow) FROM runs WHERE app = :app AND workflow >= :begins AND workflow < :ends
    UNION ALL
    SELECT (SELECT min(r.workflow) FROM runs r WHERE r.app = :app AND r.workflow > found.name AND r.workflow < :ends)
    FROM found WHERE found.name IS NOT NULL)
SELECT name FROM found WHERE name IS NOT NULL LIMIT :limit;

-- name: attributes
SELECT value, body FROM attributes WHERE run = :no AND key = :key;

-- name: data
SELECT key, body FROM attributes WHERE run = :no AND key LIKE 'data.%' ORDER BY key;

-- name: data_of
SELECT run, key, body FROM attributes WHERE run {numbered nos} AND key LIKE 'data.%' AND length(body) <= :most ORDER BY run, key;

-- name: append_stream
INSERT INTO streams (run, number, cmd, attempt, ts, item)
SELECT :run, coalesce(max(number), 0) + 1, :cmd, :attempt, :ts, :item FROM streams WHERE run = :run;

-- name: streamed
SELECT cmd, attempt, count(*) FROM streams WHERE run = :no GROUP BY cmd, attempt;

-- name: stream
SELECT number, cmd, attempt, ts, item FROM streams WHERE run = :no AND number > :after ORDER BY number LIMIT :limit;

-- name: find_hook
SELECT r.id, a.body FROM attributes a {ordered_join} runs r ON r.no = a.run
WHERE a.key = 'hook' AND a.value = :value AND r.app = :app;

-- name: name_blob
INSERT INTO blobs (run, key) VALUES (:run, :key) ON CONFLICT DO NOTHING;

-- name: named_blobs
SELECT DISTINCT key FROM blobs WHERE key {among keys};

-- name: bodies
-- What may name blobs, and is in no history yet.
SELECT body FROM inbox UNION ALL SELECT spec FROM schedules;

-- name: delete_parts
DELETE FROM {table} WHERE run {numbered nos};

-- name: delete_runs
DELETE FROM runs WHERE no {numbered nos};

-- name: expired
-- Not while somebody asks something of it: a parent, for example, that wants to know how it ended.
SELECT no FROM runs
WHERE app = :app AND expires_at <= :now AND owner IS NULL
  AND NOT EXISTS (SELECT 1 FROM inbox i WHERE i.run = runs.no AND i.control = 1)
ORDER BY expires_at LIMIT :limit {skip};

-- name: next_wake
SELECT wake_at FROM runs
WHERE app = :app AND owner IS NULL AND wake_at IS NOT NULL AND workflow {among names}
ORDER BY wake_at LIMIT 1;

-- name: latest_lease
SELECT max(lease_until) FROM workers WHERE app = :app;

-- name: get_meta
SELECT value FROM meta WHERE key = :key;

-- name: reset_times
-- Runs whose own time is in the future wait for a time that is too late, be it that a worker has let go of them.
UPDATE runs SET wake_at = :now
WHERE app = :app AND owner IS NULL AND wake_at > :now
  AND (status IN ('WAITING', 'RETRY') OR (status = 'PENDING' AND started_at IS NOT NULL))
  AND (SELECT h.ts FROM history h WHERE h.run = runs.no ORDER BY h.seq DESC LIMIT 1) > :ahead;

-- name: message_waits
SELECT 1 FROM inbox i {ordered_join} runs r ON r.no = i.run
WHERE r.app = :app AND r.owner IS NULL AND r.workflow {among names}
  AND (i.control = 1 OR (r.held = 0 AND (r.status NOT IN ('PENDING', 'RETRY') OR r.wake_at <= :now))) LIMIT 1;

-- part: is_unknown
workflow NOT IN (SELECT j.value FROM workers w, {elements w.names} WHERE w.app = :app)

-- name: orphans
-- Those whose time has come, and those that wait and were told something.
SELECT {columns} FROM runs
WHERE app = :app AND owner IS NULL AND held = 0 AND wake_at <= :before AND {is_unknown}
UNION ALL
SELECT {columns} FROM runs
WHERE no IN (SELECT i.run FROM inbox i WHERE i.ts <= :before) AND app = :app AND owner IS NULL AND held = 0
  AND status = 'WAITING' AND (wake_at IS NULL OR wake_at > :before) AND {is_unknown}
LIMIT 100;

-- name: set_aside
UPDATE runs SET status = 'STUCK', held = 1, reason = :reason, stuck = :stuck, wake_at = NULL
WHERE no = :no AND owner IS NULL AND held = 0 AND finished_at IS NULL;

-- part: is_active
EXISTS (SELECT 1 FROM runs r WHERE r.app = s.app AND r.id = s.active AND r.finished_at IS NULL)

-- part: schedule
s.name, s.workflow, s.spec, s.declared, s.paused, s.reason, s.next_at, s.last_at, s.active, {is_active}, s.queued,
s.revision

-- name: select_schedules
SELECT {schedule} FROM schedules s WHERE s.app = :app ORDER BY s.name;

-- name: select_schedule
SELECT {schedule} FROM schedules s WHERE s.app = :app AND s.name = :name;

-- name: due_schedules
-- By the two partial indexes: there may be many schedules, of which few have something to do.
SELECT {schedule} FROM schedules s WHERE s.app = :app AND s.name IN (
    SELECT name FROM (
        SELECT name FROM schedules
        WHERE app = :app AND paused = 0 AND next_at <= :now AND workflow {among names}
        ORDER BY next_at LIMIT :limit) due
    UNION ALL
    SELECT name FROM (
        SELECT s.name FROM schedules s
        WHERE s.app = :app AND s.queued <> '[]' AND s.paused = 0 AND s.workflow {among names}
          AND NOT {is_active} LIMIT :limit) waiting)
ORDER BY s.next_at LIMIT :limit;

-- name: next_tick
SELECT CASE WHEN EXISTS (
    SELECT 1 FROM schedules s
    WHERE s.app = :app AND s.queued <> '[]' AND s.paused = 0 AND s.workflow {among names}
      AND NOT {is_active})
THEN 0 ELSE (
    SELECT next_at FROM schedules
    WHERE app = :app AND paused = 0 AND next_at IS NOT NULL AND workflow {among names}
    ORDER BY next_at LIMIT 1) END;

-- name: insert_schedule
INSERT INTO schedules (app, name, workflow, spec, declared, paused, reason, next_at, last_at, active, queued, revision)
VALUES (:app, :name, :workflow, :spec, :declared, :paused, :reason, :next_at, :last_at, :active, :queued, :now)
ON CONFLICT (app, name) DO NOTHING;

-- name: update_schedule
-- Only if nobody has changed it since it was read. A revision is at least the time, so that a schedule that was
-- deleted and made anew has another.
UPDATE schedules
SET workflow = :workflow, spec = :spec, declared = :declared, paused = :paused, reason = :reason, next_at = :next_at,
    last_at = :last_at, active = :active, queued = :queued, revision = CASE WHEN revision < :now THEN :now ELSE revision + 1 END
WHERE app = :app AND name = :name AND revision = :revision;

-- name: delete_schedule
DELETE FROM schedules WHERE app = :app AND name = :name AND revision = :revision;

-- name: record_outcome
-- By the transaction of the step itself, once, as long as its run is there.
INSERT INTO attributes (run, key, value, body)
SELECT no, 'outcome', :value, :body FROM runs WHERE no = :run {fence}
ON CONFLICT (run, key, value) DO NOTHING;

-- name: recorded_outcome
SELECT body FROM attributes WHERE run = :run AND key = 'outcome' AND value = :value;
