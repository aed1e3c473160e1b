-- name: insert_domain_event
INSERT INTO domain_events (app, id, name, key, payload, correlation, run_id, cmd, quiet, ts)
VALUES (:app, :id, :name, :key, :payload, :correlation, :run_id, :cmd, :quiet, :ts)
ON CONFLICT (id) DO NOTHING
RETURNING no;

-- name: spread
-- To each app that listens, from one to the next by the index, and to no subscription that comes later.
INSERT INTO deliveries (app, event, upto)
WITH RECURSIVE listening (app) AS (
    SELECT min(app) FROM subscriptions WHERE event = :name
    UNION ALL
    SELECT (SELECT min(s.app) FROM subscriptions s WHERE s.event = :name AND s.app > listening.app)
    FROM listening WHERE listening.app IS NOT NULL)
SELECT app, :no, (SELECT max(id) FROM subscriptions) FROM listening WHERE app IS NOT NULL;

-- name: anybody_listens
SELECT 1 FROM subscriptions WHERE event = :name LIMIT 1;

-- name: subscribe
INSERT INTO subscriptions (app, event, target, run, cmd, path, lookup, spec, declared_at)
VALUES (:app, :event, :target, :run, :cmd, :path, :lookup, :spec, :now)
ON CONFLICT (app, event, target, coalesce(run, 0), cmd) DO UPDATE SET spec = excluded.spec, declared_at = :now;

-- name: subscribe_for_now
-- What code says that is no worker's: only where no worker has said what it listens to, or not, with that target.
INSERT INTO subscriptions (app, event, target, run, cmd, path, lookup, spec, declared_at)
SELECT :app, :event, :target, CAST(:run AS BIGINT), :cmd, :path, :lookup, :spec, :now
WHERE NOT EXISTS (SELECT 1 FROM workers w, {elements w.names} WHERE w.app = :app AND j.value = :target)
ON CONFLICT DO NOTHING;

-- name: unsubscribe
DELETE FROM subscriptions WHERE run = :run AND cmd = :cmd;

-- name: end_subscription
DELETE FROM subscriptions WHERE id = :id;

-- name: set_listens
UPDATE workers SET listens = :listens WHERE id = :worker;

-- name: declared_until_now
-- What a worker that leaves has declared.
UPDATE subscriptions SET declared_at = :now
WHERE app = :app AND run IS NULL
  AND event || ' ' || target {among listens};

-- name: end_undeclared
-- A live worker that knows the target without declaring it has the last word. What nobody knows may belong to workers
-- with other code, which are away for a while.
DELETE FROM subscriptions
WHERE app = :app AND run IS NULL
  AND event || ' ' || target NOT IN (SELECT j.value FROM workers w, {elements w.listens} WHERE w.app = :app)
  AND (target IN (SELECT j.value FROM workers w, {elements w.names} WHERE w.app = :app)
       OR (declared_at < :long_ago AND EXISTS (SELECT 1 FROM workers w WHERE w.app = :app)));

-- name: end_reached
-- Nobody has begun to listen since it was looked who does.
DELETE FROM deliveries WHERE event = :event AND app = :app AND upto <= :upto;

-- name: advance_reached
UPDATE deliveries SET after = :upto WHERE event = :event AND app = :app;

-- name: undelivered
-- An older event that subscriptions of this app have yet to get.
SELECT 1 FROM deliveries WHERE app = :app AND event < :event LIMIT 1;

-- name: functions_listening
SELECT id, spec FROM subscriptions
WHERE event = :name AND app = :app AND lookup = '' AND id <= :upto AND run IS NULL ORDER BY id;

-- name: listening
WITH RECURSIVE found (path) AS (
    SELECT min(path) FROM subscriptions WHERE event = :name AND app = :app
    UNION ALL
    SELECT (SELECT min(s.path) FROM subscriptions s WHERE s.event = :name AND s.app = :app AND s.path > found.path)
    FROM found WHERE found.path IS NOT NULL)
SELECT (SELECT max(id) FROM subscriptions), path FROM found WHERE path IS NOT NULL;

-- name: arrivals
SELECT d.id, d.after, d.upto, {event}
FROM deliveries d {ordered_join} domain_events e ON e.no = d.event WHERE d.app = :app ORDER BY d.id LIMIT :limit;

-- name: listeners
-- One lookup at a time, so that the index gives them in order, however many there are.
SELECT s.id, s.target, r.id, s.cmd, s.spec
FROM subscriptions s LEFT JOIN runs r ON r.no = s.run
WHERE s.event = :name AND s.app = :app AND s.lookup = :lookup AND s.id > :after AND s.id <= :upto
ORDER BY s.id LIMIT :limit;

-- name: advance_delivery
UPDATE deliveries SET after = :reached WHERE id = :id AND after = :after;

-- name: end_delivery
DELETE FROM deliveries WHERE id = :id AND after = :after;

-- name: domain_event
SELECT {event} FROM domain_events e WHERE e.id = :id;

-- name: runs_of_process
SELECT {columns} FROM runs WHERE correlation = :correlation
UNION
SELECT {columns} FROM runs WHERE app = :root_app AND id = :root_id
ORDER BY no LIMIT :limit;

-- name: events_of_process
SELECT {event} FROM domain_events e WHERE e.correlation = :correlation ORDER BY e.no LIMIT :limit;

-- name: forget_deliveries
-- Of the oldest events, those that are too old.
DELETE FROM deliveries WHERE event IN (
    SELECT no FROM (SELECT no, ts FROM domain_events ORDER BY no LIMIT :limit) oldest WHERE ts < :before);

-- name: forget_events
DELETE FROM domain_events WHERE no IN (
    SELECT no FROM (SELECT no, ts FROM domain_events ORDER BY no LIMIT :limit) oldest WHERE ts < :before);
