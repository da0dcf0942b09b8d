"""Arrays that lie so near to each other that a store past one is a store to the next: run on copies with redzones between."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_KEPT_ALIGNMENT = 256
"""Bytes. A copy lies at a multiple of the powers of two that its original does, up to this one."""


@dataclass
class _Piece:
    """Bytes of the host that one or more arrays, which overlap, cover without a gap."""

    start: int
    end: int
    arrays: list[int] = field(default_factory=list)
    written: bool = False


@contextmanager
def kept_apart(arrays: Sequence[np.ndarray[Any, Any]], redzone: int) -> Iterator[list[int]]:
    """The address of each array, C-contiguous, for the time of the block: its own if `redzone` bytes around it belong to no
    other, else that of a copy, which is copied back at the end. What overlaps stays together."""
    pieces = _pieces(arrays)
    addresses = [array.ctypes.data for array in arrays]
    copies: list[tuple[_Piece, int, Any]] = []
    for number, piece in enumerate(pieces):
        near_last = number > 0 and piece.start - pieces[number - 1].end < redzone
        near_next = number + 1 < len(pieces) and pieces[number + 1].start - piece.end < redzone
        if near_last or near_next:
            size = piece.end - piece.start
            memory = (ctypes.c_char * (size + 2 * redzone + _KEPT_ALIGNMENT))()
            start = ctypes.addressof(memory) + redzone
            start += (piece.start - start) % _KEPT_ALIGNMENT
            ctypes.memmove(start, piece.start, size)
            copies.append((piece, start, memory))
            for index in piece.arrays:
                addresses[index] += start - piece.start
    try:
        yield addresses
    finally:
        for piece, start, _ in copies:
            if piece.written:
                ctypes.memmove(piece.start, start, piece.end - piece.start)


def _pieces(arrays: Sequence[np.ndarray[Any, Any]]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for index in sorted(range(len(arrays)), key=lambda i: arrays[i].ctypes.data):
        start, end = arrays[index].ctypes.data, arrays[index].ctypes.data + arrays[index].nbytes
        if not pieces or start >= pieces[-1].end:
            pieces.append(_Piece(start, end))
        piece = pieces[-1]
        piece.end = max(piece.end, end)
        piece.arrays.append(index)
        piece.written |= arrays[index].flags.writeable
    return pieces
