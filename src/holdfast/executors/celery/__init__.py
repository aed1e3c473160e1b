"""Steps on the pools of Celery workers. Celery carries the tokens of attempts and lends its threads and processes; what
is to be executed, and what became of it, is in the store.

`attachment.py` joins an app to a Celery app; `broker.py` and `carrier.py` are the side of the engine, `pool.py` that of
the pool, `durable.py` is about tasks that were there before.
"""
