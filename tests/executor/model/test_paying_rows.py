"""How many sequences have rows in a step: more never make fewer tokens a second, by what was measured on each GPU."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.choice.choice import GpuProfile
from executor.choice.store import shipped_for
from executor.choice.thresholds import TURN
from executor.device.gpu import GpuModel
from executor.model.paying_rows import MatrixProduct, StepCost, paying
from executor.model.scheduling.scheduler import Scheduler
from ptxgen.formats import ALL
from ptxgen.kernels.known_models import KNOWN_MODELS
from tests.executor.model.fake_engine import FakeEngine, Letters
from tests.switched import switched

MOST = 256
GPUS = {
    "H200": GpuModel("NVIDIA H200", "sm_90", 132),
    "H100": GpuModel("NVIDIA H100 80GB HBM3", "sm_90", 132),
    "unknown": GpuModel("NVIDIA L4", "sm_89", 58),
}
FORMATS = {format.id: format for format in ALL.values()}


def step(name: str, gpu: str, precision: str, plain: str) -> StepCost:
    """Of a model whose matrices have a format, but for the head and half of the values and downs, which have Q6_K."""
    one, tables = KNOWN_MODELS[name], shipped_for(GPUS[gpu])
    profile = switched(GpuProfile(precision, tables=tables), repack=bool(tables))
    (_, q), (_, kv), (_, hidden), (_, ff), _, (_, vocab) = one.matrices()
    shapes = ((hidden, q), (hidden, kv), (hidden, kv), (q, hidden), (hidden, ff), (hidden, ff), (ff, hidden))
    products = Counter[MatrixProduct]()
    for kind, matrices in ((plain, shapes), ("q6k", ((hidden, kv), (ff, hidden))), ("q6k", ((hidden, vocab),))):
        products.update(MatrixProduct(profile.at_load(FORMATS[kind], k), k, n) for k, n in matrices)
    return StepCost(products, profile)


@pytest.mark.parametrize("precision", ["accurate", "fast"])
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("name", "plain"), [("llama-3.1-8b", "q4k"), ("llama-3.1-70b", "q4k"), ("qwen2.5-7b", "q8_0")])
def test_more_sequences_never_make_fewer_tokens_a_second(name: str, plain: str, gpu: str, precision: str) -> None:
    cost = step(name, gpu, precision, plain)
    rows = [paying(cost.seconds, waiting) for waiting in range(1, MOST + 1)]
    rates = [count / cost.seconds(1 << (count - 1).bit_length()) for count in rows]
    assert rates == sorted(rates)
    assert all(1 <= count <= waiting for waiting, count in enumerate(rows, 1))
    for power in range(3, MOST.bit_length() - 1):  # whole tiles of 8 rows
        assert cost.seconds(2 << power) <= 2 * cost.seconds(1 << power)


@given(times=st.lists(st.floats(1e-6, 1.0), min_size=9, max_size=9), waiting=st.integers(1, MOST - 1))
def test_whatever_steps_take_one_more_sequence_makes_no_fewer_tokens(times: list[float], waiting: int) -> None:
    def seconds(rows: int) -> float:
        return times[(rows - 1).bit_length()]

    fewer, more = (paying(seconds, count) for count in (waiting, waiting + 1))
    assert more / seconds(more) >= fewer / seconds(fewer)


def test_sequences_take_turns_where_fewer_rows_pay_and_answer_as_alone() -> None:
    """Five, of which two have rows; none is more than two turns behind another, and within a turn steps start ahead."""
    engine = FakeEngine(slots=5)
    engine.paying_rows = lambda waiting: min(waiting, 2)
    prompts = [[number, 7] for number in range(5)]
    with Scheduler(engine, Letters()) as scheduler:
        requests = [scheduler.submit(prompt, max_tokens=40, stop_tokens=()) for prompt in prompts]
        while scheduler.step():
            running = [len(request.tokens) for request in requests if request.state == "running"]
            assert not running or max(running) - min(running) <= 2 * TURN
    for prompt, request in zip(prompts, requests, strict=True):
        alone = engine.alone(prompt)
        assert request.tokens == [next(alone) for _ in range(40)]
    decoding = [rows for rows in engine.steps if all(row.position > 1 for row in rows)]
    assert max(map(len, decoding)) == 2
    assert engine.order.count("ahead") > 0.7 * len(decoding)
