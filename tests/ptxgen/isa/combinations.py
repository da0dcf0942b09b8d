"""Which modifier combinations of a row are worth a probe: all of them for a small row, every pair of values for a large one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from ptxgen.isa.table import Instruction

ALL_UP_TO = 40
"""A row with more combinations than this is covered pair by pair."""

AT_MOST = 4000
"""Of more allowed combinations than this only every n-th is looked at."""


def sensible(row: Instruction) -> list[dict[str, str]]:
    """Modifier combinations that the row allows: all, or enough that every allowed pair of values meets. Deterministic."""
    found = list(allowed(row))
    found = found[:: len(found) // AT_MOST + 1]
    if len(found) <= ALL_UP_TO:
        return found
    pairs = [_pairs(row, modifiers) for modifiers in found]
    missing = set().union(*pairs)
    order = sorted(range(len(found)), key=lambda i: (i * 2654435761) % (1 << 32))  # spread out, so that few pairs repeat
    chosen = []
    gain_wanted = max(len(pairs[0]), 1)
    while missing:
        for i in order:
            gain = pairs[i] & missing
            if len(gain) >= gain_wanted:
                chosen.append(i)
                missing -= gain
        gain_wanted -= 1
    return [found[i] for i in sorted(chosen)]


def allowed(row: Instruction) -> Iterator[dict[str, str]]:
    """Every combination that the row allows."""
    choices = [[*slot.values, *([None] if slot.optional else [])] for slot in row.modifiers]
    for values in product(*choices):
        modifiers = {slot.name: value for slot, value in zip(row.modifiers, values, strict=True) if value is not None}
        if not (row.rule and row.rule(modifiers)):
            yield modifiers


def _pairs(row: Instruction, modifiers: dict[str, str]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    values = [(slot.name, modifiers.get(slot.name, "")) for slot in row.modifiers]
    return set(combinations(values, 2)) if len(values) > 1 else {(values[0], values[0])}
