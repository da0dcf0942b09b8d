"""Writes the reference page of the instruction table (docs/instructions.md). Everything on it comes from the rows."""

from __future__ import annotations

from collections.abc import Iterator

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
HEADER = "| builder | text | modifiers | operands | what it does | needs | PTX ISA |"
RULE = "|---|---|---|---|---|---|---|"
BAR = "\\|"


def page() -> str:
    """The page, in Markdown."""
    lines = [
        "# Instructions",
        "",
        "Every PTX instruction that `ptxgen` knows: a builder method, a line the emulator runs, a line the verifier checks.",
        "Written by `python -m tests.ptxgen.isa.reference docs/instructions.md` from the table in `ptxgen/isa`; do not edit.",
        "",
        "What stands in braces may be left out. A modifier's value in bold is what the builder writes when the author says",
        "nothing. `b32 of f16` are bits that hold this type, or the one that a modifier names: builder methods take registers",
        "of it (`f16x2`; of integers `u32` and `s32`) and plain bits. *Needs* is the least GPU and PTX version of the row,",
        "then what single modifiers ask for beyond it.",
        "",
    ]
    for prefix, title, anchor in CHAPTERS:
        members = [row for row in ROWS if row.section.startswith(prefix)]
        lines += [f"## {title}", "", HEADER, RULE]
        lines += [_line(row, anchor) for row in sorted(members, key=_section)]
        lines.append("")
    lines += ["## Special registers", "", "| register | type | holds | PTX ISA |", "|---|---|---|---|"]
    lines += [f"| `{r.name}` | {r.type} | {r.meaning} | {r.section} |" for r in SPECIAL_REGISTERS]
    return "\n".join(lines) + "\n"


def _section(row: Instruction) -> list[int]:
    return [int(part) for part in row.section.split(".")]


def _line(row: Instruction, anchor: str) -> str:
    needs = [f"sm_{row.sm}{row.feature}, {row.ptx[0]}.{row.ptx[1]}"]
    for name, (sm, ptx) in row.needs.items():
        slot, _, value = name.partition("=")
        if any(s.name == slot and (not value or value in s.values) for s in row.modifiers):
            needs.append(f"`{value or slot}`: sm_{max(sm, row.sm)}, {ptx[0]}.{ptx[1]}")
    cells = [
        f"`{row.name}`",
        f"`{_form(row)}`",
        "; ".join(_modifiers(row)),
        "; ".join(_operands(row)),
        " ".join(row.summary.split()),
        "; ".join(needs),
        f"[{row.section}]({MANUAL}{anchor}-{_anchor(row)})",
    ]
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


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


def _form(row: Instruction) -> str:
    """As the PTX ISA writes it: what may be missing in braces."""
    text = row.mnemonic
    for slot in row.slots:
        word = slot.name or slot.values[0]
        text += f"{{.{word}}}" if slot.optional else f".{word}"
    for place in row.operands:
        named = f"[{place.name}]" if place.spec.kind is OperandKind.ADDRESS else place.name
        if place.name == "dp":
            text += "{|dp}" if place.optional else "|dp"
        elif place is row.operands[0]:
            text += f" {named}"
        else:
            text += f"{{, {named}}}" if place.optional else f", {named}"
    return text


def _modifiers(row: Instruction) -> Iterator[str]:
    for slot in row.modifiers:
        values = (f"**{value}**" if value == row.defaults.get(slot.name) else value for value in slot.values)
        yield f"{slot.name}: {' '.join(values)}"


def _operands(row: Instruction) -> Iterator[str]:
    for place in row.operands:
        spec = place.spec
        if spec.kind is not OperandKind.VALUE:
            words = spec.kind.value.split()[1]
        elif spec.like:
            words = f"as {spec.like}"
        elif spec.modifier:
            words = ("twice " if spec.twice else "") + spec.modifier
        else:
            words = " or ".join(map(str, spec.types))
        words += (" or wider" if spec.wider else "") + (", or a vector" if spec.vec else "")
        words += (f"[{spec.braces}]" if spec.braces else "") + (f" of {spec.holds.strip('{}')}" if spec.holds else "")
        yield f"{place.name}: {words}"


def main() -> None:
    """Write the page to the file that the first argument names."""
    import sys
    from pathlib import Path

    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
