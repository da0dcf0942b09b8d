"""The synthetic models: files that the executor takes, in the architectures and types that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.models import MODELS, write_hollow
from executor.gguf.gguf_file import GgufFile
from executor.model.model_file import check_tensors, read_spec

TYPES = {"phi-4-14b": {"attn_qkv": {"Q5_K"}, "ffn_up": {"Q4_K"}, "ffn_down": {"Q4_K", "Q6_K"}, "output": {"Q6_K"}}}


@pytest.mark.parametrize("name", ["tiny", "gemma-3-4b", "mistral-small-24b", "phi-4-14b"])
def test_a_model_has_the_tensors_of_its_architecture(name: str, tmp_path: Path) -> None:
    path, shape = tmp_path / "m.gguf", MODELS[name]
    write_hollow(shape, path, "q4_k_m", name=name)
    with GgufFile.open(path) as file:
        spec = read_spec(file)
        check_tensors(file, spec)
        for role, types in TYPES.get(name, {}).items():
            own = (tensor for tensor in file.tensors.values() if f".{tensor.name}".endswith(f".{role}.weight"))
            assert {tensor.ggml_type.name for tensor in own} == types
    assert (spec.architecture, spec.layers, spec.hidden, spec.vocab) == (
        shape.architecture,
        shape.layers,
        shape.hidden,
        shape.vocab,
    )
    windows = [block.mixer.scores.window for block in spec.blocks]
    assert windows == [shape.window if shape.window and (layer + 1) % 6 else None for layer in range(shape.layers)]
