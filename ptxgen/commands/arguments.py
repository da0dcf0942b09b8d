"""`--arg` of `ptxgen run`: words of a command line to NumPy arrays and scalars. Whether they fit a kernel the emulator says."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.arrays import NUMPY
from ptxgen.errors import ArgumentError
from ptxgen.types import BF16, BF16X2, F16X2

DTYPES: Final = {type.name: dtype for type, dtype in NUMPY.items() if type not in (BF16, F16X2, BF16X2)}
"""PTX types that NumPy has too; `b` types are its unsigned integers. Write bf16 as b16."""

SOURCES: Final = "zeros, ones, arange, random, random:SEED, out, @FILE.npy, a number, or numbers separated by commas"


@dataclass(frozen=True)
class RunArgument:
    """An argument: its word on the command line, its value, and whether its memory counts as written."""

    word: str
    value: NDArray[Any] | np.generic
    written: bool = True


def parse_argument(word: str) -> RunArgument:
    """The argument that a word describes; `ptxgen run --help` has the syntax. Raises ArgumentError with what is allowed."""
    if word.startswith("@"):
        return RunArgument(word, _loaded(word, Path(word[1:])))
    array = re.fullmatch(r"(\w+)\[([^\]]*)\]=(.+)", word)
    if array:
        dtype, shape = _dtype(word, array[1]), _shape(word, array[2])
        return RunArgument(word, _array(word, dtype, shape, array[3]), written=array[3] != "out")
    scalar = re.fullmatch(r"(\w+):(.+)", word)
    if scalar:
        return RunArgument(word, _numbers(word, _dtype(word, scalar[1]), [scalar[2]])[0])
    raise ArgumentError(f"--arg {word}: neither TYPE:VALUE nor TYPE[SHAPE]=SOURCE nor @FILE.npy")


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
