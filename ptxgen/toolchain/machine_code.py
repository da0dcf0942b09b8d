"""Whether machine code may run as it is: the one verdict of `ptxgen check`, the conformance kit and the check of the shapes of
known models."""

from __future__ import annotations

import re

from ptxgen.dsl.kernel_type import MOST_CODE
from ptxgen.target import REGISTERS
from ptxgen.toolchain.assemble import Assembled

_CHANGED = re.compile(r"\(C75\d\d\) (.*)")
"""What the assembler says where it does not leave the products of a warpgroup as they are written."""


def faults(assembled: Assembled, threads: int, most_code: int = MOST_CODE) -> list[str]:
    """What is wrong with the machine code of a kernel of blocks of `threads` threads: spilled registers, more registers for a
    block than a multiprocessor has, more bytes than `most_code`, asynchronous products that the assembler made wait. Empty if
    nothing is."""
    wrong = []
    spilled = assembled.spill_stores + assembled.spill_loads
    if spilled:
        wrong.append(f"{spilled} bytes are spilled ({assembled.registers} registers)")
    needed = assembled.registers * threads
    if needed > REGISTERS:
        wrong.append(f"a block needs {needed} registers; a multiprocessor has {REGISTERS}")
    if assembled.code > most_code:
        wrong.append(f"{assembled.code} bytes of machine code; at most {most_code} are allowed")
    wrong += _CHANGED.findall(assembled.log)
    return wrong
