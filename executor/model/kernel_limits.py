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
from executor.model.config import ModelConfig, check_tensors
from ptxgen.errors import ShapeError
from ptxgen.formats import FORMATS
from ptxgen.kernels.activation.swiglu import FusedSwiglu
from ptxgen.kernels.attention.incremental_attention import IncrementalAttention
from ptxgen.kernels.norm.per_head_rmsnorm import PerHeadRmsNorm
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.token.argmax import ArgMax
from ptxgen.kernels.token.embedding_lookup import EmbeddingLookup

KEYS: Final = {
    "embedding_length": "hidden",
    "feed_forward_length": "ff",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "vocab_size": "vocab",
}
"""By key, the size of ModelConfig that it gives. Kernels call theirs by the same names, or only `n` or `k`."""
TOKENS: Final = "tokenizer.ggml.tokens"


def runnable_config(file: GgufFile) -> ModelConfig:
    """The configuration of a model that can run: its metadata, its tensors, and what kernels take of these. ModelError for a
    file that is not a good model or too large for a kernel."""
    config = ModelConfig.from_gguf(file)
    check_tensors(file, config)
    require_kernels(config, file.metadata, file.path)
    return config


def require_kernels(config: ModelConfig, metadata: Mapping[str, Value], path: Path) -> None:
    """ModelError, with key, value and what is allowed, for a size that a kernel which every model has does not take."""
    c = config
    probes: list[Callable[[], object]] = [
        lambda: IncrementalAttention(True, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, max_len=1),
        lambda: RmsNorm(hidden=c.hidden),
        lambda: FusedSwiglu(n=c.ff),
        lambda: EmbeddingLookup(indirect=True, format=FORMATS["F32"], rows=c.vocab, k=c.hidden),
        lambda: ArgMax(n=c.vocab),
    ]
    if c.qk_norm:
        probes.append(lambda: PerHeadRmsNorm(heads=c.heads, head_dim=c.head_dim))
    for probe in probes:
        with named_by_key(config, metadata, path):
            probe()


@contextmanager
def named_by_key(config: ModelConfig, metadata: Mapping[str, Value], path: Path) -> Iterator[None]:
    """In the block, a shape that a kernel does not take is a ModelError that names the key which gives it, if one does."""
    try:
        yield
    except ShapeError as error:
        key = _key(error, config, metadata)
        if key is None:
            raise
        raise ModelError(f"{key} is {error.value}; {error.kernel} takes {error.allowed}", path) from error


def _key(error: ShapeError, config: ModelConfig, metadata: Mapping[str, Value]) -> str | None:
    """The key that gives a size that a kernel refused: by the size's name, else by its value, which has no other name where a
    kernel calls it `n`; then it may be one of several."""
    fits = [key for key, name in KEYS.items() if error.field == name] or [
        key for key, name in KEYS.items() if error.field in ("n", "k", "rows") and getattr(config, name) == error.value
    ]
    return " or ".join(_written(key, config.architecture, metadata) for key in fits) or None


def _written(key: str, architecture: str, metadata: Mapping[str, Value]) -> str:
    """A key as the file has it, or what stands for it there."""
    if key == "vocab_size" and TOKENS in metadata:
        return f"the number of tokens in {TOKENS}"
    if key == "attention.key_length" and f"{architecture}.{key}" not in metadata:
        return f"{architecture}.embedding_length / {architecture}.attention.head_count"
    return f"{architecture}.{key}"
