"""The stamped form of a kernel: the instructions of the other with nothing between that could change a bit, and times that hold
what every thread does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ptxgen import emulator
from ptxgen.conformance.dependent_launch import violations
from ptxgen.dsl.arguments import Signature, write
from ptxgen.dsl.build import build
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.ir import Op
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.stamps import END, ROWS, STAMPS, START, UNSET, WAITED, stamped_signature
from ptxgen.errors import ArgumentError, AuthorError
from ptxgen.kernels.compose import as_dependent
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from ptxgen.types import U64
from tests.executor.launch.kernels import Scale
from tests.ptxgen.kernels.catalogue import ENTRIES, REPRESENTATIVES
from tests.ptxgen.kernels.running import inputs
from tests.ptxgen.toolchain.test_cuda_source import Reversed

TARGET = Target(90)
NEVER = np.iinfo(np.uint64).max


@dataclass(frozen=True)
class Clocks(Scale):
    """y[i] = the time at which thread i does its last act: u64[blocks * 64]. Some end before the others, by a guarded end: the
    lanes below `low`, or with `high` those from there on."""

    name = "test_clocks"
    block: tuple[int, ...] = (64,)
    low: int = 0
    high: bool = False
    waits_inside = True

    def signature(self) -> Signature:
        return {"y": write(U64, self.n * 64)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.n, block=self.block)

    def emit(self, k: KernelBuilder) -> None:
        mine = k.arg.y.at(k.ctaid.x * 64 + k.tid.y * self.block[0] + k.tid.x)
        k.wait_for_launch_before()
        if self.low or self.high:
            k.store(mine[0], k.special("%globaltimer"))
            k.write("ret", [], guard=k.lane < self.low, guard_negated=self.high)
            k.nanosleep(100)
        k.store(mine[0], k.special("%globaltimer"))


def launched(kernel: KernelType, dependent: bool, **arguments: Any) -> np.ndarray[Any, Any]:
    """u64[ROWS, 4], the stamps of a launch that the sanitiser has no complaint of."""
    stamps, launch = np.full(STAMPS.shape, NEVER), kernel.launch()
    emitted = emit(kernel, TARGET, dependent=dependent, stamped=True)
    passed = [{**arguments, "stamps": stamps}[name] for name in stamped_signature(kernel)]
    text, shared = emitted.text, launch.dynamic_shared
    assert not emulator.run(text, emitted.entry, launch.grid, launch.block, passed, shared=shared, dependent=dependent)
    return stamps


@pytest.mark.parametrize(
    ("low", "high", "block", "dependent"),
    [
        (0, False, (64,), True),
        (0, False, (16, 4), False),
        (20, False, (64,), False),
        (20, True, (64,), True),
        (32, False, (64,), False),
        (0, True, (64,), True),
    ],
)
def test_the_stamps_hold_the_last_act_of_every_thread_of_every_block(
    low: int, high: bool, block: tuple[int, ...], dependent: bool
) -> None:
    kernel = Clocks(n=ROWS + 3, block=block, low=low, high=high)
    times = np.zeros((kernel.n, 64), np.uint64)
    stamps = launched(kernel, dependent, y=times.reshape(-1))
    blocks_of_rows = [times[row::ROWS] for row in range(ROWS)]
    assert np.all(stamps[:, START] < [blocks.min() for blocks in blocks_of_rows])
    assert np.all(stamps[:, END] > [blocks.max() for blocks in blocks_of_rows])
    assert np.all(stamps[:, END] < NEVER)
    assert np.all(stamps[:, 3] == NEVER)
    if not dependent:
        assert np.all(stamps[:, WAITED] == NEVER)
        return
    assert np.all(stamps[:, START] < stamps[:, WAITED])
    assert np.all(stamps[:, WAITED] < [blocks.min() for blocks in blocks_of_rows])


def test_bytes_that_are_unset_are_later_than_any_start_and_earlier_than_any_end() -> None:
    unset = np.full(8, UNSET, np.uint8)
    assert unset.view(np.uint64)[0] == NEVER
    assert unset.view(np.int64)[0] == -1


def one_of_each() -> Iterator[tuple[KernelType, bool]]:
    """A kernel of each family and way to wait, and whether in its dependent form."""
    kernels: dict[tuple[object, ...], KernelType] = {}
    for entry in ENTRIES:
        if entry.name in REPRESENTATIVES:
            for kernel in (case := next(iter(entry.cases())), as_dependent(case)):
                kernels.setdefault((kernel.family, kernel.waits_inside, kernel.launch().dependent, kernel.only_on), kernel)
    for kernel in kernels.values():
        yield kernel, False
        yield kernel, True


def test_a_stamped_form_has_all_the_instructions_of_the_other_in_order_and_writes_none_of_their_registers() -> None:
    for kernel, dependent in one_of_each():
        target = kernel.target_for(TARGET)
        plain, emitted = build(kernel, target, dependent=dependent), emit(kernel, target, dependent=dependent, stamped=True)
        registers = {register.name for register in plain.registers}
        lines = [str(line) for line in plain.body]
        for line in emitted.function.body:
            if lines and str(line) == lines[0]:
                del lines[0]
            else:
                assert isinstance(line, Op), f"{kernel}: {line}"
                assert not registers & {register.name for register in line.written}, f"{kernel}: {line}"
        assert not lines, f"{kernel}: {lines[0]} is not there, or not at its place"
        if dependent or kernel.launch().dependent:
            assert not violations(emitted.text, kernel.name, stamped_signature(kernel))


SAMPLE = (
    ("rmsnorm_digits", {"hidden": 64, "digits": 1}),
    ("hw_dp4a_q4k_gemv", {"k": 256, "n": 5, "digits": 1}),
    ("incremental_attention", {"heads": 2, "kv_heads": 1, "head_dim": 32, "max_len": 40}),
    ("argmax", {"n": 100}),
)


@pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
@pytest.mark.parametrize(("name", "shape"), SAMPLE, ids=[name for name, _ in SAMPLE])
def test_a_stamped_launch_gives_the_bits_of_another(name: str, shape: dict[str, int], dependent: bool) -> None:
    kernel = find(name).make(**shape)
    plain, stamped = (inputs(kernel) for _ in range(2))
    emitted, launch = emit(kernel, TARGET, dependent=dependent), kernel.launch()
    passed = [plain[name] for name in kernel.signature()]
    emulator.run(emitted.text, emitted.entry, launch.grid, launch.block, passed, shared=launch.dynamic_shared, sanitize=False)
    assert launched(kernel, dependent, **stamped)[0, END] < NEVER
    for name in kernel.signature():
        assert np.asarray(plain[name]).tobytes() == np.asarray(stamped[name]).tobytes(), name


def test_a_kernel_of_cuda_cpp_and_one_with_an_argument_of_that_name_have_no_stamped_form() -> None:
    @dataclass(frozen=True)
    class Stamps(Clocks):
        def signature(self) -> Signature:
            return {"stamps": write(U64, self.n, 64)}

    with pytest.raises(ArgumentError, match=r"test_reversed is CUDA C\+\+, into which no stamps are written"):
        emit(Reversed(n=1), TARGET, stamped=True)
    with pytest.raises(AuthorError, match="has an argument stamps"):
        emit(Stamps(n=1), TARGET, stamped=True)


def test_the_manifest_of_a_stamped_form_names_the_stamps() -> None:
    last = emit(Scale(n=100), TARGET, stamped=True).manifest()["parameters"][-1]
    assert (last["name"], last["shape"], last["direction"], last["align"]) == ("stamps", [ROWS, 4], "inout", 32)
