"""`k.constants`: arrays that a module holds from the start."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.emulator import run
from ptxgen.errors import AuthorError, PtxGenError
from ptxgen.target import ALL, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import module_text
from ptxgen.types import F32, S32, U8, U16, U32
from tests.ptxgen.dsl.writing import text, written

SQUARES = [i * i for i in range(20)]


def looks_up(k: KernelBuilder) -> None:
    squares = k.constants("squares", U16, SQUARES)
    k.store(k.arg.y[k.tid.x], k.load(squares[k.load(k.arg.n[k.tid.x])]))
    assert k.constants("squares", U16, SQUARES) == squares


SIGNATURE: Signature = {"n": read(U32, 64), "y": write(U32, 64)}


def test_numbers_are_declared_once_and_loaded_through_the_read_only_path() -> None:
    lines = text(looks_up, signature=SIGNATURE).splitlines()
    first = lines.index(".global .align 16 .u16 squares[20] = {")
    numbers = "".join(lines[first + 1 : lines.index("};")]).split(",")
    assert [int(number, 16) for number in numbers] == SQUARES
    assert sum("ld.global.nc.u16" in line for line in lines) == 1


@pytest.mark.slow
def test_the_emulator_reads_them_under_the_sanitiser() -> None:
    n = np.arange(64, dtype=np.uint32) % 20
    y = np.zeros(64, np.uint32)
    run(text(looks_up, signature=SIGNATURE), "probe", grid=1, block=64, args=[n, y], sanitize=True)
    assert np.array_equal(y, n * n)


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL, ids=str)
def test_every_target_assembles_them(target: Target) -> None:
    assemble(text(looks_up, signature=SIGNATURE, target=target), target)


def test_kernels_of_a_module_share_an_array() -> None:
    one, other = (written(looks_up, signature=SIGNATURE) for _ in range(2))
    other.name = "other"
    assert module_text([one, other], ALL[0]).count(".u16 squares[20]") == 1
    changed = written(lambda k: k.constants("squares", U16, [1]))
    changed.name = "changed"
    with pytest.raises(PtxGenError, match="a module holds each array once, two functions have another squares"):
        module_text([one, changed], ALL[0])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda k: k.constants("a", U8, [256]), "a must have whole numbers that fit an unsigned type, got u8"),
        (lambda k: k.constants("a", S32, [1]), "fit an unsigned type, got s32"),
        (lambda k: k.constants("a", F32, [1]), "fit an unsigned type, got f32"),
        (lambda k: k.constants("a", U8, []), "must have whole numbers"),
        (lambda k: (k.constants("a", U8, [1]), k.constants("a", U8, [2])), "another array 'a', with other values"),
    ],
)
def test_what_cannot_be_an_array_is_refused_at_the_line(body: Callable[[KernelBuilder], object], said: str) -> None:
    with pytest.raises(AuthorError, match=said) as caught:
        written(body)
    assert caught.value.where is not None
    assert caught.value.where.file.endswith("test_constants.py")
