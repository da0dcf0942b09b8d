"""Names that a loop carries from pass to pass in Python's eyes only: each is an error at the line that binds it, and what is
right beside it is none."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.flow import Loop
from ptxgen.dsl.value import Value
from ptxgen.errors import AuthorError
from ptxgen.types import F32, U32
from tests.ptxgen.dsl.writing import Body, written

FILE = "tests/ptxgen/dsl/test_passes.py"


def sum_by_a_new_register(k: KernelBuilder) -> None:
    total = k.f32(0.0)
    for i in k.strided(0, 8):
        total = total + k.load(k.arg.x[i])  # `total`
    k.store(k.arg.y[0], total)


def sum_where_the_loop_may_not_run(k: KernelBuilder) -> None:
    total = k.f32(0.0)
    for i in k.strided(k.tid.x, 8):
        x = k.load(k.arg.x[i])
        total = total + x  # `total`


def sum_in_a_function(k: KernelBuilder) -> None:
    def added(a: Value, b: Value) -> Value:
        return a + b

    total = k.f32(0.0)
    for i in k.strided(
        0,
        8,
    ):
        total = added(  # `total`
            total, k.load(k.arg.x[i])
        )


def sums_in_a_list(k: KernelBuilder) -> None:
    sums = [k.f32(0.0) for _ in range(4)]
    for i in k.strided(0, 8):
        for row in range(4):
            sums[row] = sums[row] + k.load(k.arg.x[4 * i + row])  # `sums[0]`


def list_made_anew(k: KernelBuilder) -> None:
    sums = [k.f32(0.0), k.f32(0.0)]
    for i in k.strided(0, 8):
        sums = [one + k.load(k.arg.x[i]) for one in sums]  # `sums[0]`


def value_of_the_pass_before(k: KernelBuilder) -> None:
    before = k.f32(0.0)
    for i in k.strided(0, 8):
        x = k.load(k.arg.x[i])
        k.store(k.arg.y[i], x - before)
        before = x  # `before`


def two_names_exchanged(k: KernelBuilder) -> None:
    now, after = k.f32(0.0), k.f32(1.0)
    for i in k.strided(0, 8):
        k.store(k.arg.y[i], now)
        now, after = after, now  # `now`


def count_in_an_open_loop(k: KernelBuilder) -> None:
    count = k.u32(0)
    with k.loop() as loop:
        loop.break_if(count >= 4)
        count = count + 1  # `count`


def sum_in_an_inner_loop(k: KernelBuilder) -> None:
    for i in k.strided(0, 8):
        total = k.f32(0.0)
        for j in k.strided(0, 8):
            total = total + k.load(k.arg.x[8 * i + j])  # `total`


def sum_in_a_branch(k: KernelBuilder) -> None:
    total = k.f32(0.0)
    for i in k.strided(0, 8):
        with k.when(i < 4):
            total = total + k.load(k.arg.x[i])  # `total`


WRONG = [
    sum_by_a_new_register, sum_where_the_loop_may_not_run, sum_in_a_function, sums_in_a_list, list_made_anew,
    value_of_the_pass_before, two_names_exchanged, count_in_an_open_loop, sum_in_an_inner_loop, sum_in_a_branch,
]  # fmt: skip


@pytest.mark.parametrize("body", WRONG, ids=lambda body: body.__name__)
def test_a_name_that_python_carries_and_the_kernel_does_not_is_refused(body: Body) -> None:
    with pytest.raises(AuthorError) as caught:
        written(body)
    lines, first = inspect.getsourcelines(body)
    wrong = next(i for i, line in enumerate(lines) if "  # `" in line)
    name = lines[wrong].split("  # ")[1].strip()
    where = caught.value.where
    assert where is not None
    assert (where.file, where.line, where.source) == (FILE, first + wrong, lines[wrong].strip())
    assert f"{name} is the new register" in caught.value.message
    assert "write `x @= ...` to change a register" in caught.value.hint


def sum_in_one_register(k: KernelBuilder) -> None:
    total = k.f32(0.0)
    for i in k.strided(0, 8):
        total @= total + k.load(k.arg.x[i])


def sums_in_one_register_each(k: KernelBuilder) -> None:
    sums = [k.f32(0.0) for _ in range(4)]
    for i in k.strided(0, 8):
        for row in range(4):
            sums[row] @= sums[row] + k.load(k.arg.x[4 * i + row])


def names_used_again(k: KernelBuilder) -> None:
    i = k.u32(1)
    x = k.load(k.arg.x[i])
    kept = x
    for i in k.strided(i, 8):  # noqa: B020
        x = k.load(k.arg.x[i])
        x = x + kept
        k.store(k.arg.y[i], x)
    for i in k.strided(0, 8):
        x = kept + k.load(k.arg.x[i])
        k.store(k.arg.y[i], x)


def entries_used_again(k: KernelBuilder) -> None:
    values = [k.load(k.arg.x[i]) for i in range(2)]
    first = values[0]
    for i in k.strided(0, 8):
        values[0] = first + k.load(k.arg.x[i])
        k.store(k.arg.y[i], values[0] + values[1])


def last_value_of_the_loop(k: KernelBuilder) -> None:
    last = k.f32(0.0)
    for i in k.strided(0, 8):
        last = k.load(k.arg.x[i])
    k.store(k.arg.y[0], last)


def either_way_bound_first(k: KernelBuilder) -> None:
    x = start = k.f32(0.0)
    for i in k.strided(0, 8):
        if k.threads > 32:  # noqa: SIM108
            x = start + k.load(k.arg.x[i])
        else:
            x = start
        k.store(k.arg.y[i], x + 1.0)


def loops_of_functions(k: KernelBuilder) -> None:
    def passes(k: KernelBuilder) -> Iterator[Value]:
        offset = k.u32(4)
        for i in k.strided(0, 8):
            yield i + offset

    @contextmanager
    def open_loop(k: KernelBuilder) -> Iterator[Loop]:
        with k.loop() as loop:
            yield loop

    total = k.variable(0.0, F32)
    for at in passes(k):
        total @= total + k.load(k.arg.x[at])
    count = k.variable(0, U32)
    with open_loop(k) as loop:
        loop.break_if(count >= 4)
        count @= count + 1


RIGHT = [
    sum_in_one_register, sums_in_one_register_each, names_used_again, entries_used_again, last_value_of_the_loop,
    either_way_bound_first, loops_of_functions,
]  # fmt: skip


@pytest.mark.parametrize("body", RIGHT, ids=lambda body: body.__name__)
def test_what_python_and_the_kernel_mean_alike_passes(body: Body) -> None:
    written(body)


def test_source_that_cannot_be_read_is_not_judged() -> None:
    line = "def body(k):\n    s = k.f32(0.0)\n    for i in k.strided(0, 8):\n        s = s + 1.0\n"
    names: dict[str, Body] = {}
    exec(line, names)
    written(names["body"])
