"""Every known model's shape, and kinds of files: the default launches, which are dependent and copy ahead, give the bits of
calm ones, each time. What changes kernels, layers or launches is run here (some 3 minutes); a race shows on a GPU alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from benchmarks.models import Shape, write_shape
from executor.choice.choice import GpuProfile
from executor.device.cuda import CudaDevice
from executor.device.cuda_gpu import driver
from executor.device.protocol import Device
from executor.device.several import SeveralDevices
from executor.launch.modules import Modules
from ptxgen.kernels.known_models import KNOWN_MODELS
from tests.executor.model.moving_bits import ALONE, CONTEXT, WAYS, moving

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

VOCAB: Final = 4096
TIMES: Final = 12
OFTEN: Final = 80
"""Runs of those that had a race once, in one run of five or fewer."""
PRONE: Final = ("qwen2.5-0.5b", "qwen3-0.6b")
LARGE: Final = 5000
"""Values of the stream from which on one layer does: its launches take as long as three layers of others."""
SAME: Final = ("mistral-7b-v0.3", "mistral-small-24b", "qwen2.5-32b", "qwen2.5-72b", "qwen3-14b")
"""But for their vocabulary or some rows like another one."""
MANY: Final = (*PRONE, "llama-3.2-1b", "llama-3.1-8b")
"""Those of which steps of many rows are run, too: others have the same kernels for these."""

SHAPES = [name for name in KNOWN_MODELS if name not in SAME]
OTHERS = {
    "qwen2.5-0.5b": ("q5_k_m", "q4_0", "q6_k", "q8_0"),
    "qwen3-0.6b": ("q6_k", "q8_0"),
    "llama-3.2-1b": ("q6_k", "q8_0"),
    "qwen2.5-1.5b": ("q6_k",),
    "qwen2.5-7b": ("q8_0",),
    "llama-3.1-8b": ("q5_k_m", "q4_0", "q6_k", "q8_0"),
}
"""Kinds of files besides Q4_K_M, where rows of their blocks are short and long."""
CASES = [*((name, "q4_k_m") for name in SHAPES), *((name, mix) for name, mixes in OTHERS.items() for mix in mixes)]


@contextmanager
def written(folder: Path, name: str, mix: str) -> Iterator[Path]:
    """Three layers, or one of a large model, with a small vocabulary; layers of one format have the same weights. The file goes
    when the block ends: all of them would fill a disk."""
    one = KNOWN_MODELS[name]
    layers = 3 if one.hidden < LARGE else 1
    arch = next((arch for arch in ("qwen2", "qwen3") if name.startswith(arch)), "llama")
    shape = Shape(
        arch, layers, one.hidden, one.ff, one.heads, one.kv_heads, one.head_dim, VOCAB, rope_base=1e6, rope_factor=0.0,
        eps=1e-6, tied=one.hidden <= 2048, context=CONTEXT,
    )  # fmt: skip
    path = folder / "m.gguf"
    write_shape(shape, path, mix, distinct=1)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def modules(gpu: Device) -> Iterator[Modules]:
    """Kernels that models have in common are compiled once."""
    made = Modules(gpu)
    yield made
    made.close()


@pytest.mark.parametrize(("name", "mix"), CASES)
def test_no_bit_moves(name: str, mix: str, gpu: Device, modules: Modules, tmp_path: Path) -> None:
    """One sequence of all; several, and prompts, of some."""
    ways, times = tuple(WAYS) if mix == "q4_k_m" and name in MANY else ALONE, OFTEN if name in PRONE else TIMES
    with written(tmp_path, name, mix) as path:
        assert moving(path, gpu, GpuProfile.for_device(gpu), times, ways, modules=modules) == {}


@pytest.mark.parametrize(("name", "mix"), [("qwen2.5-0.5b", "q6_k"), ("llama-3.2-1b", "q4_k_m"), ("llama-3.1-8b", "q8_0")])
def test_no_bit_moves_on_two_gpus(name: str, mix: str, gpu: Device, tmp_path: Path) -> None:
    if int(driver().cuDeviceGetCount()[1]) < 2:
        pytest.skip("needs two GPUs")
    with written(tmp_path, name, mix) as path, SeveralDevices([CudaDevice(rank) for rank in range(2)]) as two:
        assert moving(path, two, GpuProfile.for_device(gpu), OFTEN, quiet=gpu) == {}
