"""A GGUF file read as a model: its spec, and whether its tensors are those of that spec."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from executor.base.errors import ModelError, quoted
from executor.gguf.directory import GgmlType
from executor.gguf.gguf_file import GgufFile
from executor.model.architecture import Architecture, Shapes
from executor.model.architectures import ARCHITECTURES
from executor.model.metadata import Metadata
from executor.model.spec import Block, ModelSpec
from ptxgen.formats import FORMATS

WEIGHT_TYPES: Final = tuple(GgmlType(weight_format.ggml_type) for weight_format in FORMATS.values())
MOST_SHOWN: Final = 8  # layers, and values of them, that an error names
KEYS: Final = {
    "embedding_length": "hidden",
    "feed_forward_length": "ff",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "vocab_size": "vocab",
}
"""By key, the size of a model that it gives. Kernels call theirs by the same names, or only `n` or `k`."""

# The parts of a model whose tensors take part in the result: a stranger among them means another model than we compute, as
# llama.cpp refuses a file with a tensor that it does not read.
_MODEL_PARTS: Final = re.compile(r"(blk|output|token_embd|rope|position_embd|token_types|cls|enc|dec|per_layer|altup|v|mm)[._]")
_HARMLESS: Final = re.compile(r"blk\.\d+\.(attn_rot_embd|attn_rot_freqs)\.weight|.*rope_inv_freq")

_log = logging.getLogger(__name__)


def read_spec(file: GgufFile) -> ModelSpec:
    """The spec of the model that the metadata describe. ModelError names the key, its value and what is allowed. What kernels
    take of it: kernel_limits.py."""
    name = file.metadata.get("general.architecture")
    if name is None:
        raise ModelError("metadata key general.architecture is missing", file.path)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"architecture {quoted(name)} is not supported; supported: {known}", file.path)
    spec = ARCHITECTURES[name].read(Metadata(file, name))
    _require_equal_layers(spec, file.path)
    return spec


def architecture_of(spec: ModelSpec) -> Architecture:
    """What the architecture of a model says of itself."""
    return ARCHITECTURES[spec.architecture]


def expected_tensors(spec: ModelSpec) -> Shapes:
    """Every tensor that the model needs, with its shape, rows first."""
    return architecture_of(spec).tensors(spec)


def size(spec: ModelSpec, block: Block, name: str) -> int:
    """One of those that KEYS names."""
    found: int = spec.vocab if name == "vocab" else getattr(spec.shape(block), name)
    return found


def check_tensors(file: GgufFile, spec: ModelSpec) -> None:
    """Every tensor is there with its shape and a type that we compute with, and none is there that would change the result.

    Matrices: one of WEIGHT_TYPES. Norms, biases and divisors of rotations: F32. ModelError names the tensor."""

    def fail(message: str) -> NoReturn:
        raise ModelError(f"tensor {message}", file.path)

    expected = expected_tensors(spec)
    allowed = ", ".join(kind.name for kind in WEIGHT_TYPES)
    for name, shape in expected.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            fail(f"{name} is missing; a {spec.architecture} model needs it with shape {list(shape)}")
        if tensor.shape != shape:
            fail(f"{name} has shape {list(tensor.shape)}; the metadata needs {list(shape)}")
        if len(shape) == 1 and tensor.ggml_type is not GgmlType.F32:
            fail(f"{name} has type {tensor.ggml_type.name}; norms, biases and factors must be F32")
        if len(shape) > 1 and tensor.ggml_type not in WEIGHT_TYPES:
            fail(f"{name} has type {tensor.ggml_type.name}, which is not supported; supported: {allowed}")
    for name in file.tensors.keys() - expected.keys():
        if _MODEL_PARTS.match(name) and not _HARMLESS.fullmatch(name):
            fail(f"{name[:80]} is not part of a {spec.architecture} model as it is computed here{_reason(name)}")
        _log.info("%s: tensor %s is not used", file.path, name)
    factors = spec.rope.factors
    if factors is not None:
        divisors = file.data(factors).view(np.float32)
        if not bool(np.all(np.isfinite(divisors) & (divisors > 0))):
            fail(f"{factors} holds a value that is not a positive finite number")


def _reason(name: str) -> str:
    if "exp" in name:
        return ": mixtures of experts are not supported"
    if name.startswith("rope_factors"):
        return ": long and short rotary factors are not supported"
    if name.endswith(".bias"):
        return ": only the biases of Q, K and V are supported"
    return ""


def _require_equal_layers(spec: ModelSpec, path: Path) -> None:
    """ModelError for blocks that differ in what the launches of a step take from one shape for all."""
    kinds = set(spec.blocks)
    for key, name in KEYS.items():
        sizes = {block: size(spec, block, name) for block in kinds}
        if len(set(sizes.values())) > 1:
            by_value: dict[int, list[int]] = {}
            for layer, block in enumerate(spec.blocks):
                by_value.setdefault(sizes[block], []).append(layer)
            shown = "; ".join(f"{value} in layers {_some(own)}" for value, own in list(by_value.items())[:MOST_SHOWN])
            raise ModelError(
                f"{spec.architecture}.{key} differs between layers, which is not supported; it must be the same in all: "
                f"it is {shown}",
                path,
            )
    if len({block.mixer.rope for block in kinds}) > 1:
        raise ModelError("the rotation differs between layers, which is not supported", path)
    norms = {norm for block in kinds for norm in (block.norms.mixer, block.norms.ffn, block.mixer.qk_norm)}
    if len(norms - {None} | {spec.norm}) > 1:
        raise ModelError("the norms differ in kind or epsilon, which is not supported", path)


def _some(layers: Sequence[int]) -> str:
    """Numbers of layers, not all of many."""
    shown = ", ".join(map(str, layers[:MOST_SHOWN]))
    return shown if len(layers) <= MOST_SHOWN else f"{shown}, ... ({len(layers)} layers)"
