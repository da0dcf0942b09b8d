"""The facts of isa/effects.py against the table: a row that is renamed or added must not slip past the verifier."""

from __future__ import annotations

from ptxgen.isa import effects
from ptxgen.isa.table import rows

NAMES = {row.name for row in rows()}


def test_every_name_in_effects_is_a_row() -> None:
    named = {name for value in vars(effects).values() if isinstance(value, frozenset) for name in value}
    assert named - effects.UNORDERED_READS <= NAMES


def test_every_row_with_a_member_mask_is_known_to_be_warp_wide() -> None:
    masked = {row.name for row in rows() if any(operand.name == "mask" for operand in row.operands)}
    assert masked <= effects.WARP_WIDE


def test_every_row_that_takes_a_label_is_known_to_branch() -> None:
    assert {row.name for row in rows() if any(operand.spec == "label" for operand in row.operands)} == effects.BRANCHES


def test_every_barrier_is_known() -> None:
    barriers = {row.name for row in rows() if row.mnemonic in ("bar", "barrier")}
    assert barriers <= effects.BLOCK_BARRIERS | effects.WARP_WIDE
