"""The operator for PyTorch on a GPU: the emulator's bits, on PyTorch's stream and memory. The checks that need no GPU:
tests/executor/torch."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import LaunchError
from ptxgen.errors import ArgumentError
from ptxgen.formats import FORMATS

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed (the extra `torch`)")

from executor.torch import GgufLinear, gguf_linear  # noqa: E402

pytestmark = pytest.mark.gpu

N, K = 512, 1024
CYCLES = 200_000_000
"""How long PyTorch's stream sleeps: 0.1 s at 2 GHz, longer than all that the host does meanwhile."""


@pytest.fixture(autouse=True)
def usual_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one row in their form for several, whose bits every device has."""
    monkeypatch.setenv("PTXGEN_TUNING", "0")
    monkeypatch.setattr("executor.torch.executors._opened", type("Opened", (), {})())


def blocks(format: str) -> NDArray[np.uint8]:
    return FORMATS[format].random_blocks(np.random.default_rng(3), N, K)


def layer(format: str = "Q4_K") -> Any:
    return GgufLinear(torch.from_numpy(blocks(format)), format).to("cuda")


def values(*shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(4).standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K", "Q8_0", "F16"])
@pytest.mark.parametrize("shape", [(K,), (3, K), (2, 9, K)])
def test_the_bits_are_the_emulators(format: str, shape: tuple[int, ...]) -> None:
    x, one = values(*shape), layer(format)
    made = one(x.cuda())
    assert made.device.type == "cuda"
    assert torch.equal(made.cpu(), one.cpu()(x))


@pytest.mark.parametrize("side", [True, False], ids=["side stream", "default stream"])
def test_it_runs_in_the_order_of_the_current_stream_and_the_host_does_not_wait(side: bool) -> None:
    one, given, x = layer(), values(3, K).cuda(), torch.zeros(3, K, device="cuda")
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        expected = one(given) * 2  # kernels are loaded and memory is taken when they are first needed
        made = one(given) * 2
        torch.cuda.synchronize()
        del made
        torch.cuda._sleep(CYCLES)
        x.copy_(given)
        made = one(x) * 2
        assert not stream.query(), "the host waited, or the sleep was too short for this test"
    stream.synchronize()
    assert torch.equal(made, expected)


def test_memory_goes_back_to_pytorch_at_once() -> None:
    one, x = layer(), values(64, K).cuda()
    one(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        one(one.weight.new_zeros(64, K, dtype=torch.float32) + x)
    del x
    gc.collect()
    assert torch.cuda.memory_allocated() < before


def test_a_compiled_model_has_the_bits_of_the_eager_one() -> None:
    one, x = layer(), values(5, K).cuda()
    compiled = torch.compile(lambda x: torch.relu(one(x)) * 2, fullgraph=True)
    assert torch.equal(compiled(x), torch.relu(one(x)) * 2)


def test_it_stays_out_of_the_graphs_of_a_compiled_model() -> None:
    one, x = layer(), values(5, K).cuda()
    compiled = torch.compile(lambda x: torch.relu(one(x + 1)) * 2, fullgraph=True, mode="reduce-overhead")
    expected = torch.relu(one(x + 1)) * 2
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(compiled(x), expected)


def test_inside_a_graph_of_pytorchs_it_is_refused() -> None:
    one, x = layer(), values(5, K).cuda()
    one(x.add_(0))
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        x.add_(0)
        with pytest.raises(LaunchError, match="is being captured by another library"):
            one(x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_current_device_stays_what_it_was() -> None:
    one, x = layer().to("cuda:1"), values(3, K)
    made = one(x.to("cuda:1"))
    assert torch.cuda.current_device() == 0
    assert torch.equal(made.cpu(), layer()(x.cuda()).cpu())
    assert float(torch.ones(3, device="cuda").sum()) == 3


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(ArgumentError, match="x is on cpu, weight on cuda:0; must be on one device"):
        gguf_linear(values(K), layer().weight, "Q4_K")
