"""A model in several files is one model; what is missing, misplaced or another model's is named."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.device.emulated import EmulatedDevice
from executor.gguf.gguf_file import GgufFile
from executor.gguf.parts import PartName, stem_of
from executor.model.generation import LanguageModel
from tests.executor.gguf.test_gguf_file import container, pair, tensor
from tests.synthetic import Q, write_model

SMALL = {"types": Q.Q8_0, "layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64}
COUNT = 3


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """The first of three files."""
    first = write_model(tmp_path / "m.gguf", tensors_a_file=4, **SMALL)
    assert first.name == "m-00001-of-00003.gguf"
    return first


def part(first: Path, number: int) -> Path:
    return first.with_name(f"m-{number:05}-of-{COUNT:05}.gguf")


def test_a_model_in_several_files_is_the_model_in_one(split: Path) -> None:
    whole = write_model(split.parent / "whole.gguf", **SMALL)
    with GgufFile.open(whole) as one, GgufFile.open(split) as many:
        assert [path.name for path in many.paths] == [part(split, number).name for number in (1, 2, 3)]
        assert {many.tensors[name].part for name in many.tensors} == {0, 1, 2}
        assert one.paths == (whole,)
        assert list(many.tensors) == list(one.tensors)
        for name in one.tensors:
            np.testing.assert_array_equal(many.data(name), one.data(name))
        assert {key for key in many.metadata if not key.startswith("split.")} == set(one.metadata)


@pytest.mark.slow
@pytest.mark.usefixtures("shared_kernels")
def test_a_split_model_computes_what_the_whole_one_does(split: Path) -> None:
    whole = write_model(split.parent / "whole.gguf", **SMALL)
    logits = []
    for path in (whole, split):
        with EmulatedDevice() as device, LanguageModel.load(path, device) as model:
            logits.append(model.logits([1, 2]))
    np.testing.assert_array_equal(logits[0], logits[1])


def refused(path: Path, message: str, named: Path | None = None) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        GgufFile.open(path)
    assert str(caught.value).startswith(f"{named or path}: ")


def test_missing_parts_are_named(split: Path) -> None:
    part(split, 3).unlink()
    refused(split, r"part 1 of the 3 of a model, and beside it there is no m-00003-of-00003.gguf$")
    part(split, 2).unlink()
    refused(split, r"no m-00002-of-00003.gguf, m-00003-of-00003.gguf$")


def test_a_model_is_opened_by_its_first_part(split: Path) -> None:
    refused(part(split, 2), r"part 2 of the 3 of a model; open the first one, m-00001-of-00003.gguf")


def test_parts_in_another_order_are_refused(split: Path) -> None:
    second, third = part(split, 2).read_bytes(), part(split, 3).read_bytes()
    part(split, 2).write_bytes(third)
    part(split, 3).write_bytes(second)
    refused(split, "its split.no is 2, and by its name it must be 1", part(split, 2))
    split.write_bytes(second)
    refused(split, "part 2 of the 3 of a model, and its name says part 1")


def test_a_part_with_another_name_does_not_find_the_others(split: Path) -> None:
    for name in ("renamed.gguf", "m-00001-of-00004.gguf"):
        other = shutil.copy(split, split.parent / name)
        refused(Path(other), r"so its name must end in -00001-of-00003.gguf")


def test_a_part_of_another_model_is_refused(split: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = write_model(tmp_path / "other" / "m.gguf", tensors_a_file=5, **SMALL | {"layers": 1, "tied": False})
    shutil.copy(part(other, 2), part(split, 2))
    refused(split, r"part of another model: split.tensors.count is 12 here and 11 in m-00001-of-00003", part(split, 2))
    shutil.copy(part(split, 3), part(split, 2))
    whole = write_model(tmp_path / "whole.gguf", **SMALL)
    shutil.copy(whole, part(split, 2))
    refused(split, "its split.no is -1", part(split, 2))


Write = Callable[[int, list[bytes], list[bytes]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file as part N of two, of these keys and tensors."""

    def file(number: int, pairs: list[bytes], tensors: list[bytes]) -> Path:
        path = tmp_path / f"p-{number + 1:05}-of-00002.gguf"
        own = [pair("split.no", 2, struct.pack("<H", number)), pair("split.count", 2, struct.pack("<H", 2))]
        path.write_bytes(container([*own, *pairs], tensors, bytes(64)))
        return path

    return file


def test_a_tensor_in_two_parts_is_refused(write: Write) -> None:
    first, second = write(0, [], [tensor("a", (4,))]), write(1, [], [tensor("a", (4,))])
    refused(first, "tensor a is here, and in p-00001-of-00002.gguf too", second)


def test_tensors_that_no_part_has_are_missed(write: Write) -> None:
    first = write(0, [pair("split.tensors.count", 5, struct.pack("<i", 3))], [tensor("a", (4,))])
    write(1, [], [tensor("b", (4,))])
    refused(first, "split.tensors.count is 3, and the files have 2 tensors")


def test_a_key_that_differs_between_parts_tells_another_model(write: Write) -> None:
    nested = struct.pack("<IQ", 9, 2) + struct.pack("<IQB", 0, 1, 7) + struct.pack("<IQ2B", 0, 2, 7, 8)
    first = write(0, [pair("k", 9, nested)], [])
    second = write(1, [pair("k", 9, nested)], [tensor("b", (4,))])
    assert list(GgufFile.open(first).tensors) == ["b"]
    write(1, [pair("k", 9, nested[:-1] + b"\3")], [])
    refused(first, "part of another model: k is", second)


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([pair("split.count", 4, struct.pack("<I", 70_000))], "one of 70000 parts of a model; allowed: at most 512"),
        ([pair("split.count", 8, struct.pack("<Q", 1) + b"3")], "split.count is '3'; allowed: a whole number"),
        (
            [pair("split.no", 7, b"\1")],
            "split.no is True; allowed: a whole number",
        ),
    ],
)
def test_what_is_no_count_of_parts_is_refused(pairs: list[bytes], said: str, tmp_path: Path) -> None:
    path = tmp_path / "p-00001-of-00002.gguf"
    path.write_bytes(container(pairs, []))
    refused(path, said)


def test_a_damaged_part_names_itself_and_every_file_is_closed(split: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    content = part(split, 3).read_bytes()
    part(split, 3).write_bytes(content[:50])
    refused(split, "3 tensors cannot fit", part(split, 3))
    part(split, 3).write_bytes(content)
    with GgufFile.open(split) as file:
        assert len(os.listdir("/proc/self/fd")) == before + 3
        last = list(file.tensors)[-1]
        os.truncate(part(split, 3), file.tensors[last].offset)
        with pytest.raises(ModelError, match=f"{part(split, 3)}: tensor {last} cannot be read: the file has become shorter"):
            file.data(last)
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_names_of_parts() -> None:
    name = PartName.parse("a/b-00002-of-00003.GGUF")
    assert name == PartName("a/b", 2, 3, ".GGUF")
    assert str(name) == "a/b-00002-of-00003.GGUF"
    for other in ("b.gguf", "b-2-of-3.gguf", "b-00000-of-00003.gguf", "b-00004-of-00003.gguf", "b-00001-of-00003.gguf.part"):
        assert PartName.parse(other) is None
    assert (stem_of("b-00002-of-00003.gguf"), stem_of("b.gguf"), stem_of("b")) == ("b", "b", "b")
