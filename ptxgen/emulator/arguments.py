"""Arguments of a launch -> the bytes of its parameters. What a parameter takes is said by the type that the text declares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxgen.emulator.memory_map import MemoryMap
from ptxgen.emulator.program import ParsedParameter
from ptxgen.errors import ArgumentError
from ptxgen.types import DType, Kind

if TYPE_CHECKING:
    import numpy as np

    from ptxgen.emulator.machine import Kernel

_BYTES = (bytes, bytearray, memoryview)
_LETTERS = {Kind.UNSIGNED: "iu", Kind.SIGNED: "iu", Kind.FLOAT: "f", Kind.BITS: "iufcV"}
"""The kinds of NumPy types whose scalars a parameter of PTX takes, where the size is the same; a byte may be a bool, too."""


@dataclass(frozen=True)
class Marked:
    """An array, and what the sanitiser must know of it."""

    array: np.ndarray[Any, Any]
    initialised: bool = True
    constant: bool = False
    settled: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is but an array."""
        return self.initialised and not self.constant and not self.settled


def behind_addresses(kernel: Kernel, args: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The arrays among the arguments that the kernel gets the addresses of, in their order; not those that it gets by value."""
    pairs = zip(kernel.parameters, args, strict=False)
    arrays = (array_of(argument) for parameter, argument in pairs if parameter.takes_address)
    return [array for array in arrays if array is not None]


def array_of(argument: Any) -> np.ndarray[Any, Any] | None:
    """The array that an argument is, None for a value."""
    import numpy as np

    value = argument.array if isinstance(argument, Marked) else argument
    return value if isinstance(value, np.ndarray) and value.ndim > 0 else None


def pack(kernel: Kernel, args: Sequence[Any], memory: MemoryMap, addresses: Iterator[int]) -> bytes:
    """The parameter bytes; registers every array behind an address in `memory`, at the address that it has for this launch."""
    if len(args) != len(kernel.parameters):
        names = ", ".join(f"{p.name} ({p.declared})" for p in kernel.parameters)
        raise ArgumentError(f"{kernel.name} takes {len(kernel.parameters)} arguments, got {len(args)}: {names}")
    packed = bytearray(kernel.parameter_bytes)
    for parameter, argument in zip(kernel.parameters, args, strict=True):
        marked = argument if isinstance(argument, Marked) else Marked(argument)
        try:
            if parameter.takes_address and array_of(marked) is not None:
                data = _address(parameter, marked, memory, addresses)
            elif parameter.is_struct:
                data = _struct(parameter, marked)
            else:
                data = _scalar(parameter, marked)
        except ValueError as fault:
            raise ArgumentError(f"{kernel.name}: {parameter.name} {fault}") from None
        packed[parameter.offset : parameter.offset + parameter.size] = data
    return bytes(packed)


def _address(parameter: ParsedParameter, marked: Marked, memory: MemoryMap, addresses: Iterator[int]) -> bytes:
    value = marked.array
    _check_array(value)
    base = next(addresses)
    memory.add(
        base,
        value.nbytes,
        f"the array of {parameter.name}",
        initialised=marked.initialised,
        read_only=not value.flags.writeable,
        stands_for=value.ctypes.data,
        constant=marked.constant,
        settled=marked.settled,
    )
    return base.to_bytes(8, "little")


def _struct(parameter: ParsedParameter, marked: Marked) -> bytes:
    """The bytes of a parameter that is an array: of bytes, of a NumPy scalar (a structured one, mostly) or of an array."""
    import numpy as np

    value: Any = marked.array
    what = f"is {parameter.declared}, which is passed by value"
    if not marked.is_plain:
        raise ValueError(f"{what}, so nothing is to be said of its memory (uninitialised, constant, settled)")
    if isinstance(value, _BYTES):
        data = bytes(value)
    elif isinstance(value, np.generic | np.ndarray):
        _check_array(np.asarray(value))
        data = value.tobytes()
    else:
        raise ValueError(f"{what}; got {type(value).__name__}, allowed are bytes, NumPy arrays and NumPy scalars")
    if len(data) != parameter.size:
        dtype = value.dtype if isinstance(value, np.generic | np.ndarray) else None
        of = "" if dtype is None else f" of {'a struct' if dtype.names else dtype}"
        raise ValueError(f"{what} and has {parameter.size} bytes; got {len(data)} bytes{of}")
    return data


def _scalar(parameter: ParsedParameter, marked: Marked) -> bytes:
    import numpy as np

    value: Any = marked.array
    if array_of(marked) is not None:
        what = "an address is .u64, .s64 or .b64, and a struct by value is an array, such as .b8[12]"
        raise ValueError(f"is {parameter.declared} and got an array; {what}")
    if not isinstance(value, np.generic | np.ndarray):
        also = "NumPy arrays and " if parameter.takes_address else ""
        raise ValueError(f"is {parameter.declared} and got {type(value).__name__}; {also}NumPy scalars are allowed")
    if not _holds(parameter.type, value.dtype):
        raise ValueError(
            f"is {parameter.declared}, {parameter.type.bytes} bytes; got {value.dtype}, {value.dtype.itemsize} bytes"
        )
    return value.tobytes()


def _holds(type: DType, dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy scalar can be a parameter of this type: pairs of halves are bits."""
    letters = _LETTERS[Kind.BITS if type.lanes > 1 else type.kind] + ("b" if type.bytes == 1 else "")
    return dtype.itemsize == type.bytes and dtype.kind in letters and dtype.isnative and not dtype.hasobject


def _check_array(value: np.ndarray[Any, Any]) -> None:
    if not value.flags.c_contiguous:
        raise ValueError("got an array that is not C-contiguous")
    if value.dtype.hasobject:
        raise ValueError("got an array of Python objects")
    if not value.dtype.isnative:
        raise ValueError(f"got {value.dtype}, whose bytes stand the other way round")
