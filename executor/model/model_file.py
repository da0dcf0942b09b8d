"""A GGUF file read as a model: its spec, and whether its tensors are those of that spec."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import numpy as np

from executor.base.errors import ModelError, UnsupportedModel, quoted
from executor.gguf.directory import GgmlType
from executor.gguf.gguf_file import GgufFile
from executor.model.architecture import Architecture
from executor.model.architectures import ARCHITECTURES
from executor.model.families import what_runs
from executor.model.fused_tensors import SeparateTensors
from executor.model.metadata import Metadata, in_layer
from executor.model.missing_parts import missing_parts, other_content
from executor.model.spec import Block, ModelSpec
from executor.model.tensors import expected_tensors
from ptxgen.formats import FORMATS

WEIGHT_TYPES: Final = tuple(GgmlType(weight_format.ggml_type) for weight_format in FORMATS.values())
MOST_PARTS: Final = 4  # that an error names
KEYS: Final = {
    "embedding_length": "hidden",
    "feed_forward_length": "ff",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "value_dim",
    "vocab_size": "vocab",
}
"""By key, the size of a model that it gives. Kernels call theirs by the same names, or only `n` or `k`."""

# The parts of a model whose tensors take part in the result: a stranger among them means another model than we compute, as
# llama.cpp refuses a file with a tensor that it does not read.
_MODEL_PARTS: Final = re.compile(r"(blk|output|token_embd|rope|position_embd|token_types|cls|enc|dec|per_layer|altup|v|mm)[._]")
_HARMLESS: Final = re.compile(
    r"blk\.\d+\.(attn_rot_embd|attn_rot_freqs)\.weight|.*rope_inv_freq|cls(\..*)?\.(weight|bias)|.*\.input_scale"
)

_log = logging.getLogger(__name__)


def read_spec(file: GgufFile) -> ModelSpec:
    """The spec of the model that the metadata describe. ModelError names the key, its value and what is allowed; for a good
    model that is not computed, what is missing and what runs in its place. What kernels take of it: kernel_limits.py."""
    name = file.metadata.get("general.architecture")
    if name is None:
        raise ModelError("metadata key general.architecture is missing", file.path)
    if (other := other_content(file)) is not None:
        raise ModelError(f"the file holds {other}", file.path)
    with naming_what_runs(file):
        if not isinstance(name, str) or name not in ARCHITECTURES:
            raise UnsupportedModel(f"architecture {quoted(name)} is not supported", file.path)
        spec = ARCHITECTURES[name].read(Metadata(file, name, ARCHITECTURES[name].unused))
        if len({(rope.style, rope.dim) for rope in spec.ropes}) > 1:
            said = "the rotation differs in style or width between layers, which is not supported"
            raise UnsupportedModel(said, file.path)
    return spec


@contextmanager
def naming_what_runs(file: GgufFile) -> Iterator[None]:
    """In the block, an UnsupportedModel about this file also names the missing parts, and the nearest model that runs."""
    try:
        yield
    except UnsupportedModel as error:
        name = str(file.metadata.get("general.architecture"))
        parts = missing_parts(file, name, ARCHITECTURES[name].parts if name in ARCHITECTURES else ())
        more = f" and {len(parts) - MOST_PARTS} more" if len(parts) > MOST_PARTS else ""
        missing = f"; not computed: {', '.join(parts[:MOST_PARTS])}{more}" if parts else ""
        raise UnsupportedModel(f"{error}{missing}; {what_runs(file, name)}") from error


def architecture_of(spec: ModelSpec) -> Architecture:
    """What the architecture of a model says of itself."""
    return ARCHITECTURES[spec.architecture]


def size(spec: ModelSpec, block: Block, name: str) -> int | None:
    """One of those that KEYS names; None where it is another of these."""
    found: int | None = spec.vocab if name == "vocab" else getattr(spec.shape(block), name)
    return found


def check_tensors(file: GgufFile, spec: ModelSpec) -> None:
    """Every tensor is there with its shape and a type that we compute with, and none is there that would change the result.

    Matrices: one of WEIGHT_TYPES. Norms, biases and divisors of rotations: F32. ModelError names the tensor."""

    def fail(message: str) -> NoReturn:
        raise ModelError(f"tensor {message}", file.path)

    expected, tensors = expected_tensors(spec), SeparateTensors(file, spec, file.path).tensors
    allowed = ", ".join(kind.name for kind in WEIGHT_TYPES)
    for name, shape in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            fail(f"{name} is missing; a {spec.architecture} model needs it with shape {list(shape)}")
        if tensor.shape != shape:
            fail(f"{name} has shape {list(tensor.shape)}; the metadata needs {list(shape)}")
        exact = len(shape) == 1 or name.endswith("_norm.weight")
        if exact and tensor.ggml_type is not GgmlType.F32:
            fail(f"{name} has type {tensor.ggml_type.name}; norms, biases and factors must be F32")
        if not exact and tensor.ggml_type not in WEIGHT_TYPES:
            said = f"tensor {name} has type {tensor.ggml_type.name}, which is not supported; supported: {allowed}"
            raise UnsupportedModel(f"{said}; the same model in one of these runs", file.path)
    _refuse_strangers(file, spec, tensors.keys() - expected.keys())
    for factors in dict.fromkeys(name for rope in spec.ropes for name in rope.tensors):
        divisors = file.data(factors).view(np.float32)
        if not bool(np.all(np.isfinite(divisors) & (divisors != 0))):
            fail(f"{factors} holds a value by which no frequency can be divided; allowed: finite numbers other than 0")


def _refuse_strangers(file: GgufFile, spec: ModelSpec, names: Collection[str]) -> None:
    """UnsupportedModel for a tensor, of those that are not computed, which would change the result."""
    unused = architecture_of(spec).unused
    for name in sorted(names):
        ignored = _HARMLESS.fullmatch(name) or in_layer(name) in unused or name.startswith(spec.unused)
        if _MODEL_PARTS.match(name) and not ignored:
            with naming_what_runs(file):
                said = f"tensor {name[:80]} is not part of a {spec.architecture} model as it is computed here"
                raise UnsupportedModel(said, file.path)
        _log.info("%s: tensor %s is not used", file.path, name)
