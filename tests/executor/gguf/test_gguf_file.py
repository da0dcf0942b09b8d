"""The container: what gguf-py writes is read back, and every way to be wrong is a ModelError that says what and where."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.gguf.directory import GgmlType
from executor.gguf.gguf_file import GgufFile
from tests.real_models import smollm2_path
from tests.synthetic import write_model


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def container(pairs: list[bytes], tensors: list[bytes], data: bytes = b"", version: int = 3, align: int = 32) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % align) + data


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[bytes, str], None]:
    def check(content: bytes, message: str) -> None:
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=message) as caught:
            GgufFile.open(path)
        assert str(caught.value).startswith(f"{path}: ")

    return check


def test_what_gguf_py_writes_is_read_back(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", metadata={"x.flag": True, "x.small": -3, "x.words": "h\u00e9", "x.real": 0.5})
    theirs = gguf.GGUFReader(path)
    with GgufFile.open(path) as ours:
        assert {name: t.ggml_type for name, t in ours.tensors.items()} == {t.name: t.tensor_type for t in theirs.tensors}
        for expected in theirs.tensors:
            assert ours.tensors[expected.name].shape == tuple(int(n) for n in expected.shape[::-1])
            np.testing.assert_array_equal(ours.data(expected.name), expected.data.view(np.uint8).ravel())
        for key, value in ours.metadata.items():
            np.testing.assert_array_equal(value, theirs.fields[key].contents())


def test_tensor_data_is_read_in_whole_or_in_part_until_the_file_is_closed(tmp_path: Path) -> None:
    file = GgufFile.open(write_model(tmp_path / "m.gguf", layers=1))
    whole = file.data("output_norm.weight")
    part = np.zeros(10, np.uint8)
    file.read_into("output_norm.weight", 7, part)
    np.testing.assert_array_equal(part, whole[7:17])
    for start in (-1, whole.size - 9):
        with pytest.raises(ModelError, match=f"output_norm.weight has {whole.size} bytes, not 10 from {start} on"):
            file.read_into("output_norm.weight", start, part)
    file.close()
    with pytest.raises(ModelError, match="closed"):
        file.data("output_norm.weight")


def test_a_file_that_becomes_shorter_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1)
    with GgufFile.open(path) as file:
        os.truncate(path, file.tensors["output_norm.weight"].offset + 100)
        with pytest.raises(ModelError, match=r"output_norm.weight cannot be read: the file has become shorter"):
            file.data("output_norm.weight")
        assert file.data("token_embd.weight").size == file.tensors["token_embd.weight"].nbytes


def test_a_file_that_nobody_has_any_more_is_closed(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", layers=1)
    before = len(os.listdir("/proc/self/fd"))
    files = [GgufFile.open(path) for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before + 5
    del files
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no tensor nothing"):
        GgufFile.open(write_model(tmp_path / "m.gguf", layers=1)).data("nothing")


def test_version_2_and_another_alignment_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    aligned = pair("general.alignment", 4, struct.pack("<I", 128))
    path.write_bytes(container([aligned], [tensor("t", (2, 3))], b"\1" * 24, version=2, align=128))
    file = GgufFile.open(path)
    assert file.tensors["t"].shape == (3, 2)
    assert file.tensors["t"].ggml_type is GgmlType.F32
    assert file.data("t").tolist() == [1] * 24


def test_nested_arrays_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    inner = struct.pack("<IQ2B", 0, 2, 7, 8)
    path.write_bytes(container([pair("k", 9, struct.pack("<IQ", 9, 1) + inner)], []))
    value = GgufFile.open(path).metadata["k"]
    assert isinstance(value, list)
    assert np.asarray(value).tolist() == [[7, 8]]


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, message in {
        "missing": "no such file",
        ".": "directory",
        "pipe": "not a regular file",
        "empty": "is empty",
    }.items():
        with pytest.raises(ModelError, match=message):
            GgufFile.open(tmp_path / name)
    with pytest.raises(ModelError, match="null byte"):
        GgufFile.open("a\0b")


def test_headers(refused: Callable[[bytes, str], None]) -> None:
    refused(b"GG", "truncated: the magic number")
    refused(b"GGML" + bytes(20), "starts with b'GGML'")
    refused(b"FUGG" + bytes(20), "byte-swapped")
    refused(b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte-swapped")
    refused(container([], [], version=1), "version 1 is not supported; supported versions: 2, 3")
    refused(container([], [], version=4), "version 4 is not supported")
    refused(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors cannot fit")
    refused(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "metadata keys cannot fit")


def test_metadata(refused: Callable[[bytes, str], None]) -> None:
    one = pair("k", 0, b"\1")
    refused(container([one, one], []), "metadata key k is there twice")
    refused(container([pair("k", 13, bytes(8))], []), "k has value type 13.*known types: 0 u8, 1 i8")
    refused(container([pair("k", 7, b"\2")], []), "k holds a bool with the value 2; allowed: 0, 1")
    refused(container([pair("k", 9, struct.pack("<IQ2B", 7, 2, 0, 9))], []), "k holds a bool with the value 9")
    refused(container([pair("k", 9, struct.pack("<IQ", 4, 1 << 61))], []), "elements of k cannot fit")
    refused(container([pair("k", 9, struct.pack("<IQ", 99, 0))], []), "value type 99")
    refused(container([pair("k", 8, struct.pack("<Q", 1 << 62))], []), "truncated: the value of k")
    refused(container([pair("k", 8, struct.pack("<Q", 2) + b"\xff\xfe")], []), "the value of k .* is not UTF-8")
    refused(
        container([pair("k", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 1) + b"\xff")], []), "element 0 of k .* not UTF-8"
    )
    refused(container([pair("k", 9, struct.pack("<IQQ", 8, 1, 1 << 40))], []), "element 0 of k ends beyond the file")
    deep = struct.pack("<IQ", 9, 1) * 6 + struct.pack("<IQ", 0, 0)
    refused(container([pair("k", 9, deep)], []), "nests arrays deeper than")
    refused(container([pair("general.alignment", 4, struct.pack("<I", 24))], []), "general.alignment is 24.*power of two")
    refused(container([pair("general.alignment", 4, bytes(4))], []), "general.alignment is 0")


def test_tensors(refused: Callable[[bytes, str], None]) -> None:
    refused(container([], [tensor("a", (4,)), tensor("a", (4,))], bytes(64)), "tensor a is there twice")
    refused(
        container([], [tensor("blk.3.attn_q.weight", (32,), 250)], bytes(64)), "attn_q.weight has GGML type 250.*F32, F16, Q4_0"
    )
    refused(container([], [tensor("a", (4, 0))], bytes(64)), "every dimension must be at least 1")
    refused(container([], [tensor("a", (1,) * 5)], bytes(64)), "5 dimensions; allowed: 1 to 4")
    refused(container([], [tensor("a", (1 << 40, 1 << 40))], bytes(64)), "beyond the end of the file")
    refused(container([], [tensor("a", (48,), 2)], bytes(64)), "rows of 48 values, which Q4_0 blocks of 32 do not divide")
    refused(container([], [tensor("a", (4,), 0, 8)], bytes(64)), "offset 8, which is not a multiple of the alignment 32")
    refused(container([], [tensor("a", (4,), 0, 1 << 62)], bytes(64)), "beyond the end of the file")
    refused(
        container([], [tensor("a", (16,)), tensor("b", (4,), 0, 32)], bytes(64)), "b at offset 32 overlaps a, which ends at 64"
    )


@pytest.mark.slow
def test_smollm2_opens_in_a_fraction_of_a_second() -> None:
    file = GgufFile.open(smollm2_path())
    assert len(file.tensors) == 272
    assert file.tensors["token_embd.weight"].shape == (49152, 576)
    assert file.tensors["token_embd.weight"].ggml_type is GgmlType.Q8_0
