"""Whether bulk copies that fill shared memory again follow what was read there, by the memory model: a rule on the text.

A bulk copy writes through the asynchronous proxy (PTX ISA 8.9.5; runtime/proxies.py has the whole rule, of which the sanitiser
asks at run time who did what). So on the way from where a thread reads or writes by ordinary instructions what a copy has
brought, to a copy into the same variable, stands a proxy fence for shared memory; or, for loads whose values are read before
(late_loads.py), an arrival at an mbarrier and after it a wait. What may be jumped over counts as there: the rule is for what is
nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

from ptxgen.emulator.flow import flow
from ptxgen.emulator.late_loads import arrives, late_loads
from ptxgen.emulator.origins import Origins
from ptxgen.emulator.parse import parse
from ptxgen.emulator.program import Step
from ptxgen.isa.effects import LOADS, STORES, Effect
from ptxgen.isa.operands import Address
from ptxgen.isa.rows.bulk_copy import mbarrier_try_wait_parity
from ptxgen.isa.rows.warpgroup import fence_proxy


class _Access(IntEnum):
    """How far an access is from being over for copies; where two ways meet, the one that is further counts."""

    UNORDERED = 0
    ARRIVED = 1
    OVER = 2


_State = Mapping[int, _Access]
"""Of accesses that come after a copy, by their lines; line 0 is the first copy itself."""


def violations(text: str, entry: str) -> list[str]:
    """The copies that nothing orders after an access, in words and with the lines of both; empty where all is right."""
    code, lines = flow(parse(text), entry), text.splitlines()
    steps = [step for block in code.blocks for step in block.instructions]
    copies = [step for step in steps if step.row.effect is Effect.BULK_COPY]
    if not copies:
        return []
    rule = _Rule(Origins(code), copies, late_loads(code.blocks))
    before: dict[int, _State] = {0: {}}
    found: dict[str, None] = {}
    work = [0]
    while work:
        block = code.blocks[work.pop()]
        state = dict(before[block.index])
        for step in block.instructions:
            for line in rule.unordered(step, state):
                found[f"what{_place(lines, line)}\ntouches is overwritten by{_place(lines, step.line)}"] = None
            rule.go_on(step, state)
        for number in block.following:
            known = before.get(number)
            joined = state if known is None else {**known, **{n: max(a, known.get(n, a)) for n, a in state.items()}}
            if joined != known:
                before[number] = joined
                work.append(number)
    return list(found)


class _Rule:
    def __init__(self, origins: Origins, copies: list[Step], late: frozenset[int]) -> None:
        self._origins = origins
        self._late = late
        self._need_fence: set[int] = set()
        self._filled = {id(copy): self._shared(copy) for copy in copies}
        self._all = frozenset(name for names in self._filled.values() for name in names)
        self._variables: dict[int, frozenset[str]] = {}

    def unordered(self, step: Step, state: _State) -> Iterator[int]:
        """The lines of the accesses that a copy follows with nothing between."""
        if id(step) in self._filled:
            for line, access in state.items():
                if line and access is not _Access.OVER and self._variables[line] & self._filled[id(step)]:
                    yield line

    def go_on(self, step: Step, state: dict[int, _Access]) -> None:
        """What a step makes of a state."""
        effect, meaning = step.row.effect, step.row.meaning
        if effect is Effect.BULK_COPY:
            state[0] = _Access.OVER
        elif meaning is fence_proxy and step.modifiers["proxy"] != "async.global":
            state.update(dict.fromkeys(state, _Access.OVER))
        elif meaning is mbarrier_try_wait_parity:
            state.update({line: _Access.OVER for line, access in state.items() if access is _Access.ARRIVED})
        elif arrives(step):
            ordered = {line: access for line, access in state.items() if line not in self._need_fence}
            state.update({line: max(access, _Access.ARRIVED) for line, access in ordered.items()})
        elif effect in LOADS | STORES and 0 in state:
            variables = self._shared(step)
            if variables & self._all:
                self._variables[step.line] = variables
                if effect in STORES or id(step) in self._late:
                    self._need_fence.add(step.line)
                state[step.line] = _Access.UNORDERED

    def _shared(self, step: Step) -> frozenset[str]:
        """What of shared memory an instruction may touch."""
        addresses = [
            operand
            for place in step.row.operands
            if isinstance(operand := step.operands.get(place.name), Address)
            and place.spec.state_space(step.modifiers) == "shared"
        ]
        return frozenset(name for address in addresses[:1] for name in self._origins.of(address))


def _place(lines: list[str], line: int) -> str:
    return f"\n  ptx line {line}   {lines[line - 1].strip()}"
