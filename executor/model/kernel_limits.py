"""What kernels take of a model: each is asked, with the sizes of the metadata, and its refusal names the file's key. No limit
stands here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from executor.base.errors import ModelError
from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.model.model_file import KEYS, check_tensors, read_spec, size
from executor.model.spec import Block, ModelSpec
from ptxgen.errors import ShapeError
from ptxgen.formats import FORMATS
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup

TOKENS: Final = "tokenizer.ggml.tokens"


def runnable_spec(file: GgufFile) -> ModelSpec:
    """The spec of a model that can run: its metadata, its tensors, and what kernels take of these. ModelError for a file that
    is not a good model or too large for a kernel."""
    spec = read_spec(file)
    check_tensors(file, spec)
    require_kernels(spec, file.metadata, file.path)
    return spec


def require_kernels(spec: ModelSpec, metadata: Mapping[str, Value], path: Path) -> None:
    """ModelError, with key, value and what is allowed, for a size that a kernel which every model has does not take."""
    probes: list[Callable[[], object]] = [
        lambda: EmbeddingLookup(indirect=True, format=FORMATS["F32"], rows=spec.vocab, k=spec.hidden),
        lambda: RmsNorm(hidden=spec.hidden),
        lambda: ArgMax(n=spec.vocab),
    ]
    for block in dict.fromkeys(spec.blocks):
        probes += _probes(block)
    for probe in probes:
        with named_by_key(spec, metadata, path):
            probe()


def _probes(block: Block) -> list[Callable[[], object]]:
    a, ff = block.mixer, block.ffn.ff
    probes: list[Callable[[], object]] = [
        lambda: ContiguousAttention(True, heads=a.heads, kv_heads=a.kv_heads, head_dim=a.head_dim, max_len=1),
        lambda: FusedSwiglu(n=ff),
    ]
    if a.qk_norm is not None:
        probes.append(lambda: PerHeadRmsNorm(heads=a.heads, head_dim=a.head_dim))
    return probes


@contextmanager
def named_by_key(spec: ModelSpec, metadata: Mapping[str, Value], path: Path) -> Iterator[None]:
    """In the block, a shape that a kernel does not take is a ModelError that names the key which gives it, if one does."""
    try:
        yield
    except ShapeError as error:
        key = _key(error, spec, metadata)
        if key is None:
            raise
        raise ModelError(f"{key} is {error.value}; {error.kernel} takes {error.allowed}", path) from error


def _key(error: ShapeError, spec: ModelSpec, metadata: Mapping[str, Value]) -> str | None:
    """The key that gives a size that a kernel refused: by the size's name, else by its value, which has no other name where a
    kernel calls it `n`; then it may be one of several."""
    fits = [key for key, name in KEYS.items() if error.field == name] or [
        key for key, name in KEYS.items() if error.field in ("n", "k", "rows") and error.value in _sizes(spec, name)
    ]
    return " or ".join(_written(key, spec.architecture, metadata) for key in fits) or None


def _sizes(spec: ModelSpec, name: str) -> set[int]:
    return {size(spec, block, name) for block in set(spec.blocks)}


def _written(key: str, architecture: str, metadata: Mapping[str, Value]) -> str:
    """A key as the file has it, or what stands for it there."""
    if key == "vocab_size" and TOKENS in metadata:
        return f"the number of tokens in {TOKENS}"
    if key == "attention.key_length" and f"{architecture}.{key}" not in metadata:
        return f"{architecture}.embedding_length / {architecture}.attention.head_count"
    return f"{architecture}.{key}"
