"""Work on streams of PyTorch and cuda-python, for real. The checks that need no GPU:
tests/executor/memory/test_streams_cuda.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from executor import CudaExecutor, GpuProfile
from executor.base.errors import DeviceError, LaunchError
from executor.memory.interop import as_buffer
from tests.executor.launch.kernels import Accumulate, Scale
from tests.synthetic import write_model

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.gpu

N = 1 << 20
CYCLES = 200_000_000
"""How long PyTorch's stream sleeps: 0.1 s at 2 GHz, longer than all that the host does meanwhile."""
LAUNCHES = 200


@pytest.fixture
def executor() -> Iterator[CudaExecutor]:
    with CudaExecutor("cuda:0", profile=GpuProfile()) as made:
        yield made


STREAMS: dict[str, Callable[[Any], Any]] = {
    "PyTorch's": lambda stream: stream,
    "a handle": lambda stream: stream.cuda_stream,
    "cuda-python's": lambda stream: driver.CUstream(stream.cuda_stream),
}


@pytest.mark.parametrize("side", [True, False], ids=["side stream", "default stream"])
@pytest.mark.parametrize("kind", STREAMS)
def test_work_in_the_block_runs_in_the_order_of_the_callers_stream(executor: CudaExecutor, kind: str, side: bool) -> None:
    x, early, total = torch.zeros(N, device="cuda:0"), executor.zeros(N), executor.zeros(N)
    ones = np.ones(N, np.float32)
    executor.launcher(Accumulate(n=N), total=total, x=executor.zeros(N))
    executor.launcher(Scale(n=N), y=early, x=total, factor=1.0, offset=0)
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    torch.cuda._sleep(1)
    torch.from_dlpack(total).mul(2)  # PyTorch loads a kernel when it is first used, and waits
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        ours = as_buffer(executor.device, x)  # taken before the sleep, so that only the block orders anything
        seen = torch.from_dlpack(total)
        torch.cuda._sleep(CYCLES)
        x.fill_(1)
        executor.launcher(Scale(n=N), y=early, x=ours, factor=1.0, offset=0)  # on the executor's own stream: too early
        with executor.using(STREAMS[kind](stream)):
            assert executor.stream == (stream.cuda_stream or 1)
            for _ in range(LAUNCHES):
                executor.launcher(Accumulate(n=N), total=total, x=ours)
        doubled = seen * 2
        assert not stream.query(), "the host waited, or the sleep was too short for this test"
        executor.residual_add(total, executor.buffer(ones))  # on its own stream again, after the block
    stream.synchronize()
    assert bool((doubled == 2 * LAUNCHES).all())
    assert not early.to_numpy().any()  # so the order was not there by chance
    assert (total.to_numpy() == LAUNCHES + 1).all()


def test_graphs_copies_and_results_are_those_of_the_own_stream(executor: CudaExecutor) -> None:
    values = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    x, out = executor.zeros(64, 128), executor.zeros(64, 128)
    with executor.capture() as graph:
        executor.silu(x, out=out)
    x.upload(values)
    graph.replay()
    expected = out.to_numpy()
    stream = torch.cuda.Stream()
    with executor.using(stream):
        for _ in range(50):
            x.upload(values)
            out.fill()
            graph.replay()
            np.testing.assert_array_equal(out.to_numpy(), expected)
    large = np.arange(40 << 20, dtype=np.uint8)
    with executor.using(stream):  # through pinned memory
        buffer = executor.buffer(large)
        np.testing.assert_array_equal(buffer.to_numpy(), large)
    np.testing.assert_array_equal(buffer.to_numpy(), large)


def test_a_model_generates_on_the_callers_stream(executor: CudaExecutor, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=2, hidden=256, heads=4, ff=512, context=64)
    with executor.load_model(path) as model:
        expected = model.generate([1, 2, 3], max_tokens=16).tokens
        with executor.using(torch.cuda.Stream()):
            model.forget()
            assert model.generate([1, 2, 3], max_tokens=16).tokens == expected
        model.forget()
        assert model.generate([1, 2, 3], max_tokens=16).tokens == expected


@pytest.mark.parametrize("side", [True, False], ids=["side stream", "default stream"])
def test_an_executor_on_pytorchs_stream_needs_no_order(side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with CudaExecutor("cuda:0", profile=GpuProfile(), stream=stream) as executor, torch.cuda.stream(stream):
        a, b, made = (torch.full((N,), value, device="cuda:0") for value in (1.0, 2.0, 0.0))
        executor.multiply(a, b, out=made)
        _ = made * 2  # kernels are loaded when they are first used
        torch.cuda.synchronize()
        torch.cuda._sleep(CYCLES)
        a.fill_(3)
        executor.multiply(a, b, out=made)
        doubled = made * 2
        assert not stream.query(), "the host waited, or the sleep was too short for this test"
        assert bool((doubled == 12).all())
    stream.synchronize()  # it is PyTorch's still
    assert float(torch.ones(3, device="cuda:0").sum()) == 3


def test_a_stream_that_is_captured_is_refused_and_its_capture_goes_on(executor: CudaExecutor) -> None:
    x, y = torch.ones(N, device="cuda:0"), torch.zeros(N, device="cuda:0")
    y.mul_(1)  # PyTorch loads a kernel when it is first used
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y.copy_(x)
        current = torch.cuda.current_stream()
        with pytest.raises(LaunchError, match="is being captured by another library"), executor.using(current):
            pytest.fail("the block was entered")
        y.mul_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 3).all())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_stream_of_another_gpu_is_refused(executor: CudaExecutor) -> None:
    with pytest.raises(DeviceError, match="is of another GPU or context"), executor.using(torch.cuda.Stream("cuda:1")):
        pytest.fail("the block was entered")
