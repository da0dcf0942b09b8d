"""Products of a warpgroup (wgmma): they assemble for sm_90a and for nothing else, in every shape."""

from __future__ import annotations

import pytest

from ptxgen.errors import AuthorError, UnavailableInstruction
from ptxgen.target import HOPPER, WARPGROUP_SIZE, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.machine_code import faults
from ptxgen.types import B32
from tests.ptxgen.dsl.writing import written
from tests.ptxgen.isa.products import WIDTHS, Products


@pytest.mark.parametrize(("n", "type"), [*((n, "f16") for n in WIDTHS), (48, "bf16")])
def test_every_shape_assembles(n: int, type: str) -> None:
    assert not faults(assemble(Products(n, type).text(), HOPPER), WARPGROUP_SIZE)


def test_products_that_the_assembler_makes_wait_are_a_fault() -> None:
    text = Products(8).text()
    wait = "wgmma.wait_group.sync.aligned 0;"
    assert wait in text
    (fault,) = faults(assemble(text.replace(wait, ""), HOPPER), WARPGROUP_SIZE)
    assert "wgmma.wait_group is injected" in fault


@pytest.mark.parametrize("target", [Target(90), Target(100), Target(100, "a")], ids=str)
def test_a_product_is_refused_by_other_gpus(target: Target) -> None:
    with pytest.raises(UnavailableInstruction, match="needs sm_90a and PTX"):
        written(lambda k: k.wgmma_fence(), target=target)


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"stride": 256}, "a leading offset or a swizzle, one of the two"),
        ({"stride": 256, "leading": 128, "swizzle": 32}, "a leading offset or a swizzle, one of the two"),
        ({"stride": 256, "swizzle": 16}, "swizzle must be 0, 128, 64, 32 bytes, got 16"),
    ],
)
def test_a_layout_that_there_is_not_is_refused(layout: dict[str, int], said: str) -> None:
    with pytest.raises(AuthorError, match=said):
        written(lambda k: k.matrix_descriptor(k.shared(B32, 64), **layout), target=HOPPER)


@pytest.mark.parametrize("offset", [8, 1 << 18])
def test_an_offset_that_a_descriptor_cannot_hold_is_refused(offset: int) -> None:
    with pytest.raises(AuthorError, match="stride must be a multiple of 16 below 262144"):
        Products(8, stride=offset).text()
