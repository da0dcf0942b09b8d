"""Machine code as text, each instruction with the PTX line it comes from. Needs nvdisasm, which is optional."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ptxgen.errors import PtxGenError
from ptxgen.extras import install

_LINE: Final = re.compile(r'//## File ".*", line (\d+)')
_INSTRUCTION: Final = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_SECTION: Final = re.compile(r"\.section\s+\.text\.([\w$]+)")
_LABEL: Final = re.compile(r"(\.L_\w+):")


class NoDisassembler(PtxGenError):
    """nvdisasm is not installed."""


@dataclass(frozen=True)
class SassLine:
    """An instruction at `address` (bytes from the start), or a label (address -1). `ptx_line` is 0 where none is known."""

    text: str
    address: int
    ptx_line: int


def find_nvdisasm() -> Path | None:
    """The program: of the package, or on PATH."""
    packaged = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvdisasm"))
    on_path = shutil.which("nvdisasm")
    return packaged[-1] if packaged else Path(on_path) if on_path else None


def disassemble(cubin: bytes, entry: str) -> tuple[SassLine, ...]:
    """The instructions of a cubin of one entry, assembled with `line_info`. The endless jump and the padding at the end of each
    function are left out. Raises NoDisassembler, or PtxGenError with what nvdisasm said."""
    program = find_nvdisasm()
    if program is None:
        raise NoDisassembler(f"nvdisasm is not installed: {install('sass')}")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([program, "-gp", "-c", file.name], capture_output=True, text=True, check=False, timeout=60)
    if run.returncode:
        raise PtxGenError(f"{program} failed: {run.stderr.strip() or run.returncode}")
    return _parsed(run.stdout, entry)


def _parsed(text: str, entry: str) -> tuple[SassLine, ...]:
    """The entry's own code first, then the functions that the assembler put beside it (a division's slow way)."""
    sections: dict[str, list[SassLine]] = {entry: []}
    lines = sections[entry]
    ptx_line = 0
    for line in text.splitlines():
        if match := _SECTION.search(line):
            lines = sections.setdefault(match[1], [])
            ptx_line = 0
            if match[1] != entry:
                lines.append(SassLine(f"{match[1]}:", -1, 0))
        elif match := _LINE.search(line):
            ptx_line = int(match[1])
        elif match := _INSTRUCTION.search(line):
            lines.append(SassLine(re.sub(r"\s+", " ", match[2]), int(match[1], 16), ptx_line))
        elif match := _LABEL.match(line.strip()):
            lines.append(SassLine(f"{match[1]}:", -1, 0))
    return tuple(line for section in sections.values() for line in _without_padding(section))


def _without_padding(lines: list[SassLine]) -> list[SassLine]:
    end = len(lines)
    while end and lines[end - 1].text.startswith("NOP"):
        end -= 1
    if end > 1 and lines[end - 1].text == f"BRA `({lines[end - 2].text.rstrip(':')})":
        end -= 2
    return lines[:end]
