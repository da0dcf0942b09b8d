"""A strict reader of the directory of a GGUF file: its keys, and where its tensors lie. What the keys mean lives in config.py
and tokenizer.py, what a model in several files is in gguf_file.py.

A file is an adversary here: every count, length and offset is checked against the bytes that are left, and against what a
model can have, before anything is allocated or read, so a bad file costs a ModelError and nothing else.

Layout, versions 2 and 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from executor.base.errors import ModelError, shown
from executor.gguf.file_bytes import FileBytes

GgmlType: TypeAlias = GGMLQuantizationType
Array: TypeAlias = NDArray[np.generic]
Value: TypeAlias = "int | float | bool | str | list[str] | list[Value] | Array"

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32  # bytes
MAX_DIMENSIONS: Final = 4
MAX_NESTING: Final = 4  # arrays of arrays; no known key has even two levels
MAX_DIRECTORY: Final = 256 << 20  # bytes before the tensors' data; a vocabulary of 262144 tokens takes 15 MB
MAX_KEYS: Final = 1 << 16  # models have 20 to 60
MAX_TENSORS: Final = 1 << 16  # the largest models have some thousands
MAX_STRINGS: Final = 1 << 22  # in all arrays; the largest vocabularies have 2^18 tokens and about as many merges
MAX_ARRAYS: Final = 1 << 16  # within other arrays, in all
_AHEAD: Final = 1 << 20  # bytes of the directory that are read at once

_SCALARS: Final = {
    kind: struct.Struct("<" + letter)
    for kind, letter in {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}.items()
}
_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
_NAMES: Final[dict[int, str]] = dict(
    enumerate(("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"))
)
_MIN_BYTES: Final = {kind: packed.size for kind, packed in _SCALARS.items()} | {_BOOL: 1, _STRING: 8, _ARRAY: 12}
_MIN_PAIR: Final = 8 + 4 + 1  # key length, value type, value
_MIN_TENSOR: Final = 8 + 4 + 8 + 4 + 8  # name length, dimensions, one size, type, offset
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` has rows first, so shape[-1] is the length of a row (K): the file has the reverse.

    offset: bytes from the start of its file; nbytes: bytes of the packed blocks; part: which file of the model's it is, from 0;
    ranks: if it is one device's part of a tensor, the number of such parts.
    """

    name: str
    ggml_type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int = 0
    ranks: int = 1


def read_directory(content: FileBytes) -> tuple[dict[str, Value], dict[str, TensorInfo]]:
    """The keys and tensors of one file. ModelError for anything that is not a whole, consistent GGUF file."""
    return _Reader(content).read()


def _kept(part: Array) -> Array:
    """A read-only copy of a part of the directory, which goes when it has been read."""
    copy = part.copy()
    copy.flags.writeable = False
    return copy


