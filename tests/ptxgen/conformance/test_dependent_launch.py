"""A dependent kernel is conformant only if its text waits in time, on every way; and each way of not doing so is
found twice, by the rule on the text and by the emulator where the way is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from ptxgen.conformance import check
from ptxgen.conformance.dependent_launch import violations
from ptxgen.dsl.arguments import Array, Scalar, Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError, AuthorError
from ptxgen.kernels.accuracy import UNIT
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from ptxgen.types import F32, U32
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

THREADS = 64


@dataclass(frozen=True)
class ScaledSum(KernelType):
    """y += w x, f32[n]; w are weights."""

    family: ClassVar[str] = "test"
    name = "test_scaled_sum"
    least_sm = 90
    n: int

    def signature(self) -> Signature:
        return {"y": update(F32, self.n), "w": read(F32, self.n, constant=True), "x": read(F32, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // THREADS), block=THREADS, dependent=True)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        inside = k.min(i, self.n - 1)
        weight = k.load(k.arg.w[inside], nc=True)
        k.prefetch(k.arg.x[inside].address, space="global", level="L2")
        wait(k)
        self.sum_up(k, i, weight)

    def sum_up(self, k: KernelBuilder, i: Any, weight: Any) -> None:
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.fma(weight, k.load(k.arg.x[i]), k.load(k.arg.y[i])))

    def reference(self, **arguments: Any) -> dict[str, Any]:
        return {"y": arguments["y"].astype(np.float64) + arguments["w"].astype(np.float64) * arguments["x"]}

    def tolerance(self, **arguments: Any) -> dict[str, Any]:
        return {"y": np.abs(self.reference(**arguments)["y"]) * UNIT}

    def work(self) -> Work:
        return Work(flops=2 * self.n, bytes=16 * self.n)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        y, w, x = rng.standard_normal((3, self.n), np.float32)
        return {"y": y, "w": w, "x": x}

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=100)


def wait(k: KernelBuilder) -> None:
    k.griddepcontrol(action="wait")


def mutant(emit: Callable[[Any, KernelBuilder], None], of: type[ScaledSum] = ScaledSum, **methods: Any) -> ScaledSum:
    kind: Any = type("Mutant", (of,), {"emit": emit, "__annotations__": {}, **methods})
    made: ScaledSum = dataclass(frozen=True)(kind)(n=100)
    return made


def never(self: ScaledSum, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    self.sum_up(k, i, k.load(k.arg.w[k.min(i, self.n - 1)]))


def after_the_residual(self: ScaledSum, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    with k.when(i < self.n):
        before = k.load(k.arg.y[i])
        wait(k)
        k.store(k.arg.y[i], k.fma(k.load(k.arg.w[i]), k.load(k.arg.x[i]), before))
    with k.when(i >= self.n):
        wait(k)


def on_one_branch(self: ScaledSum, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    with k.when(k.tid.x < 32):
        wait(k)
    self.sum_up(k, i, k.load(k.arg.w[k.min(i, self.n - 1)]))


def in_a_loop_that_may_not_run(self: ScaledSum, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    for _ in k.strided(k.tid.x, 33, step=32):
        wait(k)
    self.sum_up(k, i, k.load(k.arg.w[k.min(i, self.n - 1)]))


def after_the_result(self: ScaledSum, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    with k.when(i < self.n):
        k.store(k.arg.y[i], k.load(k.arg.w[i]))
    wait(k)


@dataclass(frozen=True)
class CopiedSum(ScaledSum):
    """The same with x copied to shared memory of the launch."""

    name = "test_copied_sum"

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // THREADS), block=THREADS, dependent=True, dynamic_shared=4 * THREADS)

    def emit(self, k: KernelBuilder) -> None:
        wait(k)
        copy_guarded(self, k)
        self.sum_copied(k)

    def sum_copied(self, k: KernelBuilder) -> None:
        k.cp_async_wait_all()
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.n):
            x = k.load(k.dynamic_shared(F32)[k.tid.x])
            k.store(k.arg.y[i], k.fma(k.load(k.arg.w[i]), x, k.load(k.arg.y[i])))


def copy_guarded(self: ScaledSum, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    k.copy_async(k.dynamic_shared(F32)[k.tid.x], k.arg.x[i], 4, guard=i < self.n, cache="ca")


def copy_or_fill(self: ScaledSum, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    k.copy_async(k.dynamic_shared(F32)[k.tid.x], k.arg.x[i], 4, taken=k.select(i < self.n, k.u32(4), 0), cache="ca")


FOUND = {never: "y", after_the_residual: "y", on_one_branch: "y", in_a_loop_that_may_not_run: "y", after_the_result: "y"}


def test_a_kernel_that_waits_in_time_conforms() -> None:
    report = check(ScaledSum(n=100))
    assert report.passed, str(report)


@pytest.mark.parametrize("emit", FOUND, ids=lambda emit: emit.__name__)
def test_a_kernel_that_does_not_is_found_in_its_text_and_on_the_emulator(emit: Any) -> None:
    reasons = {result.check: result.reason for result in check(mutant(emit)).failures}
    assert set(reasons) == {"text", "emulator"}
    assert f"{FOUND[emit]} is touched before the wait\n  ptx line " in reasons["text"]
    assert 'k.griddepcontrol(action="wait")' in reasons["text"]
    assert "test_dependent_launch.py:" in reasons["text"]
    assert "unordered: test_scaled_sum, thread" in reasons["emulator"]
    assert "before it has waited for the kernels before it" in reasons["emulator"]


@pytest.mark.parametrize("copy", [copy_guarded, copy_or_fill], ids=lambda copy: copy.__name__)
def test_a_copy_by_some_threads_is_found_before_the_wait(copy: Any) -> None:
    def emit(self: CopiedSum, k: KernelBuilder) -> None:
        copy(self, k)
        wait(k)
        self.sum_copied(k)

    reasons = {result.check: result.reason for result in check(mutant(emit, CopiedSum)).failures}
    assert set(reasons) == {"text", "emulator"}
    assert "x is touched before the wait\n  ptx line " in reasons["text"]
    assert "unordered: test_copied_sum, thread" in reasons["emulator"]
    assert "(100 times)" in reasons["emulator"]


def test_a_kernel_that_copies_after_the_wait_conforms() -> None:
    report = check(CopiedSum(n=100))
    assert report.passed, str(report)


def test_a_kernel_that_is_not_dependent_need_not_wait() -> None:
    report = check(mutant(never, launch=lambda self: LaunchConfig(2, THREADS)))
    assert report.passed, str(report)


@dataclass(frozen=True)
class Inside(ScaledSum):
    """The same, which is dependent in its dependent form alone, and says where that waits."""

    name = "test_inside"
    least_sm = 75
    waits_inside = True

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        weight = k.load(k.arg.w[k.min(i, self.n - 1)])
        k.wait_for_launch_before()
        self.sum_up(k, i, weight)


class Keeping(ScaledSum):
    """The same, of which y is settled, and read before the wait."""

    name = "test_keeping"

    def signature(self) -> Signature:
        return super().signature() | {"y": update(F32, self.n, settled=True)}

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        kept = k.load(k.arg.y[k.min(i, self.n - 1)])
        wait(k)
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.fma(k.load(k.arg.w[i]), k.load(k.arg.x[i]), kept))


def test_a_kernel_may_read_before_it_waits_what_it_writes_later() -> None:
    class Updating(Keeping):
        def signature(self) -> Signature:
            return super().signature() | {"y": update(F32, self.n)}

    assert check(Keeping(n=THREADS)).passed
    reasons = {result.check: result.reason for result in check(Updating(n=THREADS)).failures}
    assert "y is touched before the wait" in reasons["text"]
    assert "update(..., settled=True)" in reasons["text"]
    assert "unordered" in reasons["emulator"]


def test_a_kernel_that_waits_inside_conforms_if_its_early_form_waits_in_time() -> None:
    def late(self: Inside, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        x = k.load(k.arg.x[k.min(i, self.n - 1)])
        k.wait_for_launch_before()
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.fma(x, k.load(k.arg.w[i]), k.load(k.arg.y[i])))

    report = check(Inside(n=100))
    assert report.passed, str(report)
    reasons = {result.check: result.reason for result in check(mutant(late, Inside)).failures}
    assert set(reasons) == {"text"}  # as it is launched otherwise there is nothing to wait for
    assert "x is touched before the wait\n  ptx line " in reasons["text"]
    assert "k.wait_for_launch_before()" in reasons["text"]


def test_a_kernel_that_lets_the_next_start_inside_must_say_where() -> None:
    class Holding(Inside):
        frees_next_inside = True

    message = r"test_inside says that it lets the next launch start inside \(frees_next_inside\) and does so nowhere"
    with pytest.raises(AuthorError, match=message):
        emit(Holding(n=100), Target(90))


def test_a_kernel_that_waits_inside_must_say_where() -> None:
    with pytest.raises(AuthorError, match=r"test_inside says that it waits inside \(waits_inside\) and does so nowhere"):
        emit(mutant(never, Inside), Target(90))


@pytest.mark.parametrize("direction", ["out", "inout"])
def test_what_is_written_is_not_constant(direction: Any) -> None:
    with pytest.raises(ArgumentError, match=f"constant and {direction}"):
        Array(F32, (4,), direction, constant=True)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_what_is_settled_is_read_and_written(direction: Any) -> None:
    with pytest.raises(ArgumentError, match=f"settled and {direction}"):
        Array(F32, (4,), direction, settled=True)
    settled, constant, other = update(F32, 4, settled=True), read(F32, 4, constant=True), update(F32, 4)
    assert (settled.readable_before_wait, constant.readable_before_wait, other.readable_before_wait) == (True, True, False)


# The rule on text of other writers
SIGNATURE: Signature = {"p0": write(U32, 64), "p1": read(U32, 64, constant=True), "p2": read(U32, 64), "p3": Scalar(U32)}
POINTERS = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];\nld.param.u64 %rd3, [p2];\nld.param.u32 %r1, [p3];"
BODY = FIRST_LINE + 4
WAIT = "griddepcontrol.wait;"


UNKNOWN = "memory of an address that comes from no argument is touched"


def found(body: str, shared: str = "") -> list[str]:
    return violations(kernel(f"{POINTERS}\n{body}", "u64", "u64", "u64", "u32", shared=shared), "k", SIGNATURE)


@pytest.mark.parametrize(
    "body",
    [
        "ld.global.nc.u32 %r2, [%rd2+16];",
        "ld.u32 %r2, [%rd2];",
        "mad.wide.u32 %rd4, %r1, 4, %rd2;\nld.global.u32 %r2, [%rd4];",
        "ld.global.u32 %r2, [%rd2];\nmul.wide.u32 %rd4, %r2, 4;\nadd.u64 %rd5, %rd2, %rd4;\nld.global.u32 %r3, [%rd5];",
        "cvta.to.global.u64 %rd4, %rd2;\nmov.u64 %rd5, %rd4;\nld.global.u32 %r2, [%rd5];",
        "prefetch.global.L2 [%rd3];\nprefetchu.L1 [%rd1];",
        "mov.u64 %rd4, s;\ncvta.shared.u64 %rd5, %rd4;\nst.u32 [%rd5], %r1;\nld.const.u32 %r2, [c];\nst.shared.u32 [s], %r1;",
        "mov.u32 %r3, s;\ncp.async.ca.shared.global [%r3], [%rd2], 16;",
        "L1:\nld.global.u32 %r2, [%rd2];\nsetp.ne.u32 %p1, %r2, 0;\n@%p1 bra L1;",
    ],
)
def test_weights_and_a_kernels_own_memory_are_free_before_the_wait(body: str) -> None:
    own = ".shared .align 16 .b8 s[16]; .const .align 4 .b8 c[16];"
    assert not found(f"{body}\n{WAIT}\nld.global.u32 %r9, [%rd3];\nst.global.u32 [%rd1], %r9;", own)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("ld.global.u32 %r2, [%rd3];", "p2 is touched"),
        ("st.global.u32 [%rd1], %r1;", "p0 is touched"),
        ("red.global.add.u32 [%rd1+4], %r1;", "p0 is touched"),
        ("st.u32 [%rd1], %r1;", "p0 is touched"),
        ("mov.u32 %r3, s;\ncp.async.ca.shared.global [%r3], [%rd3], 16;", "p2 is touched"),
        ("cvta.to.global.u64 %rd4, %rd3;\nadd.u64 %rd4, %rd4, 8;\nld.global.v2.u32 {%r2, %r3}, [%rd4];", "p2 is touched"),
        ("setp.eq.u32 %p1, %r1, 0;\nselp.b64 %rd4, %rd2, %rd3, %p1;\nld.global.u32 %r2, [%rd4];", "p2 is touched"),
        ("mov.b64 {%r2, %r3}, %rd3;\nmov.b64 %rd4, {%r2, %r3};\nld.global.u32 %r4, [%rd4];", "p2 is touched"),
        (
            "ld.global.u64 %rd4, [%rd2];\nld.global.u32 %r2, [%rd4];",
            UNKNOWN,
        ),
        ("ld.global.u32 %r2, [g];", "g is touched"),
        ("mov.b64 %rd4, p0;\nld.param.u64 %rd5, [%rd4+8];\nld.global.u32 %r2, [%rd5];", UNKNOWN),
        ("ld.param.u64 %rd4, [p1+8];\nld.global.u32 %r2, [%rd4];", UNKNOWN),
        ("ld.param.u64 %rd4, [p2+-8];\nld.global.u32 %r2, [%rd4];", UNKNOWN),
        ("setp.eq.u32 %p1, %r1, 0;\n@%p1 ld.global.u32 %r2, [%rd3];", "p2 is touched"),
        (
            "setp.eq.u32 %p1, %r1, 0;\nmov.u64 %rd4, %rd2;\n@%p1 mov.u64 %rd4, %rd3;\nld.global.u32 %r2, [%rd4];",
            "p2 is touched",
        ),
        ("min.u64 %rd4, %rd2, %rd3;\nld.global.u32 %r2, [%rd4];", "p2 is touched"),
        (
            "mov.b64 {%r2, %r3}, %rd3;\nshfl.sync.idx.b32 %r4, %r2, 0, 31, -1;\nmov.b64 %rd4, {%r4, %r3};\nld.u32 %r5, [%rd4];",
            "p2 is touched",
        ),
        (
            "mov.u32 %r2, s;\nst.shared.u64 [%r2], %rd3;\nld.shared.u64 %rd4, [%r2];\nadd.u64 %rd4, %rd4, %rd2;\n"
            "ld.global.u32 %r3, [%rd4];",
            UNKNOWN,
        ),
        ("mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3], [%rd3], 16, 0;", "p2 is touched"),
        ("griddepcontrol.launch_dependents;\nld.global.u32 %r2, [%rd3];", "p2 is touched"),
        ("mov.u64 %rd4, %clock64;\nld.global.u32 %r2, [%rd4];", UNKNOWN),
    ],
)
def test_all_else_is_found_by_the_argument_that_the_address_is_made_from(body: str, what: str) -> None:
    variables = ".shared .align 16 .b8 s[16]; .global .align 4 .b8 g[16];"
    first, *_ = [one for one in found(f"{body}\n{WAIT}", variables) if what in one]
    assert first.startswith(f"{what} before the wait\n  ptx line {BODY + body.count(chr(10))}   ")


def test_a_pointer_that_goes_through_a_call_is_followed() -> None:
    text = kernel(
        f"{POINTERS}\n{{\n.param .b64 a;\nst.param.b64 [a], %rd3;\ncall f, (a);\n}}\n{WAIT}", "u64", "u64", "u64", "u32"
    )
    callee = ".func f(.param .b64 q)\n{\n.reg .b64 %x; .reg .b32 %y;\nld.param.u64 %x, [q];\nld.global.u32 %y, [%x];\nret;\n}\n"
    text = text.replace(".visible", callee + ".visible")
    assert [one.split("\n")[0] for one in violations(text, "k", SIGNATURE)] == ["p2 is touched before the wait"]
    constant = text.replace("[a], %rd3", "[a], %rd2")
    assert not violations(constant, "k", SIGNATURE)


def test_a_wait_that_some_threads_skip_is_none() -> None:
    condition = "setp.eq.u32 %p1, %r1, 0;\n"
    (one,) = found(f"{condition}@%p1 {WAIT}")
    assert one.startswith("a thread may end here without having waited")
    assert found(f"{condition}@%p1 ret;\n{WAIT}")[0].startswith("a thread may end here without having waited")
    both = f"@%p1 bra L1;\n{WAIT}\nbra L2;\nL1:\n{WAIT}\nL2:\nst.global.u32 [%rd1], %r1;"
    assert not found(condition + both)


@pytest.mark.parametrize(
    "store", ["st.global.u32 [%rd2], %r1", "red.add.u32 [%rd2+4], %r1", "atom.global.inc.u32 %r2, [%rd2], 7"]
)
def test_what_is_constant_is_not_written_even_after_the_wait(store: str) -> None:
    for body in (f"{store};\n{WAIT}", f"{WAIT}\n@%p1 {store};"):
        (one,) = found(body)
        assert one.startswith("p1 is constant, and may be written\n  ptx line ")


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("ld.global.u32 %r2, [%rd1];", None),
        ("mov.u32 %r3, s;\ncp.async.ca.shared.global [%r3], [%rd1], 16;", None),
        ("prefetch.global.L2 [%rd1];", None),
        ("st.global.u32 [%rd1], %r1;", "p0 is written before the wait"),
        ("red.global.add.u32 [%rd1+4], %r1;", "p0 is written before the wait"),
        ("atom.global.inc.u32 %r2, [%rd1], 7;", "p0 is written before the wait"),
        ("ld.global.nc.u32 %r2, [%rd1];", "p0 is loaded as if nobody wrote it while the kernel runs"),
        ("min.u64 %rd4, %rd1, %rd3;\nld.global.u32 %r2, [%rd4];", "p2 is touched before the wait"),
    ],
)
def test_what_is_settled_is_loaded_before_the_wait_and_written_after(body: str, what: str | None) -> None:
    signature = SIGNATURE | {"p0": update(U32, 64, settled=True)}
    own = ".shared .align 16 .b8 s[16];"
    text = kernel(f"{POINTERS}\n{body}\n{WAIT}\nst.global.u32 [%rd1], %r1;", "u64", "u64", "u64", "u32", shared=own)
    assert [one.split("\n")[0] for one in violations(text, "k", signature)] == ([what] if what else [])
    assert violations(text, "k", SIGNATURE) or body.startswith("prefetch")


def test_a_variable_with_the_name_of_an_argument_makes_a_text_that_is_not_judged() -> None:
    """By name its addresses could not be told from the argument's; one in braces of its own can."""
    body = f"ld.global.u32 %r2, [%rd3];\n{WAIT}"
    assert found(body, ".shared .align 4 .b8 p2[16];") == ["p2 is the name of an argument and of a variable"]
    (judged,) = found(f"{{ .shared .align 4 .b8 p2[16]; }}\n{body}")
    assert judged.startswith("p2 is touched before the wait")


def test_the_read_only_path_is_for_constant_memory_alone() -> None:
    body = f"{WAIT}\nld.global.nc.u32 %r2, [{{}}];\nst.global.u32 [%rd1], %r2;"
    assert not found(body.format("%rd2"))
    (one,) = found(body.format("%rd3"))
    assert one.startswith(f"p2 is loaded as if nobody wrote it while the kernel runs\n  ptx line {BODY + 1}   ld.global.nc.u32")
