-- name: clock_reached
SELECT value FROM logical_clock WHERE id = 1;

-- name: reserve_clock
INSERT INTO logical_clock (id, value) VALUES (1, :upto)
ON CONFLICT (id) DO UPDATE SET value = excluded.value WHERE logical_clock.value < excluded.value;

-- name: clocks
SELECT seq, clock FROM history WHERE run = :no AND seq > :after AND seq <= :until ORDER BY seq;

-- name: saved_views
SELECT key, value FROM meta WHERE substr(key, 1, :length) = :prefix ORDER BY key;

-- name: forget_view
DELETE FROM meta WHERE key = :key;

-- name: watch
INSERT INTO watchers (id, app, until) VALUES (:id, :app, :until)
ON CONFLICT (id) DO UPDATE SET until = excluded.until;

-- name: watch_no_more
DELETE FROM watchers WHERE id = :id OR until < :now;

-- name: anybody_watches
SELECT 1 FROM watchers WHERE app = :app AND until >= :now LIMIT 1;

-- name: publish
INSERT INTO telemetry (app, ts, body) VALUES (:app, :now, :body) RETURNING id;

-- name: forget_published
-- A ring: what is old, and all but the last so many.
DELETE FROM telemetry WHERE id <= :before OR ts < :long_ago;

-- name: newest_published
SELECT coalesce(max(id), 0) FROM telemetry;

-- name: published
SELECT id, CASE WHEN app = :app THEN body END FROM telemetry WHERE id > :after ORDER BY id LIMIT :limit;

-- name: recorded
-- The events of one run from one number to another, with the columns that say where they were written.
SELECT seq, worker, ts, clock, payload FROM history WHERE run = :no AND seq >= :first AND seq <= :last ORDER BY seq;

-- name: rows_by_number
SELECT {columns} FROM runs WHERE app = :app AND no {numbered nos};

-- name: backlog
-- Counted up to a bound: nobody counts all of very many.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM runs WHERE app = :app AND status = 'WAITING' AND owner IS NULL LIMIT :most) w),
    (SELECT count(*) FROM (SELECT 1 FROM runs WHERE app = :app AND owner IS NULL AND wake_at <= :now LIMIT :most) d),
    (SELECT min(wake_at) FROM runs WHERE app = :app AND owner IS NULL AND wake_at <= :now),
    (SELECT count(*) FROM (
        SELECT 1 FROM inbox i {ordered_join} runs r ON r.no = i.run WHERE r.app = :app LIMIT :most) m);
