"""`--arg` of `ptxgen run`: words of a command line to NumPy arrays and scalars. Whether they fit a kernel the emulator says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import NUMPY
from ptxgen.errors import ArgumentError
from ptxgen.printable import excerpt
from ptxgen.types import BF16, BF16X2, F16X2

DTYPES: Final = {type.name: dtype for type, dtype in NUMPY.items() if type not in (BF16, F16X2, BF16X2)}
"""PTX types that NumPy has too; `b` types are its unsigned integers. Write bf16 as b16."""

_DEEPEST: Final = 20  # structs within each other
SOURCES: Final = (
    "zeros, ones, arange, random, random:SEED, out, hex:DIGITS, @FILE.npy, a number, or numbers separated by commas"
)


@dataclass(frozen=True)
class RunArgument:
    """An argument: its word on the command line, its value (a structured scalar for fields in braces), and whether its memory
    counts as written."""

    word: str
    value: NDArray[Any] | np.generic
    written: bool = True

    def head(self, most: int) -> list[float]:
        """The first numbers in memory, fields of structs one after the other."""
        return list(islice(_numbers_of(self.value), most))


def parse_argument(word: str) -> RunArgument:
    """The argument that a word describes; `ptxgen run --help` has the syntax. Raises ArgumentError with what is allowed."""
    if word.startswith("{"):
        return RunArgument(word, _struct(word))
    if word.startswith("@"):
        return RunArgument(word, _loaded(word, Path(word[1:])))
    array = re.fullmatch(r"(\w+)\[([^\]]*)\]=(.+)", word)
    if array:
        dtype, shape = _dtype(word, array[1]), _shape(word, array[2])
        return RunArgument(word, _array(word, dtype, shape, array[3]), written=array[3] != "out")
    scalar = re.fullmatch(r"(\w+):(.+)", word)
    if scalar:
        return RunArgument(word, _numbers(word, _dtype(word, scalar[1]), [scalar[2]])[0])
    raise ArgumentError(f"--arg {word}: neither TYPE:VALUE nor TYPE[SHAPE]=SOURCE nor {{FIELD;FIELD}} nor @FILE.npy")


def _struct(word: str) -> np.generic:
    """A struct of what stands in the braces, laid out as C does: each field at a multiple of its alignment, and the whole size
    a multiple of the largest."""
    fields = [parse_argument(field.strip()) for field in _fields(word)]
    unwritten = [field.word for field in fields if not field.written]
    if unwritten:
        raise ArgumentError(f"--arg {word}: {unwritten[0]}: a field has a value")
    layout = [(f"field{i}", field.value.dtype, field.value.shape) for i, field in enumerate(fields)]
    struct: Any = np.zeros((), np.dtype(layout, align=True))
    for (name, _, _), field in zip(layout, fields, strict=True):
        struct[name] = field.value
    value: np.generic = struct[()]
    return value


def _fields(word: str) -> list[str]:
    """The words between the outermost braces, which semicolons outside inner braces separate."""
    fields, depths = [""], [1]
    for letter in word[1:-1]:
        depths.append(depths[-1] + (letter == "{") - (letter == "}"))
        if letter == ";" and depths[-1] == 1:
            fields.append("")
        else:
            fields[-1] += letter
    balanced = word.endswith("}") and depths[-1] == 1 <= min(depths) and max(depths) <= _DEEPEST
    if not balanced or not all(field.strip() for field in fields):
        raise ArgumentError(f"--arg {excerpt(word)}: a struct is written {{FIELD;FIELD}}, such as {{u32:3;f32[2]=1,2}}")
    return fields


def _numbers_of(value: Any) -> Iterator[float]:
    if value.dtype.names:
        for name in value.dtype.names:
            yield from _numbers_of(value[name])
    else:
        for number in value.flat if value.ndim else (value,):
            yield number.item()


def _dtype(word: str, name: str) -> np.dtype[Any]:
    if name not in DTYPES:
        raise ArgumentError(f"--arg {word}: unknown type {name!r}; known: {', '.join(DTYPES)}")
    return DTYPES[name]


def _shape(word: str, text: str) -> tuple[int, ...]:
    sizes = [size.strip() for size in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,18}", size) for size in sizes):
        raise ArgumentError(
            f"--arg {word}: the shape is {text!r}; it must be whole numbers from 1 to {10**19 - 1} separated by commas"
        )
    return tuple(map(int, sizes))


def _array(word: str, dtype: np.dtype[Any], shape: tuple[int, ...], source: str) -> NDArray[Any]:
    try:
        if source in ("zeros", "out"):
            return np.zeros(shape, dtype)
        if source == "ones":
            return np.ones(shape, dtype)
        if source.startswith("hex:"):
            return _from_hex(word, dtype, shape, source[4:])
        if source == "arange":
            return np.arange(math.prod(shape)).astype(dtype).reshape(shape)
        kind, _, seed = source.partition(":")
        if kind == "random":
            return _random(word, dtype, shape, seed or "0")
        values = _loaded(word, Path(source[1:])) if source.startswith("@") else _numbers(word, dtype, source.split(","))
        if values.dtype != dtype:
            raise ArgumentError(f"--arg {word}: the file holds {values.dtype}, not {dtype}")
        if values.size == 1 and not source.startswith("@"):
            return np.full(shape, values[0])
        if values.size != math.prod(shape):
            raise ArgumentError(f"--arg {word}: {values.size} values for a shape of {math.prod(shape)} elements")
        return values.reshape(shape)
    except (MemoryError, OverflowError) as error:
        raise ArgumentError(f"--arg {word}: an array of {math.prod(shape)} elements does not fit the memory") from error
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"--arg {word}: {error}") from error  # NumPy's word on a shape past its limits


def _from_hex(word: str, dtype: np.dtype[Any], shape: tuple[int, ...], digits: str) -> NDArray[Any]:
    size = math.prod(shape) * dtype.itemsize
    if not re.fullmatch("([0-9a-fA-F]{2})*", digits):
        raise ArgumentError(f"--arg {excerpt(word)}: after hex: stand two hexadecimal digits for each byte, in order of memory")
    if len(digits) != 2 * size:
        raise ArgumentError(f"--arg {excerpt(word)}: {len(digits) // 2} bytes for an array of {size} bytes")
    return np.frombuffer(bytearray.fromhex(digits), dtype).reshape(shape)


def _random(word: str, dtype: np.dtype[Any], shape: tuple[int, ...], seed: str) -> NDArray[Any]:
    if not re.fullmatch("[0-9]{1,100}", seed):
        raise ArgumentError(f"--arg {word}: the seed is {seed!r}; it must be a whole number of up to 100 digits")
    generator = np.random.default_rng(int(seed))
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _numbers(word: str, dtype: np.dtype[Any], texts: list[str]) -> NDArray[Any]:
    values: list[float] = []
    for text in texts:
        try:
            value = float(text) if dtype.kind == "f" else int(text, 0)
        except ValueError:
            kind = "a number" if dtype.kind == "f" else "a whole number that fits"
            raise ArgumentError(f"--arg {word}: {text!r} is not {kind}; a source is {SOURCES}") from None
        if dtype.kind != "f" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            raise ArgumentError(f"--arg {word}: {text} does not fit; allowed: {np.iinfo(dtype).min} to {np.iinfo(dtype).max}")
        values.append(value)
    with np.errstate(over="ignore"):  # a float beyond the type's range is infinite, as on the device
        return np.array(values, dtype)


def _loaded(word: str, path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise ArgumentError(f"{path}: not a .npy file of numbers: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype not in DTYPES.values():
        content = array.dtype if isinstance(array, np.ndarray) else "several arrays"
        raise ArgumentError(f"--arg {word}: {path} holds {content}; allowed: one array of {', '.join(DTYPES)}")
    return np.ascontiguousarray(array)
