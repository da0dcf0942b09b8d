"""One executor belongs to one thread at a time, and one sequence of a model to one call: everybody else is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor import CudaExecutor
from executor.base.errors import DeviceError, ModelError
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.errors import PtxGenError
from tests.executor.launch.kernels import Accumulate
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

ONES = np.ones(256, np.float32)


def on_another_thread(do: Callable[[], Any]) -> BaseException | None:
    """What it raised there."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            do()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work, name="other")
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.fixture
def executor(executor: CudaExecutor) -> CudaExecutor:
    raw = np.random.default_rng(0).integers(0, 64, (256, 144), np.uint8)
    executor.load_weight("w", raw, "Q4_K", (256, 256))
    return executor


@pytest.fixture
def model(executor: CudaExecutor, tmp_path: Path) -> LanguageModel:
    path = write_model(tmp_path / "m.gguf", types=Q.Q4_K, layers=1, hidden=256, heads=4, ff=256, context=64)
    return executor.load_model(path)


def test_every_way_to_use_an_executor_is_refused_on_another_thread(executor: CudaExecutor, model: LanguageModel) -> None:
    x, y = executor.buffer(ONES), executor.zeros(256)
    plan = executor.launcher.prepare(Accumulate(n=256), total=y, x=x)
    with executor.capture() as graph:
        plan()
    ways: dict[str, Callable[[], Any]] = {
        "a GEMV": lambda: executor.q4k_gemv_into("w", x, y, 256, 256),
        "a new buffer": lambda: executor.buffer(ONES),
        "an upload": lambda: x.upload(ONES),
        "a download": x.to_numpy,
        "free": x.free,
        "a plan": plan,
        "a graph": graph.replay,
        "generate": lambda: model.generate([1], max_tokens=2, sampler=Sampler()),
        "logits": lambda: model.logits([1]),
        "a token": lambda: executor.replay_decode(model, 1),
        "closing the model": model.close,
        "close": executor.close,
        "a weight": lambda: executor.load_weight("v", ONES, "F32", (256,)),
        "waiting": executor.device.synchronize,
    }
    for way, use in ways.items():
        error = on_another_thread(use)
        assert isinstance(error, DeviceError), way
        assert "belongs to thread MainThread, and" in str(error), way
        assert "was attempted on thread other; give each thread an executor of its own, or call take_over()" in str(error), way
    assert y.to_numpy().tolist() == [0] * 256
    assert x.alive
    assert not model.closed
    assert model.generate([1], max_tokens=2, sampler=Sampler()).tokens


def test_a_thread_may_take_the_executor_over(executor: CudaExecutor, model: LanguageModel) -> None:
    expected = model.generate([1], max_tokens=5, sampler=Sampler()).tokens

    def work() -> None:
        executor.take_over()
        assert model.generate([1], max_tokens=5, sampler=Sampler()).tokens == expected

    assert on_another_thread(work) is None
    with pytest.raises(DeviceError, match=r"belongs to thread .*, and .* was attempted on thread MainThread"):
        executor.zeros(3)
    executor.take_over()
    assert model.generate([1], max_tokens=5, sampler=Sampler()).tokens == expected


def test_nobody_takes_over_while_a_kernel_runs(executor: CudaExecutor) -> None:
    with executor.device.owner.running():
        error = on_another_thread(executor.take_over)
        assert "is running a kernel for thread MainThread; take it over when that has ended" in str(error)
        executor.take_over()  # by its own thread, as after an interrupt


@pytest.mark.parametrize("inner", ["generate", "logits", "close", "replay"])
def test_a_model_is_not_used_while_it_generates(inner: str, executor: CudaExecutor, model: LanguageModel) -> None:
    uses: dict[str, Callable[[], Any]] = {
        "generate": lambda: model.generate([1], max_tokens=2, sampler=Sampler()),
        "logits": lambda: model.logits([1]),
        "close": model.close,
        "replay": lambda: executor.replay_decode(model, 1),
    }
    expected = model.generate([1, 2], max_tokens=6, sampler=Sampler()).tokens
    told: list[str] = []

    def on_token(token: int) -> None:
        with pytest.raises(ModelError, match=r"the model is generating; .* must wait until that has ended") as caught:
            uses[inner]()
        told.append(str(caught.value))

    assert model.generate([1, 2], max_tokens=6, sampler=Sampler(), on_token=on_token).tokens == expected
    assert len(told) == len(expected)


def test_a_model_is_free_again_after_a_generation_that_failed(model: LanguageModel) -> None:
    def fail(token: int) -> None:
        raise KeyboardInterrupt

    expected = model.generate([1, 2], max_tokens=3, sampler=Sampler()).tokens
    with pytest.raises(KeyboardInterrupt):
        model.generate([1, 2], max_tokens=3, sampler=Sampler(), on_token=fail)
    assert model.generate([1, 2], max_tokens=3, sampler=Sampler()).tokens == expected


def test_an_executor_closed_in_a_callback_ends_the_generation_with_an_error(
    executor: CudaExecutor, model: LanguageModel
) -> None:
    with pytest.raises(PtxGenError, match=r"is closed|was freed"):
        model.generate([1, 2], max_tokens=6, sampler=Sampler(), on_token=lambda token: executor.close())
