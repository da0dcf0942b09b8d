"""Products of a warpgroup on the emulator: against float64, and what the sanitiser finds where a right kernel is broken."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ptxgen.emulator import Finding, run, uninitialised
from ptxgen.errors import ParseError
from ptxgen.target import WARPGROUP_SIZE
from tests.ptxgen.isa.products import (
    ENTRY,
    Products,
    cores_of,
    fragments_of,
    matrix_of,
    pipeline_operands,
    pipeline_reference,
    pipelined,
)

FENCE = "fence.proxy.async.shared::cta;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
BARRIER = "bar.sync 0;"

RIGHT = Products(16)


def launched(products: Products, *, sanitize: bool = True, seed: int | None = None, blocks: int = 1) -> None:
    """Run them, and compare y with float64."""
    a, b = products.operands(blocks)
    y = np.full((blocks, WARPGROUP_SIZE, products.n // 2), np.nan, np.float32)
    arguments = [uninitialised(y), fragments_of(a), cores_of(b)]
    found = run(products.text(blocks), ENTRY, blocks, WARPGROUP_SIZE, arguments, sanitize=sanitize, seed=seed)
    assert not found, found[0]
    expected, allowed = products.reference(a, b)
    assert (np.abs(matrix_of(y) - expected) <= allowed).all()


@pytest.mark.parametrize(
    "products",
    [
        Products(8),
        Products(24, "bf16", steps=2),
        Products(48, steps=3, leading=2048, stride=144, skipped=48),  # k halves far apart, 8 columns close to each other
        Products(64, "bf16", leading=1024, stride=128),
        Products(256),
        Products(24, "bf16", steps=2, stride=256, swizzle=32),
        Products(16, stride=1024, swizzle=64, skipped=1024),
        Products(16, steps=2, stride=1024, swizzle=128),
    ],
    ids=str,
)
@pytest.mark.parametrize("sanitize", [False, True])
def test_products_are_those_of_float64(products: Products, sanitize: bool) -> None:
    launched(products, sanitize=sanitize)


def test_a_right_kernel_is_clean_in_every_order_of_warps() -> None:
    for seed in range(3):
        launched(RIGHT, seed=seed, blocks=2)


def test_a_factor_may_be_negated() -> None:
    a, b = RIGHT.operands(1)
    results = []
    for scales in ("1, 1, 0;", "-1, 1, 0;", "1, -1, 0;", "-1, -1, 0;"):
        y = np.zeros((1, WARPGROUP_SIZE, RIGHT.n // 2), np.float32)
        run(RIGHT.text().replace("1, 1, 0;", scales), ENTRY, 1, WARPGROUP_SIZE, [y, fragments_of(a), cores_of(b)])
        results.append(y)
    for y, sign in zip(results, (1, -1, -1, 1), strict=True):
        np.testing.assert_array_equal(y, sign * results[0])


def test_a_transposed_b_is_refused() -> None:
    with pytest.raises(ParseError, match="scales are 1 or -1 and trans_b is 0, got 1, 1 and 1"):
        broken(RIGHT.text().replace("1, 1, 0;", "1, 1, 1;"))


def broken(text: str, *, block: int = WARPGROUP_SIZE, seed: int | None = None) -> list[Finding]:
    a, b = RIGHT.operands(1)
    y = np.zeros((1, WARPGROUP_SIZE, RIGHT.n // 2), np.float32)
    return run(text, ENTRY, 1, block, [y, fragments_of(a), cores_of(b)], seed=seed)


def kinds(found: list[Finding]) -> set[str]:
    return {one.kind for one in found}


def without(*lines: str) -> str:
    text = RIGHT.text()
    for line in lines:
        assert line in text
        text = text.replace(line, "")
    return text


def test_a_product_of_what_was_written_without_a_proxy_fence_is_found() -> None:
    (found,) = broken(without(FENCE))
    assert found.kind == "unfenced"
    assert "the product reads shared[0x0..] that thread (0,0,0) wrote, with no fence.proxy.async since" in str(found)
    assert "wgmma.mma_async" in found.ptx_text


def test_a_proxy_fence_before_the_write_is_none() -> None:
    text = without(FENCE)
    start = text.index("mov.u32")
    assert kinds(broken(text[:start] + FENCE + text[start:])) == {"unfenced"}


def test_a_proxy_fence_of_the_reader_after_the_barrier_does() -> None:
    text = without(FENCE)
    assert not broken(text.replace(BARRIER, BARRIER + FENCE))


def test_a_product_of_what_other_threads_write_needs_a_barrier() -> None:
    assert "race" in kinds(broken(without(BARRIER)))


STORE = "mov.u32 %r_0, shared0;\nmov.u32 %r_1, %tid.x;\nmad.lo.u32 %r_0, %r_1, 4, %r_0;\nst.shared.u32 [%r_0], %r_1;"


def with_store(after: str) -> str:
    """The kernel with another store to b, behind a line of it."""
    text = RIGHT.text().replace("{\n", "{\n.reg .u32 %r_<2>;\n", 1)
    line, *more = after.split("\n")
    assert line in text
    return text.replace(line, "\n".join([line, *more, STORE]))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("after", [COMMIT, f"{COMMIT}\n{BARRIER}"])  # a barrier orders threads, not what runs beside them
def test_a_write_to_what_a_product_reads_before_the_wait_is_found(after: str, seed: int) -> None:
    assert "race" in kinds(broken(with_store(after), seed=seed))


def test_a_write_after_the_wait_and_a_barrier_is_right() -> None:
    assert not broken(with_store(f"{WAIT}\n{BARRIER}"))


def test_b_outside_of_the_block_s_memory_is_found() -> None:
    text, replaced = re.subn(r"bfe.u32 (%r\d+), .*;", r"mov.u32 \1, 24;", RIGHT.text())  # 384 bytes
    assert replaced
    (found,) = broken(text)
    assert (found.kind, found.address) == ("out of bounds", 512)


def test_unwritten_b_is_found() -> None:
    text = RIGHT.text()
    assert "uninitialised" in kinds(broken(text.replace("st.shared.b32", "// ")))


def test_half_a_warpgroup_is_found() -> None:
    assert "warpgroup" in kinds(broken(RIGHT.text(), block=64))


def test_a_warp_that_leaves_its_warpgroup_is_found() -> None:
    text = RIGHT.text().replace("{\n", "{\n.reg .pred %q_;\n", 1)
    skipped = text.replace("wgmma.fence", "setp.ge.u32 %q_, %r0, 96;\n@%q_ exit;\nwgmma.fence", 1)
    found = broken(skipped)
    assert kinds(found) == {"warpgroup"}
    assert found[0].thread == (96, 0, 0)


def run_pipelined(text: str, seed: int) -> list[Finding]:
    """What is found; y is right where nothing is."""
    a, b = pipeline_operands()
    y = np.zeros((WARPGROUP_SIZE, 4), np.float32)
    found = run(text, ENTRY, 1, WARPGROUP_SIZE, [uninitialised(y), fragments_of(a), cores_of(b)], seed=seed)
    expected, allowed = pipeline_reference(a, b)
    assert found or (np.abs(matrix_of(y) - expected) <= allowed).all()
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_copies_into_one_buffer_while_a_product_reads_the_other_are_right(seed: int) -> None:
    assert not run_pipelined(pipelined(), seed)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("fenced before the copy is there", {"unfenced"}),
        ("fenced nowhere", {"unfenced"}),
        ("waits for too few", {"race"}),
        ("no barrier after the wait", {"race", "early read"}),
    ],
)
def test_a_pipeline_that_is_wrong_in_one_place_is_found(fault: str, found: set[str], seed: int) -> None:
    kinds_found = kinds(run_pipelined(pipelined(fault), seed))
    assert kinds_found
    assert kinds_found <= found
