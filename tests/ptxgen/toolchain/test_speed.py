"""How long writing kernels takes. Bounds are for slow and busy machines: process time, three times what is aimed at."""

from __future__ import annotations

import gc
from time import process_time

import pytest

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.isa.operands import Immediate
from ptxgen.kernels.registry import entries
from ptxgen.toolchain.module import emit
from tests.cli.invoke import python
from tests.ptxgen.dsl.writing import written

AIM_OF_START, AIM_OF_LINE = 0.005, 20e-6  # seconds to emit and verify a kernel, and for each line of its text
AIM_OF_ALL = 10.0
AIM_OF_LIST = 0.4
SLOW = 3.0
TRIES = 12
YARDSTICK = 0.022  # seconds of the loop in `slowness` where the largest kernel here takes 0.043

KERNELS = [next(iter(entry.cases())) for entry in entries().values()]


def slowness() -> float:
    """How many times longer plain Python takes now than on the machine that the bounds were set on; at least 1."""
    start = process_time()
    words = [f"%r{i}" for i in range(60_000)]
    seen = {word: (i, word) for i, word in enumerate(words)}
    assert sum(len(word) + seen[word][0] % 3 for word in words)
    return max(1.0, (process_time() - start) / YARDSTICK)


def seconds_to_emit(kernel: KernelType) -> float:
    gc.disable()  # else the objects that thousands of other tests left are looked through in our time
    try:
        start = process_time()
        emit(kernel, kernel.targets()[0])
        return process_time() - start
    finally:
        gc.enable()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_kernel_is_written_and_verified_in_milliseconds(kernel: KernelType) -> None:
    # The best of some tries counts: a neighbour on the same processor costs a single one up to a half more.
    aim = AIM_OF_START + AIM_OF_LINE * emit(kernel, kernel.targets()[0]).text.count("\n")
    assert any((taken := seconds_to_emit(kernel)) < aim * SLOW or taken < aim * SLOW * slowness() for _ in range(TRIES))


@pytest.mark.slow
def test_one_kernel_of_each_name_is_written_in_seconds() -> None:
    assert sum(map(seconds_to_emit, KERNELS)) < AIM_OF_ALL * SLOW * slowness()


def test_the_list_is_quick_and_imports_no_emulator_assembler_or_template_library() -> None:
    listed = python(
        "import sys, time\nfrom ptxgen.commands.cli import main\n"
        "try:\n    main(['list'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'llvmlite', 'jinja2', 'cuda', 'gguf'} & set(sys.modules)\n"
        "print(time.process_time(), ' '.join(heavy), file=sys.stderr)"
    )
    seconds, *heavy = listed.stderr.split()
    assert float(seconds) < AIM_OF_LIST * SLOW * slowness()
    assert heavy == []


def test_a_choice_that_is_remembered_keeps_the_constants_of_each_call() -> None:
    function = written(lambda k: [k.load(k.arg.x[0]) * constant for constant in (0.0, -0.0, 0.0)])
    constants = [op.operands["b"] for op in function.ops if op.row.name == "mul"]
    assert [str(constant) for constant in constants if isinstance(constant, Immediate)] == [
        "0f00000000", "0f80000000", "0f00000000"
    ]  # fmt: skip
