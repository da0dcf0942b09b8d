"""What kernels take of a model: each is asked, with the sizes of the metadata, and its refusal names the file's key. No limit
stands here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from executor.base.errors import UnsupportedModel
from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.layers.graph.operations import activation_kernel
from executor.layers.shape import NormKind, XieluNumbers
from executor.model.model_file import KEYS, check_tensors, naming_what_runs, read_spec, size
from executor.model.spec import Block, ModelSpec
from ptxgen.errors import ShapeError
from ptxgen.formats import FORMATS
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.norm.layernorm import LayerNorm
from ptxgen.kernels.norm.per_head_layernorm import PerHeadLayerNorm
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup

NORMS: Final[Mapping[NormKind, type[RmsNorm] | type[LayerNorm]]] = {"rms": RmsNorm, "layer": LayerNorm}
TOKENS: Final = "tokenizer.ggml.tokens"


def runnable_spec(file: GgufFile) -> ModelSpec:
    """The spec of a model that can run: its metadata, its tensors, and what kernels take of these. ModelError for a file that
    is not a good model or too large for a kernel."""
    spec = read_spec(file)
    check_tensors(file, spec)
    with naming_what_runs(file):
        require_kernels(spec, file.metadata, file.path)
    return spec


def require_kernels(spec: ModelSpec, metadata: Mapping[str, Value], path: Path) -> None:
    """UnsupportedModel, with key, value and what is allowed, for a size that a kernel which every model has does not take."""
    probes: list[Callable[[], object]] = [
        lambda: EmbeddingLookup(indirect=True, format=FORMATS["F32"], rows=spec.vocab, k=spec.hidden),
        lambda: NORMS[spec.norm.kind](hidden=spec.hidden),
        lambda: ArgMax(n=spec.vocab),
    ]
    for block in dict.fromkeys(spec.blocks):
        probes += _probes(block)
    for probe in probes:
        with named_by_key(spec, metadata, path):
            probe()


def _probes(block: Block) -> list[Callable[[], object]]:
    a, f = block.mixer, block.ffn
    activation: Callable[..., object] = partial(activation_kernel, f.activation)
    if f.gated and not isinstance(f.activation, XieluNumbers):
        activation = partial(FusedSwiglu, activation=f.activation)
    sizes: dict[str, Any] = {"heads": a.heads, "kv_heads": a.kv_heads, "head_dim": a.head_dim, "max_len": 1}
    sizes["value_dim"] = a.value_dim
    probes: list[Callable[[], object]] = [lambda: ContiguousAttention(True, **sizes, scores=a.scores)] if a.kv_heads else []
    probes += [lambda: activation(n=f.ff)] if f.ff else []
    if block.norms.at.attended is not None:
        probes.append(lambda: NORMS[block.norms.norm.kind](hidden=a.attended_dim))
    if block.norms.at.activated is not None:
        probes.append(lambda: NORMS[block.norms.norm.kind](hidden=f.ff))
    if a.qk_norm is not None and a.qk_norm_of == "row":
        norm = NORMS[a.qk_norm.kind]
        probes += [lambda: norm(hidden=a.q_dim), lambda: norm(hidden=a.k_dim)]
    elif a.qk_norm is not None and a.qk_norm_of == "rows":
        probes.append(lambda: PerHeadLayerNorm(heads=a.heads, head_dim=a.head_dim))
    elif a.qk_norm is not None:
        probes.append(lambda: PerHeadRmsNorm(heads=a.heads, head_dim=a.head_dim))
    return probes


@contextmanager
def named_by_key(spec: ModelSpec, metadata: Mapping[str, Value], path: Path) -> Iterator[None]:
    """In the block, a shape that a kernel does not take is an UnsupportedModel with the key that gives it, if one does."""
    try:
        yield
    except ShapeError as error:
        key = _key(error, spec, metadata)
        if key is None:
            raise
        raise UnsupportedModel(f"{key} is {error.value}; {error.kernel} takes {error.allowed}", path) from error


def _key(error: ShapeError, spec: ModelSpec, metadata: Mapping[str, Value]) -> str | None:
    """The key that gives a size that a kernel refused: by the size's name, else by its value, which has no other name where a
    kernel calls it `n`; then it may be one of several."""
    fits = [key for key, name in KEYS.items() if error.field == name] or [
        key for key, name in KEYS.items() if error.field in ("n", "k", "rows") and error.value in _sizes(spec, name)
    ]
    return " or ".join(_written(key, spec.architecture, metadata) for key in fits) or None


def _sizes(spec: ModelSpec, name: str) -> set[int | None]:
    return {size(spec, block, name) for block in set(spec.blocks)}


def _written(key: str, architecture: str, metadata: Mapping[str, Value]) -> str:
    """A key as the file has it, or what stands for it there."""
    if key == "vocab_size" and TOKENS in metadata:
        return f"the number of tokens in {TOKENS}"
    if key in ("attention.key_length", "attention.value_length") and f"{architecture}.{key}" not in metadata:
        return f"{architecture}.embedding_length / {architecture}.attention.head_count"
    return f"{architecture}.{key}"
