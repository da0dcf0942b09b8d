"""What a model needs is found from its first layers of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.choice.choice import GpuProfile
from executor.gguf.gguf_file import GgufFile
from executor.model import memory_needed
from executor.model.model_file import read_spec
from ptxgen.target import DEFAULT
from tests.synthetic import write_model


def test_layers_like_earlier_ones_are_not_laid_out_and_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window, sizes = {"gemma3.attention.sliding_window": 64}, {"hidden": 256, "heads": 4, "kv_heads": 2, "ff": 512}
    path = write_model(tmp_path / "m.gguf", "gemma3", Q.Q4_K, layers=9, metadata=window, **sizes)  # type: ignore[arg-type]
    with GgufFile.open(path) as file:
        spec = read_spec(file)
        assert memory_needed._first_of_each_kind(file, spec).blocks == spec.blocks[:6]
        few = memory_needed.memory_needed(file, spec, 256, DEFAULT, GpuProfile())
        monkeypatch.setattr(memory_needed, "_first_of_each_kind", lambda _, spec: spec)
        assert memory_needed.memory_needed(file, spec, 256, DEFAULT, GpuProfile()) == few
