"""A good file, damaged anywhere, either still loads or raises the package's error: no other exception, no hang, no memory."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.model.model_file import check_tensors, read_spec
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import PtxGenError
from tests.synthetic import Q, write_model

SMALL = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "ff": 32, "types": Q.Q4_0, "vocab": 512}
KINDS = ("gpt2", "llama", "none")


@cache
def good(kind: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = write_model(Path(folder, "m.gguf"), tokenizer=kind, tied=False, rope_freqs=True, **SMALL)
        return path.read_bytes()


def directory_end(content: bytes | bytearray) -> int:
    """Where the data begins, nearly: damage to weights cannot be noticed, so it is not what to try."""
    return content.rindex(b"output.weight") + 64


def load(path: Path) -> None:
    """All that reads a file before anything is uploaded; PtxGenError is the one way to refuse."""
    began = time.process_time()
    try:
        with GgufFile.open(path) as file:
            check_tensors(file, read_spec(file))
            tokenizer = Tokenizer.from_gguf(file)
            tokenizer.decode(tokenizer.encode("the <|im_end|> \u00e9 other"))
    except PtxGenError:
        pass
    assert time.process_time() - began < 5


@pytest.mark.parametrize("kind", KINDS)
def test_the_undamaged_file_loads(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(good(kind))
    with GgufFile.open(path) as file:
        check_tensors(file, read_spec(file))
        Tokenizer.from_gguf(file)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray(good(kind))
    places = st.integers(0, directory_end(content) - 1)
    interesting = st.sampled_from([b"\0", b"\1", b"\xff", b"\x80", b"\0" * 8, b"\xff" * 8, b"\xff" * 4, b"\0\0\0\0\0\0\0\x80"])
    for at, new in data.draw(
        st.lists(st.tuples(places, interesting | st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)
    ):
        content[at : at + len(new)] = new
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    load(path)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    content = good(kind)
    path = tmp_path / "m.gguf"
    last = len(content) - 33  # what follows may be padding
    path.write_bytes(content[: data.draw(st.integers(0, last) | st.integers(0, directory_end(content)))])
    with pytest.raises(PtxGenError):
        GgufFile.open(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_removed_and_repeated_bytes(data: st.DataObject, tmp_path: Path) -> None:
    content = good("gpt2")
    start = data.draw(st.integers(0, directory_end(content)))
    length = data.draw(st.integers(1, 40))
    middle = content[start : start + length] * data.draw(st.sampled_from([0, 2, 3]))
    path = tmp_path / "m.gguf"
    path.write_bytes(content[:start] + middle + content[start + length :])
    load(path)


def array_of(kind: int, count: int, elements: bytes) -> bytes:
    """A file of one key, which holds an array."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    return head + struct.pack("<IIQ", 9, kind, count) + elements


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (array_of(9, 8_000_000, b"\0\0\0\0\0\0\0\0\0\0\0\0" * 8_000_000), "8000000 elements of k; allowed: at most 65536"),
        (array_of(8, 8_000_000, bytes(64_000_000)), "8000000 elements of k; allowed: at most 4194304"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 20) + bytes(13 << 20), "1048576 metadata keys; allowed: at most 65536"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 20, 0) + bytes(36 << 20), "1048576 tensors; allowed: at most 65536"),
    ],
    ids=["arrays", "strings", "keys", "tensors"],
)
def test_counts_that_no_model_has_are_refused_before_anything_is_made(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(ModelError, match=said):
            GgufFile.open(path)
        assert time.process_time() - began < 5
        # Of the directory, memory is set aside and hardly touched.
        assert tracemalloc.get_traced_memory()[1] < len(content) + (4 << 20)
    finally:
        tracemalloc.stop()


def test_arrays_within_arrays_are_counted_over_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    inner = struct.pack("<IQ", 9, 30_000) + struct.pack("<IQ", 0, 0) * 30_000
    path.write_bytes(array_of(9, 3, inner * 3))
    with pytest.raises(ModelError, match="30000 elements of k; allowed: at most 5533"):
        GgufFile.open(path)


def test_a_text_of_20_gigabytes_that_takes_no_room_on_the_disk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 19 << 30))
    os.truncate(path, 20 << 30)
    with pytest.raises(ModelError, match="the directory goes on beyond 268435456 bytes"):
        GgufFile.open(path)


def test_absurd_counts_allocate_nothing(tmp_path: Path) -> None:
    content = bytearray(good("gpt2"))
    path = tmp_path / "m.gguf"
    tracemalloc.start()
    try:
        for at in (8, 16, content.index(b"tokenizer.ggml.tokens") + 29, content.index(b"tokenizer.ggml.merges") + 29):
            damaged = content.copy()
            damaged[at : at + 8] = (1 << 40).to_bytes(8, "little")
            path.write_bytes(damaged)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with pytest.raises(PtxGenError, match="cannot fit"):
                GgufFile.open(path)
            assert tracemalloc.get_traced_memory()[1] - before < 4 << 20
    finally:
        tracemalloc.stop()
