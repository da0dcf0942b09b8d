"""Sequences of a scheduler that are cancelled or fail, by a callback, a step or their device: the others never notice."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from executor.base.errors import DeviceError, DeviceFailed, ModelError
from executor.model.sampling import Sampler
from executor.model.scheduling.request import Request
from executor.model.step import Row
from ptxgen.kernels.token.argmax import NOT_A_NUMBER
from tests.executor.model.fake_engine import FakeEngine, alone, fresh, greedy

LONG = list(range(30))


def test_a_sequence_can_be_cancelled_at_any_time_and_keeps_what_it_has() -> None:
    engine = FakeEngine(slots=2)
    scheduler = fresh(engine)
    requests = [greedy(scheduler, [token], 6) for token in range(4)]
    scheduler.step()
    scheduler.step()
    assert [request.cancel() for request in requests[1:]] == [True] * 3
    assert not requests[1].cancel()
    scheduler.run()
    assert not requests[0].cancel()
    assert [request.stopped for request in requests] == ["length", "cancelled", "cancelled", "cancelled"]
    assert [len(request.tokens) for request in requests] == [6, 2, 0, 0]
    assert requests[1].result().tokens == tuple(alone(engine, [1], 2))
    assert scheduler.pool.held == 0


def test_a_callback_that_raises_fails_its_own_request_only() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)

    def fail(token: int) -> None:
        raise OSError("the pipe is closed")

    good = greedy(scheduler, LONG[:4])
    bad = greedy(scheduler, LONG[2:6], on_token=fail)
    at_the_end = greedy(scheduler, LONG[2:6], 1, on_token=fail)
    scheduler.run()
    assert good.tokens == alone(engine, LONG[:4], 8)
    for request in (bad, at_the_end):
        assert (request.stopped, len(request.tokens)) == ("failed", 1)
        with pytest.raises(OSError, match="the pipe is closed"):
            request.result()
    assert scheduler.status().finished == {"length": 1, "failed": 2}
    assert scheduler.pool.held == 0


def test_a_callback_may_cancel_and_submit_but_not_step() -> None:
    engine = FakeEngine()
    scheduler = fresh(engine)
    requests: list[Request] = []

    def act(token: int) -> None:
        requests[1].cancel()
        requests.append(greedy(scheduler, LONG[5:9], 3))
        with pytest.raises(ModelError, match="in the middle of a step"):
            scheduler.step()
        requests[0].cancel()

    requests += [greedy(scheduler, LONG[:4], on_token=act), greedy(scheduler, LONG[2:6])]
    scheduler.run()
    assert [(request.stopped, len(request.tokens)) for request in requests] == [
        ("cancelled", 1), ("cancelled", 0), ("length", 3),
    ]  # fmt: skip


def raise_once(engine: FakeEngine, error: BaseException, at: int) -> None:
    calls = iter(range(1000))

    def fail(rows: Sequence[Row]) -> None:
        if next(calls) == at:
            raise error

    engine.before_step = fail


def test_a_step_that_fails_fails_those_that_were_in_it_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(slots=2)
    scheduler = fresh(engine)
    requests = [greedy(scheduler, LONG[at : at + 4]) for at in range(3)]
    raise_once(engine, DeviceError("no room"), at=2)
    scheduler.run()
    assert [request.stopped for request in requests] == ["failed", "failed", "length"]
    assert requests[2].tokens == alone(engine, LONG[2:6], 8)
    with pytest.raises(DeviceError, match="no room"):
        requests[0].result()
    assert len(requests[0].tokens) == 2
    assert scheduler.pool.held == 0
    assert "request 1 failed: no room" in caplog.text


def test_after_a_device_has_failed_nothing_runs_and_all_requests_say_why() -> None:
    engine = FakeEngine(slots=1)
    scheduler = fresh(engine)
    requests = [greedy(scheduler, LONG[:4]) for _ in range(2)]
    raise_once(engine, DeviceFailed("cuda:0 has failed", "a trap"), at=1)
    scheduler.run()
    assert [request.stopped for request in requests] == ["failed", "failed"]
    with pytest.raises(ModelError, match="the scheduler takes no requests: its device has failed: cuda:0 has failed"):
        greedy(scheduler, LONG[:4])
    assert not scheduler.step()


def test_an_interrupt_passes_through_and_the_step_is_done_again() -> None:
    engine = FakeEngine()

    def interrupt(token: int) -> None:
        if len(request.tokens) == 5:
            raise KeyboardInterrupt

    scheduler = fresh(engine)
    request = greedy(scheduler, LONG[:4], on_token=interrupt)
    other = greedy(scheduler, LONG[4:9], sampler=Sampler(1.0, seed=1))
    raise_once(engine, KeyboardInterrupt(), at=2)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            scheduler.run()
    scheduler.run()
    assert request.tokens == alone(engine, LONG[:4], 8)
    undisturbed = greedy(fresh(FakeEngine()), LONG[4:9], sampler=Sampler(1.0, seed=1))
    assert other.tokens == list(undisturbed.result().tokens)


def test_logits_that_hold_nan_fail_that_sequence_alone() -> None:
    engine = FakeEngine()
    good, bad = LONG[:4], LONG[2:6]
    expected = alone(engine, good, 8)
    doomed = alone(engine, bad, 3)[2]
    choose = engine.choose
    engine.choose = lambda value: NOT_A_NUMBER if choose(value) == doomed and engine.steps[-1][-1].slot != 0 else choose(value)
    scheduler = fresh(engine)
    requests = [greedy(scheduler, good), greedy(scheduler, bad)]
    with pytest.raises(ModelError, match="the logits hold NaN"):
        requests[1].result()
    engine.choose = choose
    assert list(requests[0].result().tokens) == expected
    assert requests[1].tokens == doomed_prefix(engine, bad, doomed)


def doomed_prefix(engine: FakeEngine, prompt: list[int], doomed: int) -> list[int]:
    tokens = alone(engine, prompt, 3)
    return tokens[: tokens.index(doomed)]


def test_another_thread_is_refused() -> None:
    scheduler = fresh(FakeEngine())
    request = greedy(scheduler, LONG[:4])
    faults: list[str] = []

    def use() -> None:
        for call in (scheduler.step, request.cancel, scheduler.close, lambda: greedy(scheduler, LONG[:4])):
            try:
                call()
            except DeviceError as error:
                faults.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(faults) == 4
    assert all("the scheduler belongs to thread MainThread" in fault for fault in faults)


def test_closing_cancels_all_and_nothing_more_is_taken() -> None:
    with fresh(FakeEngine(slots=1)) as scheduler:
        requests = [greedy(scheduler, LONG[:4]) for _ in range(2)]
        scheduler.step()
    assert [request.stopped for request in requests] == ["cancelled"] * 2
    assert (scheduler.pool.held, scheduler.pool.idle) == (0, 0)
    with pytest.raises(ModelError, match="takes no requests: it is closed"):
        greedy(scheduler, LONG[:4])
