"""Whatever the code of users raises or returns is an outcome, in every pool alike."""

from __future__ import annotations

import logging
from pathlib import Path

import executor_steps
import pytest
from executor_bench import Bench, open_bench

from holdfast.codec import Codec
from holdfast.core.definitions import StepOptions
from holdfast.errors import FatalError, RetryableError
from holdfast.executors.runner import LoggedContext, Runner
from holdfast.executors.surroundings import Surroundings

WAYS = [
    pytest.param("", "thread", id="thread"),
    pytest.param("a", "thread", id="loop"),
    pytest.param("", "process", id="process"),
    pytest.param("a", "process", id="process-loop"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> object:
    with open_bench(tmp_path_factory.mktemp("bench"), threads=1, processes=1) as opened:
        yield opened


@pytest.mark.parametrize("kind", executor_steps.RAISED)
@pytest.mark.parametrize(("prefix", "pool"), WAYS)
def test_whatever_a_step_raises_is_its_recorded_failure(bench: Bench, prefix: str, pool: str, kind: str) -> None:
    outcome = bench.outcome(bench.submit(f"{prefix}raises", kind, pool=pool))
    assert outcome.encoded_error is not None
    assert outcome.error is not None
    codec = executor_steps.app.codec
    assert kind in codec.error_text(outcome.encoded_error)
    str(codec.decode_error(outcome.encoded_error))  # what workflow code will see
    StepOptions(retry_for=(KeyError,)).retry_delay(outcome.error, 1, 0.5)  # what the engine does with it
    assert bench.result(bench.submit("plain", 1, pool=pool)) == 2, "the next one is executed"
    assert bench.result(bench.submit("on_loop", 1, pool=pool)) == 2


@pytest.mark.parametrize("kind", executor_steps.RETURNED)
@pytest.mark.parametrize(("prefix", "pool"), WAYS)
def test_a_result_that_can_not_be_encoded_is_a_recorded_failure(
    bench: Bench, prefix: str, pool: str, kind: str
) -> None:
    outcome = bench.outcome(bench.submit(f"{prefix}returns", kind, pool=pool))
    if kind == "TextRaises":  # an exception is a value too, and this one is recorded without its text
        assert outcome.encoded_error is None
    else:
        assert outcome.encoded_error is not None
    assert bench.result(bench.submit("plain", 1, pool=pool)) == 2


@pytest.mark.parametrize(("prefix", "pool"), WAYS)
def test_a_delay_that_can_not_be_read_is_no_delay_and_the_step_is_tried_again(
    bench: Bench, prefix: str, pool: str
) -> None:
    for kind in ("DelayRaises", "Forgetful"):
        outcome = bench.outcome(bench.submit(f"{prefix}raises", kind, pool=pool))
        assert outcome.retry_after is None
        assert isinstance(outcome.error, RetryableError)


def test_a_codec_whose_transform_fails_costs_a_step_its_result_and_not_its_outcome(tmp_path: Path) -> None:
    class Broken:
        name = "broken"

        def encode(self, data: bytes) -> bytes:
            raise executor_steps.Harm("the key service is away")

        def decode(self, data: bytes) -> bytes:
            return data

    codec = Codec(transforms=[Broken()])
    runner = Runner(codec, Surroundings())
    bench = Bench(tmp_path)
    context = LoggedContext(bench.attempt("plain", 1), codec, lambda *told: None, 0)
    context.hear(logging.makeLogRecord({"msg": "secret line", "levelno": logging.INFO}))
    outcome = runner.succeeded(executor_steps.app.definitions.find_step("plain"), context, "secret result")
    assert outcome.encoded_error is not None
    assert outcome.logs is None
    assert b"secret" not in outcome.encoded_error
    assert "could not be recorded" in codec.error_text(outcome.encoded_error)
    outcome = runner.failed(context, FatalError("secret text"))
    assert outcome.encoded_error is not None
    assert b"secret" not in outcome.encoded_error, "what was to be sealed is not written unsealed"
    assert isinstance(outcome.error, FatalError)