class _Reader:
    """A cursor over the directory of a file. Each read says what it reads, so that a short file names what it lacks."""

    def __init__(self, content: FileBytes) -> None:
        self.content = content
        self.size = content.size
        self.at = 0
        self.strings_left, self.arrays_left = MAX_STRINGS, MAX_ARRAYS
        # Memory that is not yet written to costs nothing: it is filled as far as the directory goes.
        self._read = np.empty(min(self.size, MAX_DIRECTORY), np.uint8)
        self._filled = 0
        self.view = self._read.data.toreadonly()

    def fail(self, message: str) -> NoReturn:
        raise ModelError(message, self.content.path)

    def need(self, count: int, what: str) -> int:
        """Step over `count` bytes; the offset where they start."""
        start = self.at
        if count > self.size - start:
            self.fail(f"truncated: {what} needs {count} bytes at offset {start}, and the file ends at {self.size}")
        self.at = start + count
        if self.at > self._filled:
            self.fill(self.at)
        return start

    def fill(self, end: int) -> int:
        """Read on at least to `end`, which lies in the file; how far the directory has been read then."""
        if end > self._read.size:
            self.fail(f"the directory goes on beyond {MAX_DIRECTORY} bytes; allowed: at most that many")
        if end > self._filled:
            ahead = min(max(end, self._filled + _AHEAD), self._read.size)
            self.content.read_into(self._filled, self._read[self._filled : ahead], "the directory")
            self._filled = ahead
        return self._filled

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.view, self.need(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.view, self.need(8, what))[0])

    def string(self, what: str) -> str:
        length = self.u64(f"the length of {what}")
        start = self.need(length, what)
        try:
            return str(self.view[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} at offset {start} is not UTF-8: {error.reason} at byte {error.start}")

    def count(self, what: str, least: int, most: int | None = None) -> int:
        """A count of things that take at least `least` bytes each, refused if the rest of the file cannot hold them, and if
        there are more than `most`."""
        value = self.u64(f"the number of {what}")
        if value * least > self.size - self.at:
            self.fail(f"{value} {what} cannot fit in the {self.size - self.at} bytes that follow offset {self.at}")
        if most is not None and value > most:
            self.fail(f"there are {value} {what}; allowed: at most {most}")
        return value

    def read(self) -> tuple[dict[str, Value], dict[str, TensorInfo]]:
        self.header()
        tensor_count = self.count("tensors", _MIN_TENSOR, MAX_TENSORS)
        pair_count = self.count("metadata keys", _MIN_PAIR, MAX_KEYS)
        metadata: dict[str, Value] = {}
        for index in range(pair_count):
            key = self.string(f"metadata key {index}")
            if key in metadata:
                self.fail(f"metadata key {shown(key)} is there twice")
            label = shown(key)
            metadata[key] = self.value(self.u32(f"the value type of {label}"), label, MAX_NESTING)
        alignment = self.alignment(metadata)
        tensors: dict[str, TensorInfo] = {}
        for index in range(tensor_count):
            tensor = self.tensor(index, alignment)
            if tensor.name in tensors:
                self.fail(f"tensor {shown(tensor.name)} is there twice")
            tensors[tensor.name] = tensor
        return metadata, self.placed(tensors, alignment)

    def header(self) -> None:
        magic = bytes(self.view[: min(len(MAGIC), self.fill(min(len(MAGIC), self.size)))])
        if magic == MAGIC[::-1]:
            self.fail("this is a byte-swapped (big-endian) GGUF file; only little-endian files can be read")
        if len(magic) == len(MAGIC) and magic != MAGIC:
            self.fail(f"this is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
        self.need(len(MAGIC), "the magic number")
        version = self.u32("the version")
        if version not in VERSIONS:
            if version and version & 0xFFFF == 0:
                self.fail("this is a byte-swapped (big-endian) GGUF file; only little-endian files can be read")
            self.fail(f"GGUF version {version} is not supported; supported versions: {', '.join(map(str, VERSIONS))}")

    def value(self, kind: int, key: str, nesting: int) -> Value:
        if kind == _STRING:
            return self.string(f"the value of {key}")
        if kind == _ARRAY:
            return self.array(key, nesting)
        if kind == _BOOL:
            return self.boolean(self.view[self.need(1, f"the value of {key}")], key)
        packed = _SCALARS.get(kind)
        if packed is None:
            self.unknown(kind, key)
        number: int | float = packed.unpack_from(self.view, self.need(packed.size, f"the value of {key}"))[0]
        return number

    def array(self, key: str, nesting: int) -> Value:
        kind = self.u32(f"the element type of {key}")
        if kind not in _MIN_BYTES:
            self.unknown(kind, key)
        most = {_STRING: self.strings_left, _ARRAY: self.arrays_left}.get(kind)
        count = self.count(f"elements of {key}", _MIN_BYTES[kind], most)
        if kind == _STRING:
            self.strings_left -= count
            return self.strings(key, count)
        if kind == _ARRAY:
            self.arrays_left -= count
            if nesting == 0:
                self.fail(f"{key} nests arrays deeper than {MAX_NESTING} levels")
            return [self.array(key, nesting - 1) for _ in range(count)]
        if kind == _BOOL:
            start = self.need(count, key)
            flags = np.frombuffer(self.view, np.uint8, count, start)
            if count and int(flags.max()) > 1:
                self.boolean(int(flags.max()), key)
            return _kept(flags.view(np.bool_))
        packed = _SCALARS[kind]
        start = self.need(count * packed.size, key)
        return _kept(np.frombuffer(self.view, np.dtype(packed.format), count, start))

    def strings(self, key: str, count: int) -> list[str]:
        """Vocabularies have 10^5 of these, so the loop is written out."""
        view, at, size, filled, length_of = self.view, self.at, self.size, self._filled, _U64.unpack_from
        out: list[str] = []
        append = out.append
        for index in range(count):
            start = at + 8
            if filled < start <= size:
                filled = self.fill(start)
            at = start + length_of(view, at)[0] if start <= size else start
            if at > size:
                self.fail(f"truncated: element {index} of {key} ends beyond the file, which has {size} bytes")
            if at > filled:
                filled = self.fill(at)
            try:
                append(str(view[start:at], "utf-8"))
            except UnicodeDecodeError as error:
                self.fail(f"element {index} of {key} at offset {start} is not UTF-8: {error.reason} at byte {error.start}")
        self.at = at
        return out

    def boolean(self, byte: int, key: str) -> bool:
        if byte > 1:
            self.fail(f"{key} holds a bool with the value {byte}; allowed: 0, 1")
        return bool(byte)

    def unknown(self, kind: int, key: str) -> NoReturn:
        allowed = ", ".join(f"{number} {name}" for number, name in _NAMES.items())
        self.fail(f"metadata key {key} has value type {kind}, which does not exist; known types: {allowed}")

    def alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value & (value - 1):
            self.fail(f"general.alignment is {shown(value)}; allowed: a power of two")
        return value

    def tensor(self, index: int, alignment: int) -> TensorInfo:
        """One directory entry; its offset is still relative to the data section."""
        name = self.string(f"the name of tensor {index}")
        label = f"tensor {shown(name)}"
        dimensions = self.u32(f"the dimensions of {label}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            self.fail(f"{label} has {dimensions} dimensions; allowed: 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.u64(f"the shape of {label}") for _ in range(dimensions))[::-1]
        number = self.u32(f"the type of {label}")
        offset = self.u64(f"the offset of {label}")
        try:
            ggml_type = GGMLQuantizationType(number)
        except ValueError:
            types = ", ".join(kind.name for kind in GGMLQuantizationType)
            self.fail(f"{label} has GGML type {number}, which does not exist; known types: {types}")
        if 0 in shape:
            self.fail(f"{label} has shape {list(shape)}; every dimension must be at least 1")
        values, size = map(int, GGML_QUANT_SIZES[ggml_type])
        if shape[-1] % values:
            self.fail(f"{label} has rows of {shape[-1]} values, which {ggml_type.name} blocks of {values} do not divide")
        if offset % alignment:
            self.fail(f"{label} starts at offset {offset}, which is not a multiple of the alignment {alignment}")
        return TensorInfo(name, ggml_type, shape, offset, math.prod(shape) // values * size)

    def placed(self, tensors: dict[str, TensorInfo], alignment: int) -> dict[str, TensorInfo]:
        """Offsets made absolute, once it is known where the data section starts; none overlaps or leaves the file."""
        start = -(-self.at // alignment) * alignment
        end, owner = 0, ""
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                self.fail(f"tensor {shown(tensor.name)} at offset {tensor.offset} overlaps {shown(owner)}, which ends at {end}")
            end, owner = tensor.offset + tensor.nbytes, tensor.name
            if end > self.size - start:
                self.fail(
                    f"tensor {shown(owner)} with shape {list(tensor.shape)} and type {tensor.ggml_type.name} ends at "
                    f"{start + end}, beyond the end of the file at {self.size}"
                )
        return {name: TensorInfo(name, t.ggml_type, t.shape, start + t.offset, t.nbytes) for name, t in tensors.items()}
