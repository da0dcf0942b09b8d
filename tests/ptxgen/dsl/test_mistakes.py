"""Lines that are right in Python and wrong in a kernel: each is named in an error that says the cure."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.refusals import CURES, cure
from ptxgen.errors import AuthorError, TypeMismatch
from ptxgen.target import Target
from ptxgen.types import F16, F32
from tests.ptxgen.dsl.writing import lines_of, written

FILE = "tests/ptxgen/dsl/test_mistakes.py"

# Authors whose lines no type checker sees.
Line = Callable[[Any], object]
OfRegisters = Callable[[Any, Any], object]


def said(line: Line, error: type[AuthorError] = AuthorError, *, cooperative: bool = False) -> str:
    """What the builder says of a lambda of one line: the error must name exactly that line."""
    with pytest.raises(error) as caught:
        written(line, cooperative=cooperative, target=Target(90))
    where, code = caught.value.where, line.__code__
    assert where is not None
    assert (where.file, where.line) == (FILE, code.co_firstlineno)
    return f"{caught.value.message} | {caught.value.hint}"


ELEMENTS: list[tuple[Line, str, str]] = [
    (lambda k: k.load(k.arg.x), "k.load takes an element of an array, got the array x (f32[256])", "index it: x[i]"),
    (lambda k: k.load(k.arg.x.at(3)), "got the array x (f32[256])", "index it: x[i]; its first element is x[0]"),
    (lambda k: k.load(k.shared(F32, 4, 8)), "got an array in shared memory (f32[4, 8])", "index it: x[i, j]"),
    (lambda k: k.load(k.shared(F32, 4).start()), "got a part of an array in shared memory (f32)", "index it: x[i]"),
    (lambda k: k.load(k.tid.x), "got the register %r0 (u32)", "a register needs no load"),
    (lambda k: k.load(3), "got 3", "an element is one of an array, k.arg.x[i]"),
    (lambda k: k.load_vector(k.arg.x, 4), "k.load_vector takes an element of an array", "index it: x[i]"),
    (lambda k: k.store(k.arg.y, 1.0), "k.store takes an element of an array, got the array y", "index it: x[i]"),
    (lambda k: k.store(1.0, k.arg.y[0]), "k.store takes an element of an array, got 1.0", "and comes first"),
    (lambda k: k.copy_async(k.shared(F32, 4), k.arg.x[0], 16), "k.copy_async takes an element", "index it: x[i]"),
    (lambda k: k.copy_async(k.shared(F32, 4)[0], k.arg.x, 16), "k.copy_async takes an element", "index it: x[i]"),
    (lambda k: k.last_block(k.arg.n, 3), "k.last_block takes an element", "index it: x[i]"),
    (lambda k: k.grid_barrier(k.arg.n[0], 3), "takes an argument that is an array, got an element in global", "write k.arg.x"),
    (lambda k: k.matrix_descriptor(k.arg.x, stride=128, leading=128), "k.matrix_descriptor takes an element", "index it: x[i]"),
]


@pytest.mark.parametrize(("line", "problem", "cure"), ELEMENTS)
def test_what_is_no_element_is_refused(line: Line, problem: str, cure: str) -> None:
    message = said(line, TypeMismatch, cooperative=True)
    assert problem in message
    assert cure in message


INDICES: list[tuple[Any, str, str]] = [
    (1.5, "got 1.5", "whole numbers divide with //"),
    (True, "got True", "write int(...)"),
    (np.int64(3), "got the NumPy int64 3", "write int(...)"),
    (np.float32(3), "got the NumPy float32 3.0", "write int(...)"),
    (np.array([1]), "got a NumPy array of shape (1,)", "take one number out of it: int(array[i])"),
    (slice(0, 4), "got slice(0, 4, None)", "the array that starts at an element is x.at(i)"),
    (None, "got None", "write an int or a register such as k.tid.x"),
    ("a", "got 'a'", "write an int or a register such as k.tid.x"),
    ([1, 2], "got [1, 2]", "one by one: x[i, j], x.at(i, j)"),
]
INDEXED: list[Callable[[Any, Any], object]] = [
    lambda k, i: k.arg.y[i],
    lambda k, i: k.arg.y.at(i),
    lambda k, i: k.shared(F32, 4)[i],
    lambda k, i: k.shared(F32, 4).start()[i],
    lambda k, i: k.shared(F32, 4).start().at(i),
]


@pytest.mark.parametrize("indexed", INDEXED)
@pytest.mark.parametrize(("index", "problem", "cure"), INDICES)
def test_what_is_no_index_is_refused(indexed: Callable[[Any, Any], object], index: Any, problem: str, cure: str) -> None:
    with pytest.raises(TypeMismatch) as caught:
        written(lambda k: indexed(k, index))
    assert caught.value.where is not None
    assert (caught.value.where.file, caught.value.where.line) == (FILE, indexed.__code__.co_firstlineno)
    assert " must be a" in caught.value.message
    assert problem in caught.value.message
    assert cure in caught.value.hint


OTHER_PLACES: list[tuple[Line, str, str]] = [
    (lambda k: k.arg.x[k.arg.n[0]], "got an element in global memory (u32)", "load it: k.load(x[i])"),
    (lambda k: k.arg.x[k.tid], "got k.tid, which has the parts k.tid.x, .y and .z", "such as k.tid.x"),
    (lambda k: k.shared(F32, 4).start()[k.tid.x], "must be an int, got the register %r1 (u32)", "x.at(i)[0]"),
    (lambda k: k.shared(F32, 4).start().at(k.s32(1)), "must be u32, got s32", "convert with k.u32(...)"),
    (lambda k: k.shared(F32, k.tid.x), "a size of an array in shared memory must be an int", "known while the kernel"),
    (lambda k: k.shared(F32, 1.5), "must be an int, got 1.5", "write an int"),
    (lambda k: k.arg.x[0] + 1.0, "an element in global memory (f32) is a place, not a number", "load it: k.load(x[i])"),
    (lambda k: 1.0 - k.arg.x[0], "is a place, not a number", "load it"),
    (lambda k: -k.arg.x[0], "is a place, not a number", "load it"),
    (lambda k: k.arg.x[0] > 0.0, "is a place, not a number", "load it"),
    (lambda k: math.exp(k.arg.x[0]), "is a place, not a number", "load it"),
    (lambda k: np.exp(k.arg.x[0]), "is a place, not a number", "load it"),
    (lambda k: k.f32(1.0) * k.arg.x[0], "mul takes registers and numbers, got an element in global memory (f32)", "load it"),
    (lambda k: k.arg.x + 4, "the array x (f32[256]) is a place, not a number", "load it"),
    (lambda k: k.atom(k.arg.n[0], 1, op="add"), "atom takes registers and numbers, got an element", "gets x[i].address"),
    (lambda k: operator.setitem(k.arg.y, 0, 1.0), "assigning to an element writes no store", "write k.store(x[i], value)"),
    (lambda k: list(k.arg.x), "cannot be iterated over", "k.strided(start, stop)"),
    (lambda k: list(k.shared(F32, 4).start()), "cannot be iterated over", "k.strided(start, stop)"),
    (lambda k: len(k.arg.x), "has no len()", "x.shape"),
    (lambda k: k.store(k.arg.y[0], (1.0, 2.0)), "a vector is stored from registers, got 1.0", "k.f32(1.0)"),
    (lambda k: k.store(k.arg.y[0], [k.arg.x[0]] * 2), "stored from registers, got an element", "load it"),
    (lambda k: k.warp_sum(k.arg.x[0]), "takes a register, got an element in global memory (f32)", "load it"),
    (lambda k: k.shuffle_xor(1.0, 1), "takes a register, got 1.0", "k.f32(1.0)"),
    (lambda k: k.block_sum(k.arg.x[0]), "k.block_sum takes a register, got an element", "load it"),
    (lambda k: k.block_max(k.arg.x), "k.block_max takes a register, got the array x", "load it"),
    (lambda k: k.part_sum(np.float32(1), 2, k.warp), "k.part_sum takes a register, got the NumPy float32 1.0", "float(...)"),
    (lambda k: k.bits(1.0, F32), "k.bits takes a register, got 1.0", "k.f32(1.0)"),
    (lambda k: k.f32(1.0) * np.float32(2), "got the NumPy float32 2.0", "write float(...)"),
    (lambda k: k.tid.x * np.int32(2), "got the NumPy int32 2", "write int(...)"),
    (lambda k: k.tid.x * np.arange(2), "got a NumPy array of shape (2,)", "take one number out of it"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "problem", "cure"), OTHER_PLACES)
def test_what_is_no_number_is_refused(line: Line, problem: str, cure: str) -> None:
    message = said(line)
    assert problem in message
    assert cure in message


PYTHON: list[tuple[OfRegisters, str, str]] = [  # of an f32 and a u32
    (lambda x, n: range(n), "%r0 (u32) has no value while the kernel is being written", "for i in k.strided(start, stop):"),
    (lambda x, n: [1, 2, 3][n], "which an index of a list and range() needs", "load from an array"),
    (lambda x, n: int(x), "which int(x) needs", "convert with k.s32(x) or k.u32(x)"),
    (lambda x, n: float(n), "which float(x) or a function of math needs", "convert with k.f32(x)"),
    (lambda x, n: complex(x), "which float(x)", "convert with k.f32(x)"),
    (lambda x, n: math.sqrt(x), "which float(x) or a function of math needs", "k.sqrt(x)"),
    (lambda x, n: math.exp(x), "which float(x) or a function of math needs", "mathlib.exp(k, x)"),
    (lambda x, n: abs(x), "which abs(x) needs", "write k.abs(x)"),
    (lambda x, n: round(x), "which round(x) needs", 'write k.cvt(x, rnd="rni", result=x.type)'),
    (lambda x, n: round(x, 1), "which round(x) needs", 'write k.cvt(x, rnd="rni", result=x.type)'),
    (lambda x, n: math.floor(x), "which floor(x) needs", 'write k.cvt(x, rnd="rmi", result=x.type)'),
    (lambda x, n: math.ceil(x), "which ceil(x) needs", 'write k.cvt(x, rnd="rpi", result=x.type)'),
    (lambda x, n: math.trunc(x), "which trunc(x) needs", "k.s32(x) converts toward zero"),
    (lambda x, n: divmod(n, 4), "no operator divmod", "write both: x // y and x % y"),
    (lambda x, n: divmod(4, n), "no operator divmod", "write both: x // y and x % y"),
    (lambda x, n: x**2, "no operator **", "multiply: x * x"),
    (lambda x, n: 2**n, "no operator **", "2 to a power is 1 << x of whole numbers"),
    (lambda x, n: pow(n, 2, 5), "no operator **", "multiply: x * x"),
    (lambda x, n: x @ x, "no operator @", "write `x @= y`"),
    (lambda x, n: +x, "no operator +", "leave it out"),
    (lambda x, n: -n, "u32 has no operator -", "write k.s32(x), or 0 - x, which wraps around"),
    (lambda x, n: -(n == 0), "pred has no operator -", "its opposite is ~x"),
    (lambda x, n: ~x, "f32 has no operator ~", "its bits are k.bits(x, B32)"),
    (lambda x, n: x & 1, "f32 has no operator &", "its bits are k.bits(x, B32)"),
    (lambda x, n: x << 1, "f32 has no operator <<", "its bits are k.bits(x, B32)"),
    (lambda x, n: len(x), "%f0 (f32) is one register, not a sequence", "k.load_vector"),
    (lambda x, n: list(x), "%f0 (f32) is one register, not a sequence", "for i in k.strided(start, stop):"),
    (lambda x, n: x[0], "%f0 (f32) is one register, not a sequence", "k.load(x[i])"),
    (lambda x, n: operator.setitem(x, 0, 1.0), "is one register, not a sequence", "k.load(x[i])"),
    (lambda x, n: 1.0 in x, "is one register, not a sequence", "k.strided"),
    (lambda x, n: f"{x:.3f}", "which a format of numbers needs", "known when the kernel runs"),
    (lambda x, n: "%d" % n, "which int(x) needs", "k.u32(x)"),  # noqa: UP031
    (lambda x, n: np.exp(x), "which np.exp(x) needs", "write mathlib.exp(k, x) (from ptxgen.dsl import mathlib)"),
    (lambda x, n: np.sqrt(x), "which np.sqrt(x) needs", "write k.sqrt(x)"),
    (lambda x, n: np.maximum(x, 0), "which np.maximum(x) needs", "write k.max(x, y)"),
    (lambda x, n: np.arctan(x), "which np.arctan(x) needs", "functions are k.sqrt(x)"),
    (lambda x, n: np.float32(x), "which an array of numbers needs", "convert with k.f32(x)"),
    (lambda x, n: np.array([x, x], np.float32), "which an array of numbers needs", "convert with k.f32(x)"),
    (lambda x, n: np.float32(2) ** x, "no operator **", "k.ex2_approx(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "problem", "cure"), PYTHON)
def test_what_python_has_for_numbers_and_sequences_is_refused_of_a_register(line: OfRegisters, problem: str, cure: str) -> None:
    with pytest.raises(AuthorError) as caught:
        written(lambda k: line(k.f32(1.0), k.tid.x))
    assert caught.value.where is not None
    assert (caught.value.where.file, caught.value.where.line) == (FILE, line.__code__.co_firstlineno)
    assert problem in caught.value.message
    assert cure in caught.value.hint


@pytest.mark.parametrize("name", CURES)
def test_every_cure_can_be_written(name: str) -> None:
    from ptxgen.dsl import mathlib

    def body(k: KernelBuilder) -> None:
        x, y = k.f32(1.0), k.f32(2.0)
        eval(CURES[name], {"k": k, "mathlib": mathlib, "math": math, "x": x, "y": y})

    written(body, target=Target(90))


@pytest.mark.parametrize("name", ["exp", "sin", "rsqrt", "floor", "exp2"])
def test_a_function_that_is_no_instruction_has_a_hint(name: str) -> None:
    assert cure(name) in said(lambda k: getattr(k, name)(k.f32(1.0)))


def test_a_format_without_a_form_is_the_name_of_the_register() -> None:
    seen: list[str] = []
    written(lambda k: seen.append(f"{k.tid.x} {k.tid.x!s}"))
    assert seen == ["%r0: u32 %r0: u32"]


NUMPY: list[tuple[Line, str]] = [
    (lambda k: np.float32(2) * k.f32(1.0), "mul.rn.f32 %f1, %f0, 0f40000000;"),
    (lambda k: np.float64(2) - k.f32(1.0), "sub.rn.f32 %f1, 0f40000000, %f0;"),
    (lambda k: np.int32(2) * k.tid.x, "mul.lo.u32 %r1, %r0, 2;"),
    (lambda k: np.float32(2) < k.f32(1.0), "setp.gt.f32 %p0, %f0, 0f40000000;"),
    (lambda k: np.int64(2) == k.tid.x, "setp.eq.u32 %p0, %r0, 2;"),
    (lambda k: np.array([2.0, 3.0]) * k.f32(1.0), "mul.rn.f32 %f2, %f0, 0f40400000;"),
    (lambda k: np.array([k.f32(1.0), k.f32(2.0)]) + k.f32(3.0), "add.rn.f32 %f4, %f1, %f2;"),
    (lambda k: np.sum([k.f32(1.0), k.f32(2.0)]), "add.rn.f32 %f2, %f0, %f1;"),
]


@pytest.mark.parametrize(("line", "instruction"), NUMPY)
def test_a_number_of_numpy_on_the_left_is_a_constant(line: Line, instruction: str) -> None:
    assert instruction in lines_of(line)


def test_an_element_of_half_precision_is_described_by_its_type() -> None:
    assert "an element in shared memory (f16)" in said(lambda k: k.shared(F16, 4)[0] + 1)
