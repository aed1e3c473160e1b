-- The same words as in the queries that insert, which have to name this index exactly.
DROP INDEX subscriptions_once;
CREATE UNIQUE INDEX subscriptions_once ON subscriptions (app, event, target, coalesce(run, 0), cmd);
