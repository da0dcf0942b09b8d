"""Runs probe batches on the emulator and reads fields out of their records."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.target import WARP_SIZE
from tests.ptxgen.isa import operand_values, probe

WORD = 0x0123456789ABCDEF
"""What the parameter `word` of every probe kernel holds."""


def emulate(batch: probe.Batch, inputs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The output records, uint8[count, out_bytes], for input records uint8[count, in_bytes]."""
    count = len(inputs)
    out = np.zeros((count, batch.out_bytes), np.uint8)
    findings = emulator.run(
        batch.text(), probe.ENTRY, count // WARP_SIZE, WARP_SIZE, [out, inputs, np.uint64(WORD)], sanitize=False
    )
    assert not findings, findings[0]
    return out


@cache
def emulated(name: str, count: int = 64, of: int = 0) -> tuple[tuple[probe.Batch, NDArray[np.uint8], NDArray[np.uint8]], ...]:
    """Every batch of the rows called `name`, with its input and output records: `count` of them, the first of `of` if given."""
    from ptxgen.isa import instructions

    batches = []
    for row in instructions.named(name):
        for batch in probe.batches(row):
            inputs = operand_values.records(batch, of or count)[:count]
            batches.append((batch, inputs, emulate(batch, inputs)))
    return tuple(batches)


def numbers(records: NDArray[np.uint8], place: probe.Field) -> NDArray[Any]:
    """The bit patterns of a field, unsigned[count, field.count]."""
    part = np.ascontiguousarray(records[:, place.offset : place.offset + place.bytes])
    return part.view(np.dtype(f"u{max(place.type.bytes, 1)}"))
