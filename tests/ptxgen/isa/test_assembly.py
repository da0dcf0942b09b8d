"""The whole table against NVIDIA's assembler: every row assembles for its least GPU and PTX version, and not for older ones."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ptxgen.isa import instructions, special
from ptxgen.isa.table import Instruction
from ptxgen.target import ALL, FIRST_PTX, Target
from ptxgen.toolchain.assemble import AssembleError, assemble
from tests.ptxgen.isa import probe
from tests.ptxgen.isa.combinations import sensible
from tests.ptxgen.isa.rows import cases

PTX_VERSIONS = [(6, 3), (6, 4), (6, 5), *((7, i) for i in range(9)), *((8, i) for i in range(9)), (9, 0)]

# The ISA asks for PTX 7.8 for `::cta`; this assembler takes it earlier here.
TAKEN_EARLIER = {"cp_async"}


def _older(batch: probe.Batch) -> Iterator[tuple[Target, tuple[int, int]]]:
    sm, ptx = batch.need
    below = [target.sm for target in ALL if target.sm < sm]
    if below:
        yield Target(max(below)), max(ptx, FIRST_PTX[max(below)])
    if batch.target.feature:
        yield Target(sm), ptx
    if ptx > FIRST_PTX[sm]:
        yield batch.target, PTX_VERSIONS[PTX_VERSIONS.index(ptx) - 1]


@pytest.mark.parametrize("name", cases())
def test_row_assembles_for_its_least_gpu_and_ptx_version(name: str) -> None:
    for row in instructions.named(name):
        for batch in probe.batches(row):
            assemble(batch.text(), batch.target)


@pytest.mark.parametrize("name", cases())
def test_row_is_refused_below_its_least_gpu_and_ptx_version(name: str) -> None:
    for row in instructions.named(name):
        for batch in probe.batches(row):
            for target, ptx in _older(batch):
                accepted = _accepted(batch, target, ptx)
                if name not in TAKEN_EARLIER:
                    assert not accepted, f"needs {batch.target} and {batch.need[1]}, taken at {target} and {ptx}: {accepted[0]}"


def _accepted(batch: probe.Batch, target: Target, ptx: tuple[int, int]) -> list[str]:
    """The instructions of the batch that the assembler does not complain of."""
    try:
        assemble(batch.text(target, ptx), target)
        refused: set[int] = set()
    except AssembleError as error:
        refused = {int(line) for line in re.findall(r"line (\d+); error", error.log)}
    return [p.instruction for p in batch.probes if p.line not in refused]


@pytest.mark.slow
def test_every_probe_decodes_to_its_own_row_and_modifiers() -> None:
    for batch in probe.all_batches():
        for one in batch.probes:
            opcode = one.instruction.removeprefix("@").split()[1 if one.instruction.startswith("@") else 0].rstrip(";")
            assert (one.row, dict(one.modifiers)) in list(instructions.decode(opcode)), one.instruction


@pytest.mark.slow
def test_no_two_rows_take_the_same_opcode_with_the_same_operand_types() -> None:
    seen: dict[tuple[object, ...], Instruction] = {}
    for row in instructions.ROWS:
        for modifiers in sensible(row):
            types = [(o.spec.kind, o.spec.like, o.spec.allowed(modifiers), o.spec.length(modifiers)) for o in row.operands]
            key = (row.opcode(modifiers), *types)
            assert key not in seen, f"{key} is in {seen[key].name} and {row.name}"
            seen[key] = row


@pytest.mark.parametrize("name", list(special.BY_NAME))
def test_special_register_has_the_type_and_need_of_its_row(name: str) -> None:
    register = special.BY_NAME[name]
    sm, (major, minor) = register.need
    text = (
        f".version {major}.{minor}\n.target sm_{sm}\n.address_size 64\n.visible .entry k(.param .u64 p) {{\n"
        f".reg .u64 %p; .reg .{register.type} %x;\nld.param.u64 %p, [p];\nmov.{register.type} %x, {name};\n"
        f"st.{register.type} [%p], %x;\nret;\n}}\n"
    )
    assemble(text, Target(sm))
