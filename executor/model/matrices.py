"""The matrices of a model that multiply a vector, by role. Reads the file's header only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from executor.choice.choice import GpuProfile
from executor.gguf.gguf_file import GgufFile
from executor.layers.indexed import INPUTS
from executor.memory.weights import TensorFile
from executor.model.kernel_limits import runnable_spec
from executor.model.spec import ModelSpec
from executor.model.split import loaded
from executor.model.tensors import expected_tensors
from ptxgen.formats import FORMATS, Format, RepackedFormat

HEAD = "output"


@dataclass(frozen=True)
class ModelMatrix:
    """n rows of k weights in one format. roles: `attn_q`, `ffn_down`, ..., `output`, with how many tensors have each."""

    format: Format
    k: int
    n: int
    roles: tuple[tuple[str, int], ...]

    @property
    def type(self) -> str:
        """The name of its type in a file."""
        return self.format.native.name if isinstance(self.format, RepackedFormat) else self.format.name

    @property
    def nbytes(self) -> int:
        """Bytes of one such matrix."""
        return self.n * self.format.row_bytes(self.k)


def matrices(file: GgufFile) -> tuple[ModelMatrix, ...]:
    """The distinct formats and shapes, in the order in which a token meets them. Raises ModelError for a file that is not a
    model that is supported."""
    tensors, spec = loaded(file, runnable_spec(file), 1)
    roles: dict[tuple[Format, int, int], dict[str, int]] = {}
    for role, name in multiplied(spec):
        info = tensors.tensors[name]
        n, k = info.shape
        counts = roles.setdefault((FORMATS[info.ggml_type.name], k, n), {})
        counts[role] = counts.get(role, 0) + 1
    return tuple(ModelMatrix(format, k, n, tuple(counts.items())) for (format, k, n), counts in roles.items())


def repacked(file: TensorFile, spec: ModelSpec, profile: GpuProfile) -> dict[str, RepackedFormat]:
    """By tensor, the formats that matrices get when the model is loaded, of those that do not stay as they are in the file. A
    table of embeddings is one of them if it is the head, too."""
    infos = {name: file.tensors[name] for _, name in multiplied(spec)}
    formats = {name: profile.at_load(FORMATS[info.ggml_type.name], info.shape[-1]) for name, info in infos.items()}
    return {name: format for name, format in formats.items() if isinstance(format, RepackedFormat)}


def multiplied(spec: ModelSpec) -> Sequence[tuple[str, str]]:
    """Role and tensor of each matrix."""
    roles = [(name.removesuffix(".weight").rsplit(".", 1)[-1], name) for name in expected_tensors(spec)]
    head = "token_embd.weight" if spec.tied else f"{HEAD}.weight"
    return [(role, name) for role, name in roles if role in INPUTS and role != HEAD] + [(HEAD, head)]
