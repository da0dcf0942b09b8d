"""Weights that are repacked on a GPU, through the pinned buffers of an upload: the blocks and the bits of the emulator, and the
tokens that they give without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executor.choice.choice import GpuProfile
from executor.device import open_device
from executor.device.protocol import Device
from executor.gguf.gguf_file import GgufFile
from executor.model.generation import LanguageModel
from ptxgen.formats import REPACKED, RepackedFormat
from tests.switched import switched
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.gpu

TOKENS = [1, 2047, 8]


@pytest.fixture(scope="module", params=REPACKED)
def format(request: pytest.FixtureRequest) -> RepackedFormat:
    return REPACKED[request.param]


@pytest.fixture(scope="module")
def path(format: RepackedFormat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer whose ffn_down has 13.8 MB or 17.8 and whose head has 27.5 or 35.7, more than is repacked at a time."""
    shape = {"hidden": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "ff": 8192, "vocab": 16384, "layers": 1}
    folder = tmp_path_factory.mktemp("model")
    types = {"": Q.Q4_K, **dict.fromkeys(("attn_v", "ffn_down", "token_embd"), Q[format.native.name])}
    return write_model(folder / "m.gguf", "llama", types, context=128, **shape)  # type: ignore[arg-type]


def test_blocks_are_those_of_the_file_packed(path: Path, format: RepackedFormat, gpu: Device) -> None:
    profile = GpuProfile().with_rules("repack")
    with GgufFile.open(path) as file, LanguageModel.load(path, gpu, context=16, profile=profile) as model:
        repacked = {name: weight for name, weight in model.decoder.weights.items() if weight.format is format}
        assert set(repacked) == {"token_embd.weight", "blk.0.attn_v.weight", "blk.0.ffn_down.weight"}
        for name, weight in repacked.items():
            assert np.array_equal(weight.buffer.to_numpy(), format.pack(file.data(name).reshape(weight.n, -1))), name


@pytest.mark.parametrize("precision", ["accurate", "fast"])
def test_logits_have_the_bits_of_the_emulator(precision: str, path: Path, gpu: Device) -> None:
    profile = GpuProfile(precision).with_rules("repack")
    with LanguageModel.load(path, gpu, context=16, profile=profile) as model:
        logits = model.logits(TOKENS)
    with open_device("emulator") as emulator, LanguageModel.load(path, emulator, context=16, profile=profile) as model:
        np.testing.assert_array_equal(logits.view(np.uint32), model.logits(TOKENS).view(np.uint32))


def test_logits_have_the_bits_that_they_have_without(path: Path, gpu: Device) -> None:
    made = {}
    for repack in (False, True):
        with LanguageModel.load(path, gpu, context=16, profile=switched(GpuProfile(), repack=repack)) as model:
            made[repack] = model.logits(TOKENS)
    np.testing.assert_array_equal(made[True].view(np.uint32), made[False].view(np.uint32))
