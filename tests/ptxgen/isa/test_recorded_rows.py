"""The emulator against what a real GPU gave, on a machine without one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.paths import GOLDEN
from tests.ptxgen.isa import fragments, operand_values, recording
from tests.ptxgen.isa.comparison import first_difference
from tests.ptxgen.isa.rows import cases
from tests.ptxgen.isa.running import emulated, numbers

RECORDED = GOLDEN / "isa"
RECORDED_SM = 90
"""The GPU that was recorded, an H200; rows that need a newer one have no recording."""


@cache
def recorded() -> recording.Recording:
    if not (RECORDED / recording.FILE).exists():
        pytest.fail("golden/isa is missing; record it: pytest -m gpu tests/gpu/test_isa.py --record-isa golden/isa")
    return recording.Recording.read(RECORDED)


@pytest.mark.parametrize("name", cases())
def test_emulator_gives_what_the_gpu_gave(name: str) -> None:
    h200 = recorded()
    differences = []
    for batch, inputs, outputs in emulated(name, recording.COUNT, recording.MADE):
        for one in batch.probes:
            key = operand_values.key(one)
            if not one.outputs or batch.need[0] > RECORDED_SM:
                continue
            assert key in h200.outputs, f"{key} is not recorded; record golden/isa again"
            assert h200.checksums[key] == recording.checksum(one, inputs), (
                f"{key}: its operands changed; record golden/isa again"
            )
            gpu = recording.as_records(one, h200.outputs[key], batch.out_bytes)
            if text := first_difference(one, inputs, outputs, gpu):
                differences.append(text)
    assert not differences, "\n".join(differences)


def test_hopper_tensor_cores_cut_every_term_25_bits_below_the_largest() -> None:
    h200 = recorded()
    checked = 0
    for batch, inputs, _ in emulated("mma", recording.COUNT, recording.MADE):
        for one in batch.probes:
            kind = fragments.kinds(one)[0]
            if kind == "s32":
                continue
            gpu = recording.as_records(one, h200.outputs[operand_values.key(one)], batch.out_bytes)
            d = fragments.accumulator(numbers(gpu, one.outputs[0]), kind)
            model = fragments.hopper(*fragments.matrices(one, inputs))
            assert (d == (model.astype(np.float16) if kind == "f16" else model)).all(), one.instruction
            checked += d.size
    assert checked


def test_recording_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    fresh = recording.Recording("a GPU")
    for batch, inputs, out in emulated("dp4a"):
        fresh.add(batch, inputs, out)
    fresh.save(tmp_path)
    back = recording.Recording.read(tmp_path)
    assert (back.gpu, back.checksums) == (fresh.gpu, fresh.checksums)
    assert all((back.outputs[key] == fresh.outputs[key]).all() for key in fresh.outputs)


@pytest.mark.slow
def test_a_wrong_bit_is_a_difference_but_another_nan_of_f64_is_not() -> None:
    (batch, inputs, outputs), *_ = emulated("dp4a")
    changed = outputs.copy()
    changed[3, batch.probes[0].outputs[0].offset] ^= 1
    assert "in lane 3" in first_difference(batch.probes[0], inputs, outputs, changed)
    for batch, inputs, outputs in emulated("mma"):
        for one in batch.probes:
            if fragments.kinds(one)[0] == "f32":
                changed = outputs.copy()
                place = one.outputs[0]
                changed[:, place.offset : place.offset + 4].view(np.float32)[:] *= 1 + 2.0**-8
                assert "on the GPU" in first_difference(one, inputs, outputs, changed)
    for batch, inputs, outputs in emulated("sqrt"):
        for one in batch.probes:
            place = one.outputs[0]
            changed = outputs.copy()
            words = changed[:, place.offset : place.offset + place.bytes].view(np.dtype(f"u{place.bytes}"))
            words[np.isnan(words.view(np.dtype(f"f{place.bytes}")))] ^= 1
            assert (changed != outputs).any()
            assert bool(first_difference(one, inputs, outputs, changed)) == (place.type.name == "f32")
