"""Writes the reference page of the instruction table (docs/instructions.md). Everything on it comes from the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile

from ptxgen.isa.instructions import ROWS
from ptxgen.isa.operand_spec import OperandKind
from ptxgen.isa.special import ALL as SPECIAL_REGISTERS
from ptxgen.isa.table import Instruction

MANUAL = "https://docs.nvidia.com/cuda/parallel-thread-execution/#"

# Chapters of the PTX ISA: the start of their section numbers, their titles, the anchors of their instructions.
CHAPTERS = (
    ("9.7.1.", "Integer arithmetic", "integer-arithmetic-instructions"),
    ("9.7.2.", "Extended-precision integer arithmetic", "extended-precision-arithmetic-instructions"),
    ("9.7.3.", "Floating point", "floating-point-instructions"),
    ("9.7.4.", "Half precision", "half-precision-floating-point-instructions"),
    ("9.7.6.", "Comparison and selection", "comparison-and-selection-instructions"),
    ("9.7.7.", "Half precision comparison", "half-precision-comparison-instructions"),
    ("9.7.8.", "Logic and shift", "logic-and-shift-instructions"),
    ("9.7.9.", "Data movement and conversion", "data-movement-and-conversion-instructions"),
    ("9.7.12.", "Control flow", "control-flow-instructions"),
    ("9.7.13.", "Synchronisation and communication", "parallel-synchronization-and-communication-instructions"),
    ("9.7.14.", "Matrices in a warp", "warp-level-matrix-instructions"),
    ("9.7.15.", "Matrices in a warpgroup", "asynchronous-warpgroup-level-matrix-instructions"),
    ("9.7.18.", "Video", "simd-video-instructions"),
    ("9.7.19.", "Miscellaneous", "miscellaneous-instructions"),
)

VIDEO = {
    "9.7.18.2.1": "vadd2-vsub2-vavrg2-vabsdiff2-vmin2-vmax2", "9.7.18.2.2": "vset2",
    "9.7.18.2.3": "vadd4-vsub4-vavrg4-vabsdiff4-vmin4-vmax4", "9.7.18.2.4": "vset4",
}  # fmt: skip
LEAST = "sm_75, 6.3"
"""What a row needs if the page does not say it."""
BAR = "\\|"
TAIL = 30
"""Characters that the ends of two summaries have in common at least, for their rows to be one."""


def page() -> str:
    """The page, in Markdown. Cells touch their bars: the page is not read as it stands."""
    lines = [
        "# Instructions",
        "",
        "Every PTX instruction that `ptxgen` knows: a builder method, a line the emulator runs, a line the verifier checks.",
        "Written by `python -m tests.ptxgen.isa.reference docs/instructions.md` from the table in `ptxgen/isa`; do not edit.",
        "",
        "* *Builder*: the method of `k`, with a link to its section of the PTX ISA.",
        "* *Text*: optional parts are in braces. `name=` lists the values of a modifier, the builder's default in bold.",
        "  Operands without a type have that of `type`, of `a_type` for `a`, or else the last one of the text. `b32 of f16` is",
        "  bits that hold f16: the builder takes registers of that type (`f16x2`; of integers `u32` and `s32`) and plain bits.",
        f"* *Needs*: the least GPU and PTX version, if not {LEAST}; then what single modifiers need. Where it differs by the",
        "  text, it is in parentheses after the text.",
        "",
    ]
    for prefix, title, anchor in CHAPTERS:
        members = sorted((row for row in ROWS if row.section.startswith(prefix)), key=_section)
        lines += [f"## {title}", "", "|builder|text|does|needs|", "|---|---|---|---|"]
        lines += [_line(rows, tail, anchor) for rows, tail in _grouped(members)]
        lines.append("")
    lines += ["## Special registers", "", "|register|type|holds|PTX ISA|", "|---|---|---|---|"]
    for _, same in groupby(SPECIAL_REGISTERS, lambda r: (re.sub(r"\.[xyz]$", "", r.name), r.section)):
        registers = list(same)
        first, holds = registers[0], registers[0].meaning.removesuffix(", x")
        lines.append(f"|{' '.join(f'`{r.name}`' for r in registers)}|{first.type}|{holds}|{first.section}|")
    return "\n".join(lines) + "\n"


def _section(row: Instruction) -> list[int]:
    return [int(part) for part in row.section.split(".")]


def _grouped(rows: Iterable[Instruction]) -> Iterator[tuple[list[Instruction], str]]:
    """The rows of each line of the page, with the end of their summaries that is said once: rows of one section that do the
    same, or have the same text but for the mnemonic and summaries that end alike."""
    groups: list[tuple[list[Instruction], str]] = []
    for row in rows:
        for number, (group, tail) in enumerate(groups):
            if group[0].section != row.section:
                continue
            if _summary(group[0]) == _summary(row) and _summary(row) == tail:
                group.append(row)
                break
            common = _common_tail(tail, _summary(row))
            if _text(group[0], "") == _text(row, "") and len(common) > TAIL and group[0].name != row.name:
                groups[number] = ([*group, row], common)
                break
        else:
            groups.append(([row], _summary(row)))
    return iter(groups)


def _common_tail(one: str, other: str) -> str:
    """The common end of two summaries, from a comma on."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False))
    common = "".join(letter for letter, _ in same)[::-1]
    return common if common == one else common[common.find(", ") :] if ", " in common else ""


def _summary(row: Instruction) -> str:
    return " ".join(row.summary.split())


