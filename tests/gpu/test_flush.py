"""What an H200 flushes of the results about the least normal number: those that are below it after rounding to the bits of a
normal number. The operands of test_isa.py meet few of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.device import open_device
from ptxgen.isa import instructions
from tests.gpu.test_isa import run
from tests.ptxgen.isa import operand_values, probe
from tests.ptxgen.isa.comparison import first_difference
from tests.ptxgen.isa.running import emulate

pytestmark = pytest.mark.gpu
COUNT = 64
DISTANCES = np.array((0, 1, 2, 3, 5, 7, 11, 15, 16, 17, 23, 31, 45, 200, 1000, 1447, 1448, 1449, 2047, 2048))
"""k of the products (1 + k u)(1 - k u), u = 2^-23 or 2^-10: 1 - k^2 u^2 rounds to 1 up to k^2 u = 1/4, with one exponent
for all numbers."""


def operands(row: str, type: str, number: int) -> NDArray[np.uint64]:
    """uint64[COUNT] bit patterns of the operand `number`: numbers whose product or quotient is about the least normal one."""
    k = DISTANCES[np.arange(COUNT) % len(DISTANCES)].astype(np.uint64)
    sign = (np.arange(COUNT, dtype=np.uint64) // 20 + number) % 2
    if type.endswith("x2"):
        half = operands(row, type[:-2], number)
        return half | half << np.uint64(16)
    if type == "f64":  # of cvt: the distance from 2^-126 in steps of 2^-30 of it
        return np.uint64((1023 - 126) << 52) - (k << np.uint64(22)) | sign << np.uint64(63)
    bits, step, one, fraction = (16, 0x400, 0x3C00, 10) if type == "f16" else (32, 0x800000, 0x3F800000, 23)
    k = np.minimum(k, np.uint64(step // 4))
    if number == 2:  # of fma: zero
        value = np.zeros(COUNT, np.uint64)
    elif row == "div":  # (2 - 2 k u) 2^-126 / 2
        value = 2 * step - np.maximum(k, 1) if number == 0 else np.full(COUNT, one + (1 << fraction), np.uint64)
    else:
        value = step + k if number == 0 else one - 2 * k
    return value | sign << np.uint64(bits - 1)


def filled(batch: probe.Batch) -> NDArray[np.uint8]:
    """Input records, uint8[COUNT, in_bytes], with these operands."""
    records = operand_values.records(batch, COUNT)
    for one in batch.probes:
        for number, place in enumerate(one.inputs):
            values = operands(one.row.name, place.type.name, number).astype(np.dtype(f"u{place.type.bytes}"))
            records[:, place.offset : place.offset + place.bytes] = values.view(np.uint8).reshape(COUNT, place.bytes)
    return records


def flushing(name: str) -> list[probe.Batch]:
    """The batches of the rows called `name` that have f32 or f16 results and can flush them."""
    types = {"f32", "f16", "f16x2"}
    batches = [batch for row in instructions.named(name) for batch in probe.batches(row)]
    return [
        batch
        for batch in batches
        if any("ftz" in one.modifiers for one in batch.probes)
        and all({place.type.name for place in one.outputs} <= types for one in batch.probes)
        and all({place.type.name for place in one.inputs} <= types | {"f64"} for one in batch.probes)
    ]


@pytest.mark.parametrize("name", ["mul", "fma", "div", "cvt"])
def test_gpu_flushes_the_results_that_the_emulator_flushes(name: str) -> None:
    differences = []
    with open_device("cuda:0") as device:
        for batch in flushing(name):
            if batch.need[0] > device.target.sm:
                continue
            records = filled(batch)
            seen, expected = run(device, batch, records), emulate(batch, records)
            differences += [text for one in batch.probes if (text := first_difference(one, records, expected, seen))]
    assert not differences, "\n".join(differences)
