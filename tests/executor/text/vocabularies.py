"""Tokenizers of synthetic files, and of files with other keys."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile
from executor.text.tokenizer import Tokenizer
from tests.synthetic import Q, write_model


def altered(kind: str, metadata: dict[str, Value], pre: str | None = None, **more: Value) -> GgufFile:
    """A file with other tokenizer.ggml keys, which gguf-py would not write. more: other keys, with _ for a point."""
    base = _file(kind, pre)
    file = GgufFile.__new__(GgufFile)
    file.__dict__.update(base.__dict__)
    others = {key.replace("_", ".", 1): value for key, value in more.items()}
    file.metadata = dict(base.metadata) | {f"tokenizer.ggml.{key}": value for key, value in metadata.items()} | others
    return file


@cache
def synthetic(kind: str, pre: str | None = None) -> Tokenizer:
    return Tokenizer.from_gguf(altered(kind, {} if pre is None else {"pre": pre}))


@cache
def _file(kind: str, pre: str | None) -> GgufFile:
    with TemporaryDirectory() as folder:
        sizes = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "types": Q.F32}
        return GgufFile.open(write_model(Path(folder, "m.gguf"), tokenizer=kind, pre=pre, **sizes))