def _line(rows: Sequence[Instruction], tail: str, anchor: str) -> str:
    builders = {row.name: f"[`{row.name}`]({MANUAL}{anchor}-{_anchor(row)})" for row in rows}
    needs = ["; ".join(_needs(row)).removeprefix(LEAST).removeprefix("; ") for row in rows]
    alike = len(set(needs)) == 1
    if _summary(rows[0]) == tail:
        does = tail
        texts: dict[str, dict[str, None]] = {}
        for row, need in zip(rows, needs, strict=True):
            types = "; ".join((*_modifiers(row), *_operands(row))) + (f" ({need})" if need and not alike else "")
            texts.setdefault(f"`{_text(row, row.mnemonic)}`", {})[types] = None
        text = "<br>".join(f"{form} {' *or* '.join(variants)}".strip() for form, variants in texts.items())
    else:
        does = "; ".join(f"`{row.mnemonic}`: {_summary(row).removesuffix(tail)}" for row in rows) + tail
        text = f"`{_text(rows[0], 'NAME')}` {'; '.join((*_modifiers(rows[0]), *_operands(rows[0])))}"
    cells = (" ".join(builders.values()), text, does, needs[0] if alike else "")
    return f"|{'|'.join(cell.replace('|', BAR) for cell in cells)}|"


def _needs(row: Instruction) -> Iterator[str]:
    yield f"sm_{row.sm}{row.feature}, {row.ptx[0]}.{row.ptx[1]}"
    for name, (sm, ptx) in row.needs.items():
        slot, _, value = name.partition("=")
        if any(s.name == slot and (not value or value in s.values) for s in row.modifiers):
            yield f"`{value or slot}`: sm_{max(sm, row.sm)}, {ptx[0]}.{ptx[1]}"


def _anchor(row: Instruction) -> str:
    """The manual's name of the instruction, as its anchors spell it."""
    together = {
        "prefetch": "prefetch-prefetchu", "prefetchu": "prefetch-prefetchu", "bar": "bar-barrier", "barrier": "bar-barrier",
        "membar": "membar-fence", "fence": "membar-fence", "brx": "brx-idx", "shfl": "shfl-sync", "vote": "vote-sync",
        "match": "match-sync", "redux": "redux-sync", "elect": "elect-sync",
    }  # fmt: skip
    exact = {
        "bar_warp_sync": "bar-warp-sync", "ld_nc": "ld-global-nc", "add_cc": "add-cc", "sub_cc": "sub-cc", "mad_cc": "mad-cc",
        "cp_async": "cp-async", "cp_async_commit_group": "cp-async-commit-group",
        "cp_async_wait_group": "cp-async-wait-group-cp-async-wait-all",
        "cp_async_wait_all": "cp-async-wait-group-cp-async-wait-all", "wgmma_fence": "wgmma-fence",
        "wgmma_mma_async": "wgmma-mma-async", "wgmma_commit_group": "wgmma-commit-group",
        "wgmma_wait_group": "wgmma-wait-group", "cp_async_bulk": "cp-async-bulk", "mbarrier_init": "mbarrier-init",
        "mbarrier_arrive_expect_tx": "mbarrier-arrive",
        "mbarrier_try_wait_parity": "mbarrier-test-wait-mbarrier-try-wait",
    }  # fmt: skip
    if row.section.startswith("9.7.18."):
        return VIDEO[row.section]
    if row.section == "9.7.9.4":
        return "mov-2"
    return exact.get(row.name) or together.get(row.mnemonic, row.mnemonic)


def _text(row: Instruction, mnemonic: str) -> str:
    """As the PTX ISA writes it, optional parts in braces; a modifier that has one value as this value."""
    text = mnemonic
    for slot in row.slots:
        word = slot.name if slot.name and len(slot.values) > 1 else slot.values[0]
        text += f"{{.{word}}}" if slot.optional else f".{word}"
    for place in row.operands:
        named = f"[{place.name}]" if place.spec.kind is OperandKind.ADDRESS else place.name
        if place.name == "dp":
            text += "{|dp}" if place.optional else "|dp"
        elif place is row.operands[0]:
            text += f" {named}"
        else:
            text += f"{{,{named}}}" if place.optional else f",{named}"
    return text


def _modifiers(row: Instruction) -> Iterator[str]:
    """The values of each modifier that has several, or a value with another name."""
    names: dict[str, list[str]] = {}
    for slot in row.modifiers:
        if len(slot.values) > 1 or (slot.optional and slot.name != slot.values[0]):
            values = (f"**{value}**" if value == row.defaults.get(slot.name) else value for value in slot.values)
            names.setdefault("/".join(values), []).append(slot.name)
    for joined, of in names.items():
        yield f"{','.join(of)}={joined}"


def _operands(row: Instruction) -> Iterator[str]:
    """The operands of each type, without those that the page's first lines explain."""
    known = {slot.name: slot.values[0] for slot in row.modifiers if len(slot.values) == 1}
    last = row.slots[-1].values[0] if row.slots and not any(slot.name == "type" for slot in row.slots) else ""
    names: dict[str, list[str]] = {}
    for place in row.operands:
        spec = place.spec
        if spec.kind is not OperandKind.VALUE:
            words = spec.kind.value.split()[1]
        elif spec.like:
            words = f"as {spec.like}"
        elif spec.modifier:
            words = ("twice " if spec.twice else "") + known.get(spec.modifier, spec.modifier)
        else:
            words = "/".join(map(str, spec.types))
        words += (" or wider" if spec.wider else "") + (", or a vector" if spec.vec else "")
        words += (f"[{spec.braces}]" if spec.braces else "") + (
            f" of {known.get(holds, holds)}" if (holds := spec.holds.strip("{}")) else ""
        )
        if words not in ("address", "type", f"{place.name}_type", last):
            names.setdefault(words, []).append(place.name)
    for words, of in names.items():
        yield f"{','.join(of)}: {words}"


def main() -> None:
    """Write the page to the file that the first argument names."""
    import sys
    from pathlib import Path

    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
