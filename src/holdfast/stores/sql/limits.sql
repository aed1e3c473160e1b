-- name: declare_limit
-- Tells the name if it is new, or not what it was.
INSERT INTO limits (app, name, keyed, of_runs, concurrency, rate, period, burst)
VALUES (:app, :name, :keyed, :of_runs, :concurrency, :rate, :period, :burst)
ON CONFLICT (app, name) DO UPDATE
SET keyed = excluded.keyed, of_runs = excluded.of_runs, concurrency = excluded.concurrency, rate = excluded.rate,
    period = excluded.period, burst = excluded.burst
WHERE limits.keyed <> excluded.keyed OR limits.of_runs <> excluded.of_runs
   OR limits.concurrency <> excluded.concurrency OR limits.rate <> excluded.rate
   OR limits.period <> excluded.period OR limits.burst <> excluded.burst
RETURNING name;

-- name: lock_limit
-- Whoever grants slots of a limit has its row until the end: what is counted after that stays true.
SELECT name, keyed, of_runs, concurrency, rate, period, burst FROM limits WHERE app = :app AND name = :name {lock};

-- part: waiting
SELECT s.no, s.key, s.fair, s.run, s.cmd, s.holder, s.token, s.rest, s.letter, s.refusal, s.eviction, s.control,
       s.asked_at, r.owner
FROM slots s {ordered_join} runs r ON r.no = s.run

-- name: newcomers
-- Whoever leaves its line just now has its row locked, and is left out: it would have to be waited for.
{waiting}
WHERE s.app = :app AND s.lim = :name AND s.granted = 0 AND s.turn = 0 ORDER BY s.no LIMIT :limit {skip_slots};

-- name: heads
-- The first of those that wait in a line.
{waiting}
WHERE s.app = :app AND s.lim = :name AND s.key = :key AND s.granted = 0 AND s.turn > 0 AND s.evicted = 0
ORDER BY s.turn, s.no LIMIT :limit {skip_slots};

-- name: lines
-- How many have a slot, the turn of the first who waits, and when the next one could begin.
SELECT k.value,
    (SELECT count(*) FROM slots s WHERE s.app = :app AND s.lim = :name AND s.key = k.value AND s.granted = 1),
    (SELECT s.turn FROM slots s
     WHERE s.app = :app AND s.lim = :name AND s.key = k.value AND s.granted = 0 AND s.turn > 0 ORDER BY s.turn LIMIT 1),
    (SELECT l.next FROM lines l WHERE l.app = :app AND l.lim = :name AND l.key = k.value)
FROM {each keys} k;

-- name: last_turns
-- The last turn that each of those has who take turns in a line: keys in lines of their own, or parts of one line.
SELECT k.value, (
    SELECT s.turn FROM slots s
    WHERE s.app = :app AND s.lim = :name AND s.granted = 0
      AND s.key = CASE WHEN :keyed = 1 THEN k.value ELSE '' END AND s.fair = CASE WHEN :keyed = 1 THEN '' ELSE k.value END
    ORDER BY s.turn DESC LIMIT 1)
FROM {each keys} k;

-- name: waiting_keys
SELECT DISTINCT key FROM slots WHERE app = :app AND lim = :name AND granted = 0;

-- name: grant
UPDATE slots SET granted = 1, granted_at = :now WHERE no {numbered nos};

-- name: refuse
DELETE FROM slots WHERE no {numbered nos};

-- name: surplus
-- All but the newest, of those in a line, who have not been told yet.
SELECT no, run FROM (
    SELECT no, run, evicted FROM slots WHERE app = :app AND lim = :name AND key = :key
    ORDER BY no DESC LIMIT 1000000 OFFSET :kept) older
WHERE evicted = 0 ORDER BY no;

-- name: evict
UPDATE slots SET evicted = 1 WHERE no {numbered nos};

-- name: set_next
INSERT INTO lines (app, lim, key, next) VALUES (:app, :name, :key, :next)
ON CONFLICT (app, lim, key) DO UPDATE SET next = excluded.next;

-- name: forget_lines
-- A line whose time has passed is as one in which nothing ever was.
DELETE FROM lines WHERE app = :app AND lim = :name AND next < :now;

-- name: forget_ended
-- Nothing should be left by runs that have ended. Of a run that is held, a step may have ended elsewhere.
DELETE FROM slots
WHERE app = :app AND lim = :name
  AND (NOT EXISTS (SELECT 1 FROM runs r WHERE r.no = slots.run AND r.finished_at IS NULL)
       OR EXISTS (SELECT 1 FROM runs r JOIN inbox i ON i.run = r.no
                  WHERE r.no = slots.run AND r.held = 1 AND r.owner IS NULL AND slots.cmd <> ''
                    AND i.kind = 'outcome' AND i.dedupe LIKE 'outcome:' || slots.cmd || ':%'));

-- name: give_back
DELETE FROM slots WHERE holder {among holders} RETURNING lim, key, rest;

-- name: give_all_back
DELETE FROM slots WHERE run {numbered nos} RETURNING lim, key, rest;

-- name: give_others_back
DELETE FROM slots
WHERE run = :run AND NOT (cmd {among kept})
  AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.run = slots.run AND a.cmd = slots.cmd)
RETURNING lim, key, rest;

-- name: slots_of_runs
SELECT run, cmd, token, granted, lim, rest FROM slots WHERE run {numbered nos} ORDER BY no;

-- name: places
-- Those that wait first: of each all before it are counted, so not too many of them.
SELECT s.cmd, s.key, s.asked_at, s.granted,
    CASE WHEN s.granted = 1 THEN 0 ELSE (
        SELECT count(*) FROM slots w
        WHERE w.app = s.app AND w.lim = s.lim AND w.key = s.key AND w.granted = 0
          AND (s.turn = 0 OR (w.turn > 0 AND (w.turn < s.turn OR (w.turn = s.turn AND w.no <= s.no))))) END,
    (SELECT count(*) FROM slots h WHERE h.app = s.app AND h.lim = s.lim AND h.key = s.key AND h.granted = 1),
    (SELECT l.next FROM lines l WHERE l.app = s.app AND l.lim = s.lim AND l.key = s.key),
    l.name, l.keyed, l.of_runs, l.concurrency, l.rate, l.period, l.burst
FROM slots s {ordered_join} limits l ON l.app = s.app AND l.name = s.lim
WHERE s.run = :no ORDER BY s.granted, s.no LIMIT :limit;

-- name: select_limits
SELECT name, keyed, of_runs, concurrency, rate, period, burst,
    (SELECT count(*) FROM slots s WHERE s.app = l.app AND s.lim = l.name AND s.granted = 1),
    (SELECT count(*) FROM slots s WHERE s.app = l.app AND s.lim = l.name AND s.granted = 0),
    (SELECT count(DISTINCT s.key) FROM slots s WHERE s.app = l.app AND s.lim = l.name)
FROM limits l WHERE app = :app ORDER BY name;

-- name: busiest_lines
SELECT u.key, u.in_use, u.waiting, (SELECT l.next FROM lines l WHERE l.app = :app AND l.lim = :name AND l.key = u.key)
FROM (
    SELECT key, sum(granted) AS in_use, sum(1 - granted) AS waiting FROM slots
    WHERE app = :app AND lim = :name GROUP BY key) u
ORDER BY u.waiting DESC, u.in_use DESC, u.key LIMIT :limit;
