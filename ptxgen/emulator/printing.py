"""What a kernel prints by `vprintf`, as text: how a C library formats it, and the function that compiled code calls for it."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from math import isfinite

from ptxgen.emulator.layout import ContextWord
from ptxgen.emulator.scratch import Scratch
from ptxgen.emulator.watch import Run
from ptxgen.errors import ArgumentError
from ptxgen.isa.printf import SIGNED, Conversion, pieces, places
from ptxgen.target import WARP_SIZE

Sink = Callable[[str], object]
"""Takes the text of one call of one thread."""
PRINT = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Printer:
    """What prints during one launch, to stdout unless another sink is given. `address` is the function's; an error in it, be it
    Ctrl-C, is kept in `error`, since compiled code cannot raise it, and nothing is printed after it."""

    def __init__(self, scratches: Sequence[Scratch], threads: int, data: tuple[int, int], sink: Sink | None) -> None:
        self.error: BaseException | None = None
        self._sink = sink or sys.stdout.write
        self._data = data
        starts = [(scratch.context[ContextWord.LOCAL], scratch.context[ContextWord.LOCAL_BYTES]) for scratch in scratches]
        self._local = [(start, start + size * threads) for start, size in starts]
        self._function = PRINT(self._print)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def stopping(self, run: Run) -> Run:
        """The kernel's @run, after which an error in printing is raised."""

        def run_and_look(context: int, first: int, last: int) -> int:
            status = run(context, first, last)
            if self.error is not None:
                raise self.error
            return status

        return run_and_look

    def _print(self, mask: int, formats: int, values: int, returned: int) -> None:
        lanes = WARP_SIZE * ctypes.c_uint64
        try:
            statuses = (WARP_SIZE * ctypes.c_int32).from_address(returned)
            for lane, (format, place) in enumerate(zip(lanes.from_address(formats), lanes.from_address(values), strict=True)):
                if mask >> lane & 1 and self.error is None:
                    statuses[lane] = self._print_one(format, place)
        except BaseException as error:
            self.error = error

    def _print_one(self, format: int, place: int) -> int:
        """What vprintf does, and returns: how many values it has printed."""
        try:
            parts = list(pieces(self._string(format)))
        except ValueError as error:
            raise ArgumentError(f"vprintf is given a format that is not emulated: {error}") from error
        conversions = [part for part in parts if isinstance(part, Conversion)]
        taken = dict(zip(map(id, conversions), places(iter(conversions)), strict=True))
        size = max((offset + one.size for one, offset in taken.values()), default=0)
        if size and not any(start <= place <= end - size for start, end in self._local):
            raise ArgumentError(f"vprintf is given values at {place:#x}, which is no local memory")
        text = ""
        for part in parts:
            if isinstance(part, Conversion):
                data = ctypes.string_at(place + taken[id(part)][1], part.size)
                text += self._string_as(part, data) if part.letter == "s" else formatted(part, data)
            else:
                text += part
        self._sink(text)
        return len(conversions)

    def _string_as(self, conversion: Conversion, data: bytes) -> str:
        text = self._string(int.from_bytes(data, "little"))
        return f"%{conversion.flags}{conversion.width}{conversion.precision}s" % text

    def _string(self, address: int) -> str:
        start, size = self._data
        if not start <= address < start + size:
            raise ArgumentError(f"vprintf is given a string at {address:#x}, where no variable of the module is")
        content, _, _ = ctypes.string_at(address, start + size - address).partition(b"\0")  # zeros stand behind the variables
        return content.decode("latin-1")


def formatted(conversion: Conversion, data: bytes) -> str:
    """One number as C's printf writes it: Python's `%` does, but for what is said here."""
    flags, letter = conversion.flags, conversion.letter
    if conversion.is_float:
        number: float = struct.unpack("<d", data)[0]
        if not isfinite(number):
            flags = flags.replace("0", "")  # infinities and NaN are filled with spaces
        return f"%{flags}{conversion.width}{conversion.precision}{letter}" % number
    value = int.from_bytes(data, "little", signed=letter in SIGNED)
    if letter not in SIGNED:
        flags = flags.replace("+", "").replace(" ", "")  # there is no sign
    if letter == "c":
        return f"%{flags}{conversion.width}s" % chr(value & 0xFF)
    if letter == "p":
        return f"%{flags}{conversion.width}s" % f"{value:#x}"
    if conversion.precision:
        flags = flags.replace("0", "")  # the precision says how many digits there are
    if letter == "o" and "#" in flags:
        least = conversion.precision[1:] or (conversion.width if "0" in flags and "-" not in flags else "")
        digits = f"{value:o}".zfill(int(least or 0))
        return f"%{flags.replace('#', '')}{conversion.width}s" % (digits if digits.startswith("0") else "0" + digits)
    if not value:
        flags = flags.replace("#", "")
        if conversion.precision in (".", ".0"):
            return f"%{flags}{conversion.width}s" % ""
    return f"%{flags}{conversion.width}{conversion.precision}{'d' if letter in 'iu' else letter}" % value
