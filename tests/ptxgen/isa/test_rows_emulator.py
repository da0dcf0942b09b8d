"""The meanings of the arithmetic rows on the emulator, bit by bit, against oracles made of Python integers and fractions."""

from __future__ import annotations

import pytest

from ptxgen.isa import instructions
from ptxgen.isa.table import Instruction
from ptxgen.types import BY_NAME
from tests.ptxgen.isa import oracles_bits  # noqa: F401 - registers its oracles
from tests.ptxgen.isa.exact import FORMATS
from tests.ptxgen.isa.oracles import ORACLES
from tests.ptxgen.isa.probe import Probe
from tests.ptxgen.isa.rows import cases
from tests.ptxgen.isa.running import emulated, numbers

APPROXIMATE = {"approx", "full"}


def _oracle_name(row: Instruction) -> str:
    """`mul.hi`, `mad.wide`, `vadd4.add`: some mnemonics are several operations."""
    words = {slot.values[0] for slot in row.slots if not slot.name}
    operation = words & {"hi", "wide", "add"}
    return f"{row.mnemonic}.{operation.pop()}" if operation else row.mnemonic


def _has_oracle(row: Instruction) -> bool:
    words = {slot.values[0] for slot in row.slots if not slot.name}
    vectors = any(o.spec.braces for o in row.operands)
    tf32 = any(slot.values == ("tf32",) for slot in row.modifiers)
    return _oracle_name(row) in ORACLES and not words & (APPROXIMATE | {"cc"}) and not vectors and not tf32


NAMES = sorted({row.name for row in instructions.ROWS if _has_oracle(row)})


def _type(probe: Probe) -> str:
    """The type that the operation works in."""
    m, row = probe.modifiers, probe.row
    fixed = [slot.values[0] for slot in row.slots if not slot.name and slot.values[0] in BY_NAME]
    if row.mnemonic in ("set", "cvt"):
        return m.get("of", "f32")
    if "type" in m:
        return m["type"]
    return fixed[0] if fixed else str(row.sources[0].spec.allowed(m)[0])


@pytest.mark.parametrize("name", cases(NAMES))
def test_row_computes_what_its_oracle_says(name: str) -> None:
    checked = 0
    for batch, inputs, outputs in emulated(name):
        if not _has_oracle(batch.row):
            continue
        oracle = ORACLES[_oracle_name(batch.row)]
        for probe in batch.probes:
            modifiers = dict(probe.modifiers)
            if name == "lop3":
                modifiers["table"] = probe.instruction.rstrip(";").split()[-1]
            if name == "slct":
                modifiers["of"] = "s32" if ".s32 " in probe.instruction else "f32"
            modifiers["which"] = batch.row.mnemonic
            modifiers["adds"] = "yes" if _oracle_name(batch.row).endswith(".add") else ""
            sources = [numbers(inputs, place)[:, 0] for place in probe.inputs]
            results = [numbers(outputs, place)[:, 0] for place in probe.outputs]
            for lane in range(len(inputs)):
                operands = [int(source[lane]) for source in sources]
                expected = oracle(modifiers, _type(probe), *operands)
                for want, place, result in zip(expected, probe.outputs, results, strict=False):
                    got = int(result[lane])
                    mask = (1 << place.type.bits) - 1
                    assert _same(int(want) & mask, got, place.type.name), (
                        f"{probe.instruction} of {[hex(x) for x in operands]}: {got:#x}, not {int(want) & mask:#x}"
                    )
                    checked += 1
    assert checked


def _same(want: int, got: int, type: str) -> bool:
    """Equal, or both NaN of f64, whose payload PTX leaves open."""
    if type == "f64" and FORMATS[type].decode(want).is_nan:
        return FORMATS[type].decode(got).is_nan
    return want == got
