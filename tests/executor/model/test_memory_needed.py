"""What a model needs is found from its first layers of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.choice.choice import GpuProfile
from executor.device import Device
from executor.gguf.gguf_file import GgufFile
from executor.model import memory_needed
from executor.model.generation import LanguageModel
from executor.model.model_file import read_spec
from ptxgen.target import DEFAULT
from tests.synthetic import write_model


def test_layers_of_different_sizes_are_all_laid_out_and_need_what_they_take(tmp_path: Path, emulator: Device) -> None:
    """The first of them is the smallest, so that memory laid out for it grows."""
    sizes: dict[str, Any] = {"layers": 3, "hidden": 128, "ff": [128, 256, 384], "context": 64}
    path = write_model(tmp_path / "m.gguf", "deci", Q.Q4_0, heads=[0, 2, 4], kv_heads=[0, 1, 4], head_dim=32, **sizes)
    with GgufFile.open(path) as file:
        needed = memory_needed.memory_needed(file, read_spec(file), 64, emulator.target, GpuProfile())
    with LanguageModel.load(path, emulator, profile=GpuProfile()) as model:
        decoder = model.decoder
        assert decoder.cache.nbytes == needed.cache == 2 * 5 * 64 * 32 * 4
        assert (decoder.weights.nbytes, decoder.workspace.nbytes + 64 * 16 * 2 * 4) == (needed.weights, needed.activations)


def test_layers_like_earlier_ones_are_not_laid_out_and_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window, sizes = {"gemma3.attention.sliding_window": 64}, {"hidden": 256, "heads": 4, "kv_heads": 2, "ff": 512}
    path = write_model(tmp_path / "m.gguf", "gemma3", Q.Q4_K, layers=9, metadata=window, **sizes)  # type: ignore[arg-type]
    with GgufFile.open(path) as file:
        spec = read_spec(file)
        assert memory_needed._first_of_each_kind(file, spec).blocks == spec.blocks[:6]
        few = memory_needed.memory_needed(file, spec, 256, DEFAULT, GpuProfile())
        monkeypatch.setattr(memory_needed, "_first_of_each_kind", lambda _, spec: spec)
        assert memory_needed.memory_needed(file, spec, 256, DEFAULT, GpuProfile()) == few
