"""A model whose Q6_K or Q8_0 matrices are repacked when it is loaded decodes the same tokens; what reads its weights knows of
it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.api.executor import CudaExecutor
from executor.bundle.write import write_bundle
from executor.choice.choice import GpuProfile
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.gguf.gguf_file import GgufFile
from executor.memory.single_weight import host_weight
from executor.model.explain import explain
from executor.model.generation import LanguageModel
from executor.model.memory_needed import memory_needed
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError
from ptxgen.formats import REPACKED, RepackedFormat
from ptxgen.target import Target
from tests.synthetic import Q, write_model

TOKENS = [1, 30, 7, 42]
CONTEXT = 32
REPACK = GpuProfile().with_rules("repack")
DOWN, TABLE = "blk.0.ffn_down.weight", "token_embd.weight"

pytestmark = pytest.mark.usefixtures("shared_kernels")


def model_file(folder: Path, format: RepackedFormat, *, tied: bool) -> Path:
    types = {"": Q.Q4_K, **dict.fromkeys(("attn_v", "ffn_down", "output", "token_embd"), Q[format.native.name])}
    shape = {"layers": 1, "hidden": 256, "heads": 4, "kv_heads": 2, "ff": 512, "vocab": 272}
    return write_model(folder / "tiny.gguf", "llama", types, **shape, tied=tied)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[(name,) for name in REPACKED], ids=list(REPACKED))
def format(request: pytest.FixtureRequest) -> RepackedFormat:
    return REPACKED[request.param[0]]


@pytest.fixture(scope="module")
def path(format: RepackedFormat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a head of its own."""
    return model_file(tmp_path_factory.mktemp("model"), format, tied=False)


@pytest.fixture
def device() -> Iterator[Device]:
    with EmulatedDevice() as device:
        yield device


def load(path: Path, device: Device, profile: GpuProfile) -> LanguageModel:
    return LanguageModel.load(path, device, context=CONTEXT, profile=profile)


def assert_alike(logits: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert np.array_equal(logits.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_the_same_and_matrices_alone_are_repacked(
    tied: bool, format: RepackedFormat, tmp_path: Path, device: Device
) -> None:
    path = model_file(tmp_path, format, tied=tied)
    with load(path, device, GpuProfile()) as native, load(path, device, REPACK) as model:
        formats = {name: weight.format.name for name, weight in model.decoder.weights.items()}
        repacked = {name for name, made in formats.items() if made == format.name}
        assert repacked == {"blk.0.attn_v.weight", DOWN, TABLE if tied else "output.weight"}
        assert formats[TABLE] == (format.name if tied else format.native.name)
        kernels = {call.kernel.name for call in model.decoder.prepare().launches.calls}
        assert {f"hw_dp4a_{format.id}_gemv", f"hw_dp4a_{format.id}_gemv_residual"} <= kernels
        assert not {name for name in kernels if f"{format.native.id}_gemv" in name}
        assert_alike(model.logits(TOKENS), native.logits(TOKENS))


def test_matrices_of_rows_that_are_no_whole_blocks_stay_as_they_are_in_the_file(tmp_path: Path, device: Device) -> None:
    shape = {"layers": 1, "hidden": 896, "heads": 14, "kv_heads": 2, "ff": 512, "vocab": 272}
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q8_0, **shape, tied=True)  # type: ignore[arg-type]
    with load(path, device, GpuProfile()) as native, load(path, device, REPACK) as model:
        formats = {name: weight.format.name for name, weight in model.decoder.weights.items()}
        assert {name for name, made in formats.items() if made == "Q8_0_ALIGNED"} == {DOWN}
        assert formats[TABLE] == formats["blk.0.attn_q.weight"] == "Q8_0"
        assert_alike(model.logits(TOKENS), native.logits(TOKENS))
        needed = memory_needed(GgufFile.open(path), model.spec, CONTEXT, device.target, REPACK)
        assert needed.weights == model.decoder.weights.nbytes
    with GgufFile.open(path) as file:
        made = {(row.matrix.format.name, row.matrix.k) for row in explain(file, REPACK)}
    assert made == {("Q8_0", 896), ("Q8_0_ALIGNED", 512)}


def test_a_prompt_in_one_step_is_answered_as_one_token_after_the_other_is_without(path: Path, device: Device) -> None:
    with load(path, device, GpuProfile()) as native, load(path, device, REPACK) as model:
        expected: list[int] = []
        for token in (*TOKENS, *[None] * 5):
            native.decoder.step(token)
            expected.append(native.decoder.argmax())
        answer = model.generate(TOKENS, max_tokens=6, sampler=Sampler()).tokens
    assert answer == expected[len(TOKENS) - 1 :]


def test_a_weight_that_replaces_a_repacked_one_may_be_as_it_is_in_files(
    path: Path, format: RepackedFormat, device: Device
) -> None:
    with GgufFile.open(path) as file, load(path, device, REPACK) as model:
        expected, old = model.logits(TOKENS), model.decoder.weights[DOWN]
        new = host_weight(device, DOWN, file.data(DOWN), format.native.name, (old.n, old.k))
        model.decoder.weights.put({DOWN: new}, [new.buffer])
        assert_alike(model.logits(TOKENS), expected)
        assert f"hw_dp4a_{format.native.id}_gemv_residual" in {
            call.kernel.name for call in model.decoder.prepare().launches.calls
        }


def test_memory_needed_counts_the_blocks_that_are_made(path: Path, format: RepackedFormat, device: Device) -> None:
    with load(path, device, REPACK) as model:
        weights, spec = model.decoder.weights.nbytes, model.spec
    with GgufFile.open(path) as file:
        native, needed = (memory_needed(file, spec, CONTEXT, device.target, one) for one in (GpuProfile(), REPACK))
    assert needed.weights == weights
    assert (weights > native.weights) == (format.block_bytes > format.native_bytes)
    assert (native.loading, needed.total) == (0, weights + max(needed.loading, needed.cache + needed.activations))
    assert 0 < needed.loading < weights


def test_explain_names_the_format_and_the_kernel(path: Path, format: RepackedFormat) -> None:
    with GgufFile.open(path) as file:
        made = {row.matrix.format.name: row.choice.kernel.name for row in explain(file, REPACK)}
    assert made == {"Q4_K": "hw_dp4a_q4k_gemv", format.name: f"hw_dp4a_{format.id}_gemv"}


def test_a_bundle_is_of_the_blocks_of_the_file_and_says_so_where_others_are_asked_for(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logits(**options: Any) -> NDArray[np.float32]:
        with CudaExecutor("emulator", **options) as executor:
            return executor.load_model(path, context=CONTEXT).logits(TOKENS)

    expected = logits(profile=GpuProfile())
    for name in ("REPACK", "LAST_BLOCK_REDUCTION", "ROPE_FUSED_ATTENTION", "DEPENDENT_LAUNCHES", "HORIZONTAL_FUSION"):
        monkeypatch.setenv(f"PTXGEN_{name}", "1")
    write_bundle(path, tmp_path / "bundle", Target(90), context=CONTEXT)
    names = [file.name for file in (tmp_path / "bundle" / "kernels").iterdir()]
    assert not [name for name in names if "aligned" in name or "joined" in name or "mixed" in name or "grouped" in name]
    assert np.array_equal(logits(bundle=tmp_path / "bundle"), expected)
    with pytest.raises(ArgumentError, match="a bundle has kernels for the blocks of the file; the profile repacks them"):
        logits(bundle=tmp_path / "bundle", profile=REPACK)
