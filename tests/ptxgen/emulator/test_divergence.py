"""Random structured programs: every thread must compute what it would alone, however the lanes of its warp part and meet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.emulator import run
from tests.ptxgen.emulator.ptx import kernel

THREADS = 96
MASK = (1 << 32) - 1
Node = tuple[Any, ...]


def statements(depth: int) -> st.SearchStrategy[list[Node]]:
    simple: st.SearchStrategy[Node] = st.one_of(
        st.tuples(st.just("step"), st.sampled_from(["add", "mul", "xor"]), st.integers(1, 99)),
        st.tuples(st.just("guarded"), st.integers(1, 7), st.integers(1, 99)),
        st.tuples(st.just("leave"), st.integers(11, 97)),
    )
    if depth:
        inner = statements(depth - 1)
        simple = st.one_of(
            simple,
            st.tuples(st.just("if"), st.integers(2, 6), inner, inner),
            st.tuples(st.just("loop"), st.integers(1, 5), inner, st.integers(3, 20)),
        )
    return st.lists(simple, min_size=1, max_size=4)


@dataclass
class Writer:
    """PTX of a program; %r1 is the value, each loop counts in its own register."""

    lines: list[str] = field(default_factory=list)
    labels: int = 0
    cold: list[str] = field(default_factory=list)

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def write(self, program: list[Node]) -> None:
        for node in program:
            getattr(self, f"write_{node[0]}")(*node[1:])

    def write_step(self, operation: str, n: int) -> None:
        suffix = {"add": "add.u32", "mul": "mul.lo.u32", "xor": "xor.b32"}[operation]
        self.lines.append(f"{suffix} %r1, %r1, {n | 1 if operation == 'mul' else n};")

    def write_guarded(self, modulus: int, n: int) -> None:
        self.test("eq", modulus)
        self.lines.append(f"@%p1 add.u32 %r1, %r1, {n};")

    def write_leave(self, modulus: int) -> None:
        self.test("eq", modulus)
        self.lines.append("@%p1 bra DONE;")

    def write_if(self, modulus: int, yes: list[Node], no: list[Node]) -> None:
        """The second arm stands at the end of the kernel, as compilers put what they think is rare."""
        cold, after = self.label(), self.label()
        self.test("ne", modulus)
        self.lines.append(f"@%p1 bra {cold};")
        self.write(yes)
        self.lines.append(f"{after}:")
        kept, self.lines = self.lines, [f"{cold}:"]
        self.write(no)
        self.cold += [*self.lines, f"bra {after};"]
        self.lines = kept

    def write_loop(self, limit: int, body: list[Node], stop: int) -> None:
        top, after = self.label(), self.label()
        counter = f"c{self.labels}"
        self.lines += [f".reg .b32 {counter}, n{counter};", f"mov.u32 {counter}, 0;", f"rem.u32 n{counter}, %r1, {limit};"]
        self.lines += [f"{top}:", f"setp.ge.u32 %p1, {counter}, n{counter};", f"@%p1 bra {after};"]
        self.write(body)
        self.test("eq", stop)
        self.lines += [f"@%p1 bra {after};", f"add.u32 {counter}, {counter}, 1;", f"bra {top};", f"{after}:"]

    def test(self, relation: str, modulus: int) -> None:
        self.lines += [f"rem.u32 %r2, %r1, {modulus};", f"setp.{relation}.u32 %p1, %r2, 0;"]


class Left(Exception):
    pass


def alone(program: list[Node], value: int) -> int:
    """What one thread computes."""
    for node in program:
        kind = node[0]
        if kind == "step":
            n = node[2]
            value = {"add": value + n, "mul": value * (n | 1), "xor": value ^ n}[node[1]] & MASK
        elif kind == "guarded":
            value = (value + node[2]) & MASK if value % node[1] == 0 else value
        elif kind == "leave":
            if value % node[1] == 0:
                raise Left(value)
        elif kind == "if":
            value = alone(node[2] if value % node[1] == 0 else node[3], value)
        else:
            for _ in range(value % node[1]):
                value = alone(node[2], value)
                if value % node[3] == 0:
                    break
    return value


def finish(program: list[Node], value: int) -> int:
    try:
        return alone(program, value)
    except Left as left:
        return int(left.args[0])


@settings(max_examples=4)
@given(statements(3), st.integers(0, 1 << 20))
def test_every_thread_of_some_programs_computes_what_it_would_alone(program: list[Node], start: int) -> None:
    check_that_threads_compute_what_they_would_alone_and_meet_again(program, start)


@pytest.mark.slow
@settings(max_examples=40)
@given(statements(3), st.integers(0, 1 << 20))
def test_every_thread_computes_what_it_would_alone_and_all_meet_again(program: list[Node], start: int) -> None:
    check_that_threads_compute_what_they_would_alone_and_meet_again(program, start)


def check_that_threads_compute_what_they_would_alone_and_meet_again(program: list[Node], start: int) -> None:
    writer = Writer()
    writer.write(program)
    body = ["ld.param.u64 %rd1, [p0];", "mov.u32 %r3, %tid.x;", f"mad.lo.u32 %r1, %r3, 7, {start};", *writer.lines, "DONE:"]
    body += ["mul.wide.u32 %rd2, %r3, 8;", "add.u64 %rd3, %rd1, %rd2;", "st.global.u32 [%rd3], %r1;"]
    body += ["shfl.sync.idx.b32 %r4, %r1, 5, 31, -1;", "st.global.u32 [%rd3+4], %r4;", "ret;", *writer.cold]
    want = [finish(program, (t * 7 + start) & MASK) for t in range(THREADS)]
    for sanitize in (False, True):
        out = np.zeros((THREADS, 2), np.uint32)
        assert not run(kernel("\n".join(body), "u64"), "k", 1, THREADS, [out], sanitize=sanitize)
        assert out[:, 0].tolist() == want
        assert out[:, 1].tolist() == [want[t // 32 * 32 + 5] for t in range(THREADS)]
