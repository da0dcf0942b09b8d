"""An open GGUF model, in one file or in several: its keys, its tensors, and their bytes, read on demand.

A model that was split (llama.cpp's gguf-split, gguf-py) is opened by its first file, which has the keys; the others lie beside
it, under the names that its own name implies. Nothing in a file names another one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.base.arguments import described
from executor.base.errors import ModelError, quoted, shown
from executor.gguf.directory import MAX_TENSORS, TensorInfo, Value, read_directory
from executor.gguf.file_bytes import FileBytes
from executor.gguf.parts import PartName
from ptxgen.errors import ArgumentError

MAX_PARTS: Final = 512
"""Each is an open file; the largest models have some dozens."""
NUMBER: Final = "split.no"  # from 0 on
COUNT: Final = "split.count"
TENSORS: Final = "split.tensors.count"  # of all parts
_OF_A_PART: Final = (NUMBER, "general.alignment")
"""Keys in which the parts of one model may differ."""

_log = logging.getLogger(__name__)


class GgufFile:
    """An open model: `metadata` of its first file, `tensors` of all, and the bytes of the tensors, read on demand."""

    def __init__(self, contents: Sequence[FileBytes], metadata: dict[str, Value], tensors: dict[str, TensorInfo]) -> None:
        self.path = contents[0].path
        self.metadata: Mapping[str, Value] = MappingProxyType(metadata)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self._contents = tuple(contents)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufFile:
        """Open the file, and the other parts of a model that is split, and read their directories. ModelError for anything that
        is not a whole, consistent GGUF model."""
        began = time.perf_counter()
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(f"the model is {described(path)}; allowed: the path of a GGUF file")
        contents = [FileBytes(Path(path))]
        try:
            metadata, tensors = read_directory(contents[0])
            for other in _other_parts(contents[0].path, metadata):
                contents.append(FileBytes(other))
                tensors |= _tensors_of_part(contents, metadata, tensors)
            _require_all_tensors(contents[0].path, metadata, tensors)
        except BaseException:
            for content in contents:
                content.close()
            raise
        _log.info(
            "%s: %d keys, %d tensors, %d files, %.3f s",
            path,
            len(metadata),
            len(tensors),
            len(contents),
            time.perf_counter() - began,
        )
        return cls(contents, metadata, tensors)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Its files, in the order that `TensorInfo.part` counts."""
        return tuple(content.path for content in self._contents)

    def data(self, name: str) -> NDArray[np.uint8]:
        """The packed bytes of a tensor: u8[nbytes]. Raises ModelError as `read_into` does."""
        content = np.empty(self._tensor(name).nbytes, np.uint8)
        self.read_into(name, 0, content)
        return content

    def read_into(self, name: str, start: int, into: NDArray[np.uint8]) -> None:
        """Fill an array with the packed bytes of a tensor from `start` on; several threads may do so at once. Raises ModelError
        for a tensor that is not there, bytes that are not the tensor's, a closed file, and one that the system cannot read or
        that has become shorter."""
        tensor = self._tensor(name)
        if not 0 <= start <= tensor.nbytes - into.nbytes:
            raise ModelError(f"tensor {name} has {tensor.nbytes} bytes, not {into.nbytes} from {start} on", self.path)
        self._contents[tensor.part].read_into(tensor.offset + start, into, f"tensor {name}")

    def close(self) -> None:
        """Let go of the files. What was read stays."""
        for content in self._contents:
            content.close()

    def _tensor(self, name: str) -> TensorInfo:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(f"there is no tensor {name}", self.path)
        return tensor

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _other_parts(path: Path, metadata: Mapping[str, Value]) -> list[Path]:
    """The files of a split model but the first, which this one must be; none of a model that is whole."""
    count, number = _whole(path, metadata, COUNT, 1), _whole(path, metadata, NUMBER, 0)
    if count < 2:
        return []
    if count > MAX_PARTS:
        raise ModelError(f"this is one of {count} parts of a model; allowed: at most {MAX_PARTS}", path)
    name = PartName.parse(path.name)
    if name is None or name.count != count:
        raise ModelError(
            f"{_place(number, count)}, so its name must end in {PartName('', number + 1, count)}; by it the others are found",
            path,
        )
    if name.number != number + 1:
        raise ModelError(f"{_place(number, count)}, and its name says part {name.number}", path)
    if number:
        raise ModelError(f"{_place(number, count)}; open the first one, {name.all[0]}", path)
    others = [path.with_name(part) for part in name.all[1:]]
    missing = [part.name for part in others if not part.exists()]
    if missing:
        raise ModelError(f"{_place(number, count)}, and beside it there is no {', '.join(missing)}", path)
    return others


def _tensors_of_part(
    contents: Sequence[FileBytes], metadata: Mapping[str, Value], known: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """What the last of these files adds to a model that begins with the first. ModelError if it does not belong there."""
    first, path, number = contents[0].path, contents[-1].path, len(contents) - 1
    own, tensors = read_directory(contents[-1])
    if (said := _whole(path, own, NUMBER, -1)) != number:
        raise ModelError(f"its {NUMBER} is {said}, and by its name it must be {number}", path)
    for key, value in own.items():
        if key in metadata and key not in _OF_A_PART and not _same(value, metadata[key]):
            there = f"{quoted(metadata[key])} in {first.name}"
            raise ModelError(f"this is a part of another model: {shown(key)} is {quoted(value)} here and {there}", path)
    if COUNT not in own:
        raise ModelError(f"this is no part of a model: it has no {COUNT}", path)
    if (total := len(known) + len(tensors)) > MAX_TENSORS:
        raise ModelError(f"the parts up to this one have {total} tensors; allowed: at most {MAX_TENSORS}", path)
    for name in tensors:
        if name in known:
            raise ModelError(f"tensor {shown(name)} is here, and in {contents[known[name].part].path.name} too", path)
    return {name: TensorInfo(name, t.ggml_type, t.shape, t.offset, t.nbytes, number) for name, t in tensors.items()}


def _require_all_tensors(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, TensorInfo]) -> None:
    expected = _whole(path, metadata, TENSORS, len(tensors))
    if expected != len(tensors):
        raise ModelError(f"{TENSORS} is {expected}, and the files have {len(tensors)} tensors", path)


def _same(a: Value, b: Value) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


def _whole(path: Path, metadata: Mapping[str, Value], key: str, default: int) -> int:
    value = metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{key} is {quoted(value)}; allowed: a whole number", path)
    return value


def _place(number: int, count: int) -> str:
    return f"this is part {number + 1} of the {count} of a model"
