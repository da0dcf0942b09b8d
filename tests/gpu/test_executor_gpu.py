"""CudaExecutor on a GPU: the layer of Llama-3.2-1B in five ways with the bits of the emulator, GEMVs and feed-forwards too, and
arrays of PyTorch in and out on its stream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.models import MODELS
from executor import CudaExecutor, GpuProfile
from executor.base.errors import LaunchError
from ptxgen.formats import FORMATS
from tests.executor.api.five_ways import FiveWays
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.gpu

S = MODELS["llama-3.2-1b"]
LAYERS, ROOM, POSITIONS = 2, 64, 3
TYPES = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("model") / "layers.gguf",
        types=TYPES,
        layers=LAYERS,
        hidden=S.hidden,
        heads=S.heads,
        kv_heads=S.kv_heads,
        head_dim=S.head_dim,
        ff=S.ff,
        rope_base=S.rope_base,
    )


@pytest.fixture(scope="module")
def gpu(path: Path) -> Iterator[CudaExecutor]:
    with opened("cuda:0", path) as made:
        yield made


def opened(device: str, path: Path) -> CudaExecutor:
    made = CudaExecutor(device, profile=GpuProfile())
    made.load_weights(path)
    made.init_kv_cache(LAYERS, S.heads, S.kv_heads, S.head_dim, ROOM, rope_base=S.rope_base)
    return made


def inputs(count: int) -> list[NDArray[np.float32]]:
    return list(np.random.default_rng(5).standard_normal((count, S.hidden)).astype(np.float32))


def test_five_ways_give_the_bits_of_the_emulator(path: Path, gpu: CudaExecutor) -> None:
    given = inputs(POSITIONS)
    made = FiveWays(gpu, LAYERS, S.hidden, S.ff, S.eps).all(given)
    with opened("emulator", path) as emulator:
        made["emulator"] = FiveWays(emulator, LAYERS, S.hidden, S.ff, S.eps).by_index(given)
    for way, rows in made.items():
        for row, first in zip(rows, made["by_name"], strict=True):
            np.testing.assert_array_equal(row.view(np.uint32), first.view(np.uint32), err_msg=way)


def test_a_replay_gives_the_eager_bits_at_every_position(gpu: CudaExecutor) -> None:
    ways, given = FiveWays(gpu, LAYERS, S.hidden, S.ff, S.eps), inputs(ROOM)
    gpu.sequence.reset()
    eager = ways.in_workspace(given)
    gpu.sequence.reset()
    for position, (left, right) in enumerate(zip(ways.captured(given), eager, strict=True)):
        np.testing.assert_array_equal(left.view(np.uint32), right.view(np.uint32), err_msg=f"position {position}")


@pytest.mark.parametrize("type", FORMATS)
def test_dispatch_gives_the_bits_of_the_emulator(type: str, gpu: CudaExecutor) -> None:
    n, k = 37, 2048
    raw = FORMATS[type].random_blocks(np.random.default_rng(2), n, k)
    x = np.random.default_rng(3).standard_normal(k).astype(np.float32)
    with CudaExecutor("emulator", profile=GpuProfile()) as emulator:
        made = []
        for executor in (gpu, emulator):
            weight, y = executor.load_weight("w", raw, type, (n, k)), executor.zeros(n)
            executor.gemv_dispatch(type, weight, executor.buffer(x), y, n, k)
            made.append(y.to_numpy().view(np.uint32))
    np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("m", [1, 8, 19])
def test_batched_rows_have_the_bits_of_single_ones(m: int, gpu: CudaExecutor) -> None:
    n, k = S.hidden, S.hidden
    x, y = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32), gpu.zeros(n)
    made = gpu.batched_q4k_gemv_cached("blk.0.attn_q.weight", x, None, m, k, n)
    for row, alone in zip(made, x, strict=True):
        gpu.q4k_gemv_into("blk.0.attn_q.weight", gpu.buffer(alone), y, n, k)
        np.testing.assert_array_equal(row.view(np.uint32), y.to_numpy().view(np.uint32))


def test_host_and_device_forms_of_the_ffn_agree(gpu: CudaExecutor) -> None:
    x, names = inputs(1)[0], [f"blk.0.ffn_{role}.weight" for role in ("gate", "up", "down")]
    expected = gpu.fused_ffn_swiglu_host(x, None, names[0], names[1], names[2], S.hidden, S.ff)
    pointers = [gpu.get_quantized_weight_ptr(name) for name in names]
    made = gpu.fused_ffn_swiglu_indexed_gpu(gpu.buffer(x), pointers[0], pointers[1], pointers[2], S.hidden, S.ff)
    np.testing.assert_array_equal(made.to_numpy(), expected)
    assert np.isfinite(gpu.fused_ffn_q4k(x, None, names[1], names[2], S.hidden, S.ff)).all()


def test_bad_pointers_reach_no_launch_and_the_device_lives_on(gpu: CudaExecutor) -> None:
    x, y = gpu.buffer(inputs(1)[0]), gpu.zeros(S.hidden)
    freed = gpu.buffer(np.zeros(S.hidden * 1152, np.uint8))
    freed.free()
    for pointer in (0, 0x1000, freed.pointer, gpu.get_quantized_weight_ptr("blk.0.attn_q.weight") + 1152):
        with pytest.raises(LaunchError):
            gpu.q4k_gemv_into(pointer, x, y, S.hidden, S.hidden)
    gpu.q4k_gemv_into("blk.0.attn_q.weight", x, y, S.hidden, S.hidden)
    assert np.abs(y.to_numpy()).max() > 0


def test_tensors_of_pytorch_go_in_and_out_on_their_stream(gpu: CudaExecutor) -> None:
    torch: Any = pytest.importorskip("torch")
    values, expected = inputs(1)[0], gpu.zeros(S.hidden)
    gpu.q4k_gemv_into("blk.0.attn_q.weight", gpu.buffer(values), expected, S.hidden, S.hidden)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x, y = torch.zeros(S.hidden, device="cuda:0"), torch.zeros(S.hidden, device="cuda:0")
        torch.cuda._sleep(50_000_000)  # some 25 ms, which the executor has to wait for
        x.copy_(torch.from_numpy(values).cuda(non_blocking=True))
        with gpu.on_stream(stream.cuda_stream):
            gpu.q4k_gemv_into("blk.0.attn_q.weight", x, y, S.hidden, S.hidden)
        doubled = y * 2
    stream.synchronize()  # the copy below is of another stream
    np.testing.assert_array_equal(doubled.cpu().numpy(), 2 * expected.to_numpy())
