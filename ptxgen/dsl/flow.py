"""Structured control flow of the builder: loops and branches. Labels are made here and never seen by an author."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ptxgen.dsl.core import Core
from ptxgen.dsl.ir import Label
from ptxgen.dsl.passes import LoopBody
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.isa.operands import LabelRef
from ptxgen.types import PRED, U32, DType


class Loop:
    """A loop made by `k.loop()`."""

    def __init__(self, k: ControlFlow, end: str) -> None:
        self._k = k
        self._end = end

    def break_if(self, condition: Value) -> None:
        """Leave the loop in the threads where `condition` holds."""
        self._k.branch(self._end, condition)


class ControlFlow(Core):
    """The loops and branches of KernelBuilder."""

    def strided(self, start: Value | int, stop: Value | int, *, step: Value | int = 1, type: DType = U32) -> Iterator[Value]:
        """`for i in k.strided(a, b, step=s):` runs the body with i = a, a + s, ... while i < b; the body is written once.

        The test stands at the bottom with a predicated branch back (an unconditional one lost iterations in a Blackwell
        driver's assembler); a test before the first pass is left out where both ends are constants that need none."""
        if isinstance(step, int) and step <= 0:
            raise AuthorError(f"step must be positive, got {step}", self.where())
        constant = isinstance(start, int) and isinstance(stop, int)
        if isinstance(start, int) and isinstance(stop, int) and start >= stop:
            raise AuthorError(f"the loop from {start} to {stop} never runs", self.where(), "leave it out in Python")
        i = self.variable(start, type)
        head, end = self.new_label("loop"), self.new_label("loop_end")
        if not constant:
            self.branch(end, i >= stop)
        self.place(head)
        self.loop_depth += 1
        finished = False
        body = LoopBody(self.body)
        try:
            yield i
            finished = True
        finally:
            self.loop_depth -= 1
            if not finished:
                self.broken = AuthorError(
                    "`break` or `return` inside a k.strided loop ends the writing of the kernel, not the loop",
                    self.where(),
                    "use `with k.loop() as loop:` and loop.break_if(condition)",
                )
        body.check()
        self.assign(i, i + step)
        self.branch(head, i < stop)
        self.place(end)

    @contextmanager
    def loop(self) -> Iterator[Loop]:
        """`with k.loop() as loop:` repeats the body until loop.break_if(condition) leaves it."""
        head, end = self.new_label("loop"), self.new_label("loop_end")
        self.place(head)
        self.loop_depth += 1
        body = LoopBody(self.body)
        yield Loop(self, end)
        body.check()
        self.loop_depth -= 1
        self.branch(head)
        self.place(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """`with k.when(condition):` runs the body in the threads where the predicate holds."""
        end = self.new_label("endif")
        self.branch(end, condition, negated=True)
        yield
        self.place(end)

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """`with k.otherwise():` straight after a `when`: the other threads."""
        last = self.body[-1] if self.body else None
        if not isinstance(last, Label) or "endif" not in last.name:
            raise AuthorError("k.otherwise must follow the body of a k.when directly", self.where())
        end = self.new_label("endelse")
        self.body.pop()
        self.branch(end)
        self.body.append(last)
        yield
        self.place(end)

    def branch(self, label: str, condition: Value | None = None, *, negated: bool = False) -> None:
        """A branch to a label of this builder's, where the predicate `condition` holds (or not, if `negated`)."""
        if condition is not None and (not isinstance(condition, Value) or condition.type != PRED):
            got = condition.type if isinstance(condition, Value) else repr(condition)
            raise TypeMismatch(f"a branch needs a predicate, got {got}", self.where(), "compare it first: x != 0")
        self.write("bra", [LabelRef(label)], guard=condition, guard_negated=negated)
