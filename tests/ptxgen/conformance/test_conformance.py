"""The conformance kit: a right kernel passes, and each way of being wrong is found by the check that is there for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from ptxgen.commands.catalogue import checked_on
from ptxgen.conformance import Nonconformity, check, shape_checks, type_checks
from ptxgen.conformance.execution import CANARY, compare, deviation, emitted, emulate, inputs, placed
from ptxgen.dsl.arguments import Scalar, Signature, read, update, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.kernels import registry
from ptxgen.kernels.registry import KernelEntry
from ptxgen.kernels.shape import require
from ptxgen.target import ALL, HOPPER, WARPGROUP_SIZE, Target
from ptxgen.toolchain import assemble as assembling
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit as emit_anew
from ptxgen.types import F32, U32

THREADS = 32


@dataclass(frozen=True)
class Doubled(KernelType):
    """y = 2 x, f32[n]."""

    family: ClassVar[str] = "test"
    name = "test_doubled"
    n: int

    def __post_init__(self) -> None:
        require(self, "n")

    def signature(self) -> Signature:
        return {"y": write(F32, self.n), "x": read(F32, self.n)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // THREADS), block=THREADS)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.load(k.arg.x[i]) * 2.0)

    def reference(self, **arguments: Any) -> dict[str, Any]:
        return {"y": 2 * arguments["x"].astype(np.float64)}

    def tolerance(self, **arguments: Any) -> dict[str, Any]:
        return {"y": 0.0}

    def work(self) -> Work:
        return Work(flops=self.n, bytes=8 * self.n)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"y": np.zeros(self.n, np.float32), "x": rng.standard_normal(self.n, np.float32)}

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=64)


def made(**methods: Any) -> type[Doubled]:
    """A kernel type like Doubled but for these methods and attributes."""
    annotations = {"least_sm": ClassVar[int]} if "least_sm" in methods else {}
    return dataclass(frozen=True)(type("Other", (Doubled,), {**methods, "__annotations__": annotations}))


def reasons(kernel: type[Doubled]) -> dict[str, str]:
    """What each check that failed says."""
    return {result.check: result.reason for result in check(kernel).failures}


def test_a_right_kernel_passes_every_check() -> None:
    report = check(Doubled)
    assert report.passed
    assert {result.check for result in report.results} == {
        "cases", "refusals", "tails", "signature", "text", "assembly", "emulator"
    }  # fmt: skip
    report.raise_failures()


class Summed(Doubled):
    """y = 2 x, of which other blocks hold the halves that each needs until all have written theirs."""

    def signature(self) -> Signature:
        return {**super().signature(), "halves": write(F32, self.n), "words": update(U32, 2, zeros=True)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // THREADS), block=THREADS, cooperative=True)

    def emit(self, k: KernelBuilder) -> None:
        i = k.ctaid.x * THREADS + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.halves[self.n - 1 - i], k.load(k.arg.x[self.n - 1 - i]))
        self.wait(k)
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.load(k.arg.halves[i]) * 2.0)
        self.wait(k)

    def wait(self, k: KernelBuilder) -> None:
        k.grid_barrier(k.arg.words, 2)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {**super().inputs(rng), "halves": np.zeros(self.n, np.float32), "words": np.zeros(2, np.uint32)}

    def reference(self, **arguments: Any) -> dict[str, Any]:
        return {**super().reference(**arguments), "halves": arguments["x"], "words": np.zeros(2)}

    def tolerance(self, **arguments: Any) -> dict[str, Any]:
        return {"y": 0.0, "halves": 0.0, "words": 0.0}


def test_blocks_that_wait_for_each_other_pass_every_check_and_fail_where_they_do_not_wait() -> None:
    summed = dataclass(frozen=True)(Summed)
    assert check(summed(n=65)).passed
    methods = {"wait": lambda self, k: None, "__annotations__": {}}
    hasty: type[Summed] = dataclass(frozen=True)(type("Hasty", (Summed,), methods))
    failed = {result.check: result.reason for result in check(hasty(n=65)).failures}
    assert list(failed) == ["emulator"]
    assert failed["emulator"].startswith(("race", "uninitialised"))


def test_a_shape_alone_has_the_checks_of_a_shape() -> None:
    assert [result.check for result in check(Doubled(n=33)).results] == ["signature", "text", "assembly", "emulator"]


def test_a_name_that_nobody_registered_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no kernel is called 'nothing'"):
        check("nothing")


def emit_without_tail(self: Doubled, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    k.store(k.arg.y[i], k.load(k.arg.x[i]) * 2.0)


def test_a_missing_tail_is_found_though_no_sample_shape_has_one() -> None:
    failed = reasons(made(emit=emit_without_tail))
    assert list(failed) == ["tails"]
    assert "out of bounds" in failed["tails"]
    assert "with the shape test_doubled(n=37), which cases() does not have" in failed["tails"]


@dataclass(frozen=True)
class Tuned(Doubled):
    """A size, a field that only an assembler reads, and one that changes the instructions."""

    n: int = 64
    resident: int = 4
    step: int = 4

    def __post_init__(self) -> None:
        require(self, "n", "resident", "step")

    def launch(self) -> LaunchConfig:
        return replace(super().launch(), resident=self.resident)

    def emit(self, k: KernelBuilder) -> None:
        super().emit(k)
        for _ in range(self.step):
            k.barrier()

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls()


def test_what_the_emulator_cannot_tell_apart_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[KernelType] = []
    monkeypatch.setattr(type_checks, "emulator", run.append)
    type_checks.tails(KernelEntry("test_doubled", Tuned))
    assert run == [Tuned(n=37), Tuned(n=1), Tuned(step=37), Tuned(step=1)]
    run.clear()
    type_checks.tails(KernelEntry("test_doubled", Tuned), only={"step"})
    assert run == [Tuned(step=37), Tuned(step=1)]


def emit_wide(self: Doubled, k: KernelBuilder) -> None:
    i = (k.ctaid.x * THREADS + k.tid.x) * 2
    with k.when(i < self.n):
        k.store(k.arg.y[i], [value * 2.0 for value in k.load_vector(k.arg.x[i], 2)])


def test_a_wider_load_than_the_alignment_that_is_promised_is_found() -> None:
    narrow = {"signature": lambda self: {"y": write(F32, self.n, align=4), "x": read(F32, self.n, align=4)}}
    even = {"__post_init__": lambda self: require(self, "n", multiple=2)}
    assert not reasons(made(emit=emit_wide, **even))
    assert "misaligned" in reasons(made(emit=emit_wide, **narrow, **even))["emulator"]


def emit_sometimes(self: Doubled, k: KernelBuilder) -> None:
    emit_sometimes.count += 1  # type: ignore[attr-defined]
    k.remark(f"number {emit_sometimes.count}")  # type: ignore[attr-defined]
    Doubled.emit(self, k)


emit_sometimes.count = 0  # type: ignore[attr-defined]


def emit_racing(self: Doubled, k: KernelBuilder) -> None:
    shared = k.shared(F32, 2 * THREADS)
    i = k.ctaid.x * 2 * THREADS + k.tid.x
    k.store(shared[k.tid.x], k.load(k.arg.x[i]))
    k.store(k.arg.y[i], k.load(shared[k.tid.x ^ (2 * THREADS - 1)]) * 2.0)


def emit_reading_its_output(self: Doubled, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    with k.when(i < self.n):
        k.store(k.arg.y[i], k.load(k.arg.y[i]) * 0.0 + k.load(k.arg.x[i]) * 2.0)


def emit_writing_its_input(self: Doubled, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    with k.when(i < self.n):
        k.store(k.arg.x[i], k.load(k.arg.x[i]) * 2.0)
        k.store(k.arg.y[i], k.load(k.arg.x[i]))


def emit_mixing_types(self: Doubled, k: KernelBuilder) -> None:
    k.load(k.arg.x[0]) + k.tid.x


def emit_wrong_on_new_targets(self: Doubled, k: KernelBuilder) -> None:
    i = k.ctaid.x * THREADS + k.tid.x
    with k.when(i < self.n):
        k.store(k.arg.y[i], k.load(k.arg.x[i]) * (2.0 if k.target.sm < 90 else 3.0))


@pytest.mark.parametrize(
    ("methods", "found_by", "said"),
    [
        ({"emit": emit_sometimes}, "text", "differs when emitted again: // number"),
        ({"emit": emit_mixing_types}, "text", "add needs operands of one type"),
        ({"emit": emit_racing, "launch": lambda self: LaunchConfig(1, 2 * THREADS)}, "emulator", "race"),
        ({"emit": emit_reading_its_output}, "emulator", "uninitialised"),
        ({"emit": emit_writing_its_input}, "emulator", "read-only"),
        ({"emit": emit_wrong_on_new_targets}, "emulator", "values of y are off by up to"),
        ({"reference": lambda self, **a: {"y": 3.0 * a["x"]}}, "emulator", "values of y are off by up to"),
        ({"reference": lambda self, **a: {"z": a["x"]}}, "emulator", "reference() gives z; the kernel writes y"),
        ({"tolerance": lambda self, **a: {"y": float("nan")}}, "emulator", "the tolerance of y is nan somewhere"),
        ({"tolerance": lambda self, **a: a["x"].fill(0)}, "emulator", "ValueError"),
        ({"work": lambda self: Work(1, 0)}, "signature", "a launch moves at least one byte"),
        ({"launch": lambda self: LaunchConfig(1, 2048)}, "signature", "block (2048, 1, 1) is out of range"),
        ({"signature": lambda self: {"lambda": write(F32, self.n)}}, "signature", "no Python keyword"),
        ({"signature": lambda self: {"y": read(F32, self.n), "x": read(F32, self.n)}}, "signature", "writes none"),
        ({"signature": lambda self: {"y": write(F32, self.n, align=12)}}, "signature", "aligned to 12"),
        ({"inputs": lambda self, rng: {"y": np.zeros(self.n, "f4"), "x": np.zeros(self.n)}}, "signature", "gives float64[64]"),
        ({"inputs": lambda self, rng: {"x": np.zeros(self.n, "f4")}}, "signature", "inputs() gives x; the signature has y, x"),
        ({"inputs": lambda self, rng: Doubled.inputs(self, np.random.default_rng())}, "signature", "another x for the same"),
        ({"name": "no-name"}, "signature", "cannot be the name of a PTX entry"),
        ({"cases": classmethod(lambda cls, **fixed: iter([cls(n=5), cls(n=5)]))}, "cases", "test_doubled(n=5) twice"),
        ({"cases": classmethod(lambda cls, **fixed: iter([]))}, "cases", "names no shape"),
        ({"cases": classmethod(lambda cls, **fixed: iter([cls(n="5")]))}, "cases", "n must be an integer"),
        ({"signature": lambda self: {"y": update(F32, self.n, zeros=True), "x": read(F32, self.n)}}, "emulator", "y is dec"),
        ({"least_sm": 200}, "assembly", "least_sm is 200; the targets are"),
    ],
)  # fmt: skip
def test_each_fault_is_found_by_its_check(methods: dict[str, Any], found_by: str, said: str) -> None:
    assert said in reasons(made(**methods))[found_by]


@pytest.mark.parametrize("extent", [0, -1, 2.5, "four", True, None])
def test_an_extent_that_makes_no_array_is_refused_by_the_signature(extent: Any) -> None:
    unchecked = made(__post_init__=lambda self: None)
    with pytest.raises(ArgumentError, match="extents are positive integers"):
        unchecked(n=extent).signature()
    with pytest.raises(ArgumentError, match=rf"^test_doubled\(n={extent}\): no array has the shape"):
        KernelEntry("test_doubled", unchecked).make(n=extent)


def test_a_first_kernel_whose_only_size_is_an_extent_needs_no_checks_of_its_own() -> None:
    assert not reasons(made(__post_init__=lambda self: None))


@dataclass(frozen=True)
class Threaded(Doubled):
    """As Doubled, with a size that no extent has."""

    threads: int = THREADS

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // THREADS), block=self.threads)


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (Threaded.launch, "threads=0 is accepted, but block (0, 1, 1) is out of range"),
        (lambda self: LaunchConfig(self.n // self.threads, THREADS), "threads=0 is accepted, but ZeroDivisionError"),
        (lambda self: LaunchConfig(-(-self.n // THREADS), THREADS), "threads=2.5 is accepted"),
    ],
)
def test_a_size_that_must_be_checked_is_named_with_the_cure(launch: Callable[..., LaunchConfig], said: str) -> None:
    reason = reasons(dataclass(frozen=True)(type("Other", (Threaded,), {"launch": launch})))["refusals"]
    assert reason.startswith(said)
    assert 'refuse it in __post_init__: require(self, "threads") of ptxgen.kernels.shape' in reason


@pytest.mark.parametrize(("figures", "said"), [
    ({"spill_stores": 8}, "on sm_75: 8 bytes are spilled"),
    ({"registers": 255}, "a block needs 130560 registers; a multiprocessor has 65536"),
    ({"code": 65537}, "65537 bytes of machine code; at most 65536 are allowed"),
])  # fmt: skip
def test_the_verdict_on_machine_code_is_that_of_check(
    figures: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shape_checks, "assemble", lambda text, target: replace(assemble(text, target), **figures))
    monkeypatch.setattr(assembling, "assemble", lambda text, target: replace(assemble(text, target), **figures))
    wide = made(launch=lambda self: LaunchConfig(grid=1, block=512)) if "registers" in figures else Doubled
    assert said in reasons(wide)["assembly"]
    checked = checked_on(wide(n=64), Target(75))
    assert checked.error
    assert checked.error in reasons(wide)["assembly"]


def test_a_kernel_for_newer_gpus_is_not_written_for_older_ones() -> None:
    def needs_sm_90(self: Doubled, k: KernelBuilder) -> None:
        assert k.target.sm >= 90
        Doubled.emit(self, k)

    assert not reasons(made(emit=needs_sm_90, least_sm=90))


def made_for_hopper(**methods: Any) -> type[Doubled]:
    """A kernel of warpgroups."""

    def emit(self: Doubled, k: KernelBuilder) -> None:
        k.wgmma_fence()
        i = k.ctaid.x * WARPGROUP_SIZE + k.tid.x
        with k.when(i < self.n):
            k.store(k.arg.y[i], k.load(k.arg.x[i]) * 2.0)

    def launch(self: Doubled) -> LaunchConfig:
        return LaunchConfig(grid=-(-self.n // WARPGROUP_SIZE), block=WARPGROUP_SIZE)

    return made(emit=emit, launch=launch, **methods)


def test_a_kernel_for_one_gpu_alone_is_written_and_assembled_for_that() -> None:
    alone = made_for_hopper(only_on=HOPPER)
    assert not reasons(alone)
    kernel = alone(n=64)
    assert kernel.targets() == (HOPPER,)
    assert {kernel.target_for(target) for target in (Target(90), HOPPER)} == {HOPPER}
    assert ".target sm_90a" in emit_anew(kernel, Target(90)).text
    assert [target for target in ALL if kernel.runs_on(target)] == [Target(90)]


@pytest.mark.parametrize("target", [Target(75), Target(100)], ids=str)
def test_a_kernel_for_one_gpu_alone_says_so_on_others(target: Target) -> None:
    alone = made_for_hopper(only_on=HOPPER)(n=64)
    assert checked_on(alone, Target(90)).target == "sm_90a"
    assert checked_on(alone, target).error == f"test_doubled is written for sm_90a alone, and the target is {target}"


def test_an_instruction_of_one_gpu_alone_is_no_other_kernel_s() -> None:
    assert "needs sm_90a" in reasons(made_for_hopper(least_sm=90))["text"]


def test_a_scalar_outside_its_own_bounds_is_found() -> None:
    bounded: dict[str, Callable[..., Any]] = {
        "signature": lambda self: {"y": write(F32, self.n), "x": read(F32, self.n), "a": Scalar(F32, high=1.0)},
        "inputs": lambda self, rng: {**Doubled.inputs(self, rng), "a": 2.0},
    }
    assert "inputs() gives 2.0 for a; its own signature allows -inf to 1.0" in reasons(made(**bounded))["signature"]


def test_an_error_that_is_not_ours_names_the_line_that_raised_it() -> None:
    def emit(self: Doubled, k: KernelBuilder) -> None:
        raise KeyError("lost")

    reason = reasons(made(emit=emit))["text"]
    assert "KeyError: 'lost'" in reason
    assert "test_conformance.py" in reason


def test_one_broken_kernel_does_not_stop_the_checks_of_another() -> None:
    report = check(made(cases=classmethod(lambda cls, **fixed: 1 / 0)), Doubled)
    assert [result.reason.split(":")[0] for result in report.failures] == ["ZeroDivisionError"]
    assert len(report.results) > 5
    with pytest.raises(Nonconformity, match="1 failed, 7 passed"):
        report.raise_failures()
    assert "FAILED  test_doubled  cases" in str(report)


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("kernel", [Doubled(n=5), made(emit=emit_wrong_on_new_targets)(n=5)], ids=["any target", "by target"])
def test_the_text_that_is_written_once_for_all_checks_is_what_is_emitted(kernel: KernelType, lines: bool) -> None:
    texts = {target: emitted(kernel, target, lines=lines).text for target in reversed(ALL)}
    assert texts == {target: emit_anew(kernel, target, lines=lines).text for target in ALL}


@pytest.mark.parametrize("align", [1, 2, 4, 16, 64])
def test_an_array_is_placed_at_what_is_promised_and_no_better_between_canaries(align: int) -> None:
    array = np.arange(7, dtype=np.uint8)
    copy, memory = placed(array, align, tight=True)
    assert copy.ctypes.data % (2 * align) == align % (2 * align)
    assert np.array_equal(copy, array)
    start = copy.ctypes.data - memory.ctypes.data
    assert set(memory[:start]) == set(memory[start + 7 :]) == {CANARY}
    assert min(start, memory.size - start - 7) >= 64


def test_infinities_and_nan_are_compared_as_values() -> None:
    @dataclass(frozen=True)
    class Odd(Doubled):
        def reference(self, **arguments: Any) -> dict[str, Any]:
            return {"y": np.array([np.inf, np.nan, 1.0])}

    kernel = Odd(n=3)
    arguments = kernel.inputs(np.random.default_rng(0))
    compare(kernel, arguments, {"y": np.array([np.inf, np.nan, 1.0], np.float32)})
    with pytest.raises(Nonconformity, match=r"1 of 3 values of y are off.*first y\[0\]: is -inf"):
        compare(kernel, arguments, {"y": np.array([-np.inf, np.nan, 1.0], np.float32)})


def test_a_write_beside_an_array_is_found_by_the_canaries_too() -> None:
    def emit(self: Doubled, k: KernelBuilder) -> None:
        k.store(k.arg.y.at(self.n - 1)[1 + k.tid.x * 0], 1.0)  # computed, so that the builder cannot see it

    kernel = made(emit=emit)(n=4)
    with pytest.raises(Nonconformity, match="the kernel wrote next to y, outside its 16 bytes"):
        emulate(kernel, inputs(kernel), sanitize=False, tight=True)


def test_numbers_in_messages_are_written_as_numbers() -> None:
    got, wanted = np.asarray([1.0, 2.5], np.float32), np.asarray([1.0, 2.0])
    with pytest.raises(Nonconformity, match=r"first y\[1\]: is 2.5, the reference 2.0, allowed \+-0"):
        deviation("y", got, wanted, 0.0)
    with pytest.raises(ArgumentError, match=r"hidden must be an integer, 1..16384, got 0$"):
        registry.find("rmsnorm").make(hidden=np.int64(0))
