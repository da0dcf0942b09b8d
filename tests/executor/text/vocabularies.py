"""Tokenizers of synthetic files, and of files with other keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.text.tokenizer import Tokenizer
from tests.synthetic import Q, write_model


def altered(kind: str, metadata: Mapping[str, Value], pre: str | None = None) -> GgufFile:
    """A synthetic file with other tokenizer.ggml keys, which gguf-py would not write."""
    return with_keys({f"tokenizer.ggml.{key}": value for key, value in metadata.items()}, kind, pre)


def with_keys(keys: Mapping[str, Value], kind: str = "none", pre: str | None = None) -> GgufFile:
    """A synthetic file with other keys."""
    base = _file(kind, pre)
    file = GgufFile.__new__(GgufFile)
    file.__dict__.update(base.__dict__)
    file.metadata = dict(base.metadata) | dict(keys)
    return file


@cache
def synthetic(kind: str, pre: str | None = None) -> Tokenizer:
    return Tokenizer.from_gguf(altered(kind, {} if pre is None else {"pre": pre}))


@cache
def _file(kind: str, pre: str | None) -> GgufFile:
    with TemporaryDirectory() as folder:
        sizes = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "types": Q.F32}
        return GgufFile.open(write_model(Path(folder, "m.gguf"), tokenizer=kind, pre=pre, **sizes))
