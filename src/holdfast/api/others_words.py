"""What other systems call the options of a step or workflow, for whoever brings code along."""

from __future__ import annotations

import difflib
from collections.abc import Collection

WORDS = {
    "retries": "max_retries",
    "max_attempts": "max_retries, which doesn't count the first attempt",
    "retry_delay_seconds": "retry_delay",
    "default_retry_delay": "retry_delay",
    "interval_seconds": "retry_delay",
    "retry_backoff": 'retry_delay="exponential"',
    "backoff_rate": 'retry_delay="exponential"',
    "backoff_factor": 'retry_delay="exponential"',
    "retry_backoff_max": "retry_max_delay",
    "retry_jitter_factor": "retry_jitter",
    "autoretry_for": "retry_for",
    "dont_autoretry_for": "no_retry_for",
    "retry_kwargs": "max_retries and retry_delay",
    "retry_policy": "max_retries, retry_delay and retry_for",
    "retry_condition_fn": "retry_for and no_retry_for, or raise FatalError in the step",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "timeout_seconds": "timeout",
    "execution_timeout": "timeout",
    "start_to_close_timeout": "timeout",
    "schedule_to_close_timeout": "retry_within",
    "heartbeat_timeout": "stall_timeout",
    "task_queue": "queue",
    "cron": "schedule",
    "bind": "this_step, which tells a step of itself; raise RetryableError in place of self.retry",
    "acks_late": "nothing: a step whose worker is lost is executed again, unless it is at_most_once",
    "persist_result": "nothing: every result is recorded",
    "ignore_result": "nothing: every result is recorded",
}


def hint_at(word: str, known: Collection[str]) -> str:
    """What is meant by an option that there isn't, if that can be told: a sentence to go on with."""
    if word in WORDS:
        return f"; here that is {WORDS[word]}"
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
