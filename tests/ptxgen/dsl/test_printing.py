"""`k.print`: the text that it writes, for every target, and what it refuses at the author's line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.errors import AuthorError
from ptxgen.target import ALL, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.types import F16, PRED, S64
from tests.ptxgen.dsl.writing import text, written


def every_kind(k: KernelBuilder) -> None:
    value = k.load(k.arg.x[k.tid.x])
    with k.when(value > 0.0):
        k.print(
            "%d %lld %f %5.2e %x %c %p %d%%\n", k.tid.x, k.s64(k.tid.x), value, k.f64(value), 255, 65, k.u64(3), value < 1.0
        )
        k.print("here\n")
    k.print("here\n")


def test_a_print_is_a_call_of_vprintf_with_the_values_where_c_lays_them() -> None:
    lines = [line.strip() for line in text(every_kind).splitlines()]
    assert ".extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 values);" in lines
    assert ".global .align 1 .b8 probe_format1[6] = {104, 101, 114, 101, 10, 0};" in lines
    assert ".local .align 8 .b8 print_arguments[52];" in lines
    assert lines.count("call (print_status), vprintf, (print_format, print_values);") == 3
    stored = [line.partition("]")[0].partition("[")[2] for line in lines if line.startswith("st.local")]
    offsets = [int(place.partition("+")[2] or 0) for place in stored]
    assert offsets == [0, 8, 16, 24, 32, 36, 40, 48]
    assert sum("_format" in line for line in lines if line.startswith(".global")) == 2  # a format is there once


@pytest.mark.parametrize("target", ALL, ids=str)
def test_every_target_assembles_it(target: Target) -> None:
    assert assemble(text(every_kind, target=target), target).stack >= 52


def test_a_kernel_that_prints_nothing_declares_nothing() -> None:
    assert "vprintf" not in text(lambda k: k.store(k.arg.y[0], 1.0))


@pytest.mark.parametrize(
    ("body", "said", "hint"),
    [
        (lambda k: k.print("%d %d\n", 1), "the format takes 2 values (%d, %d), got 1", ""),
        (lambda k: k.print("x\n", k.tid.x), "the format takes 0 values (none), got 1", ""),
        (lambda k: k.print("%d\n", k.f32(1.0)), "%d in the format takes a whole number of 32 bits, got %f0 (f32)", "write %f"),
        (lambda k: k.print("%f\n", k.tid.x), "%f in the format takes a float, got %r0 (u32)", "write %d or %u"),
        (lambda k: k.print("%d\n", k.u64(1)), "%d in the format takes a whole number of 32 bits, got %rd0 (u64)", "write %lld"),
        (lambda k: k.print("%lld\n", k.tid.x), "takes a whole number of 64 bits, got %r0 (u32)", "without ll"),
        (lambda k: k.print("%lld\n", k.tid.x < 1), "got %p0 (pred)", "write %f for floats"),
        (lambda k: k.print("%d\n", 1.5), "%d in the format takes a whole number of 32 bits, got the constant 1.5", "32 bits"),
        (lambda k: k.print("%d\n", 1 << 32), "got the constant 4294967296", "32 bits"),
        (lambda k: k.print("%s\n", k.tid.x), "%s takes a string, and kernels have none", "goes into the format"),
        (lambda k: k.print("%n\n", k.tid.x), "k.print: '%n' is no conversion of vprintf here; known: d, i,", "%%"),
        (lambda k: k.print("100%"), "k.print: '%' is no conversion", "a percent sign itself is %%"),
        (lambda k: k.print("%lf\n", k.f32(1.0)), "k.print: '%lf' has a length (l)", ""),
        (lambda k: k.print("µs\n"), "a format is plain ASCII without a zero, got 'µs\\n'", ""),
        (lambda k: k.print("\0"), "a format is plain ASCII without a zero", ""),
        (lambda k: k.print("%d" * 33, *[1] * 33), "a call prints at most 32 values, got 33", "print twice"),
        (lambda k: k.print("%d\n", "1"), "k.print takes registers and numbers, got '1'", ""),
        (lambda k: k.print("%d\n", True), "k.print takes registers and numbers, got True", ""),
    ],
)  # fmt: skip
def test_a_format_that_does_not_fit_is_refused_at_the_authors_line(
    body: Callable[[KernelBuilder], None], said: str, hint: str
) -> None:
    with pytest.raises(AuthorError) as raised:
        written(body)
    assert said in str(raised.value)
    assert hint in (raised.value.hint or "")
    assert raised.value.where is not None
    assert raised.value.where.file == "tests/ptxgen/dsl/test_printing.py"
    assert "k.print(" in raised.value.where.source


def test_short_types_are_widened() -> None:
    def body(k: KernelBuilder) -> None:
        k.print("%f %d %lld\n", k.convert(1.0, F16), k.tid.x == 0, k.variable(-1, S64))

    lines = [line for line in text(body).splitlines() if "st.local" in line]
    assert [line.split()[0] for line in lines] == ["st.local.f64", "st.local.b32", "st.local.b64"]
    assert PRED.bits == 1
