"""The verifier's rules of asynchronous products: a right kernel, and what it says of each way to break it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.errors import VerifyError
from ptxgen.target import HOPPER
from ptxgen.types import B32, F32
from tests.ptxgen.dsl.writing import verified


class Parts:
    """What a kernel of products is made of."""

    def __init__(self, k: KernelBuilder) -> None:
        self.k = k
        self.totals = [k.variable(0.0, F32) for _ in range(4)]
        self.wide = [*self.totals, *(k.variable(0.0, F32) for _ in range(4))]
        self.a = [k.variable(0, B32) for _ in range(4)]
        self.b = k.matrix_descriptor(k.shared(B32, 128), leading=128, stride=256)

    def product(self, *, wait: int | None = 0, commit: bool = True) -> None:
        self.k.wgmma(self.totals, self.a, self.b)
        if commit:
            self.k.wgmma_commit_group()
        if wait is not None:
            self.k.wgmma_wait_group(wait)

    def keep(self, value: Value) -> None:
        self.k.store(self.k.arg.y[0], value)


Body = Callable[[KernelBuilder, Parts], None]


def check(body: Body, block: int = 128) -> None:
    verified(lambda k: body(k, Parts(k)), block=block, target=HOPPER)


def refused(body: Body, said: str, block: int = 128) -> None:
    with pytest.raises(VerifyError, match=said):
        check(body, block)


def test_a_loop_of_products_that_are_read_after_the_wait_is_right() -> None:
    def right(k: KernelBuilder, p: Parts) -> None:
        for _ in k.strided(0, 3):
            k.wgmma_fence()
            p.product(wait=None)
            k.wgmma_wait_group(0)
            p.totals[0] @= p.totals[0] * 2.0
            p.a[0] @= p.a[0] ^ p.a[1]
        p.keep(p.totals[0])

    check(right)


def test_accumulators_pass_from_product_to_product_without_a_wait() -> None:
    def right(k: KernelBuilder, p: Parts) -> None:
        k.wgmma_fence()
        for _ in k.strided(0, 3):
            p.product(wait=1)
        k.wgmma_wait_group(0)
        p.keep(p.totals[3])

    check(right)


def test_the_first_product_needs_a_fence() -> None:
    refused(lambda k, p: p.product(), r"uses %b0, and no wgmma.fence stands before it")


@pytest.mark.parametrize("which", ["totals", "a"])
def test_a_register_that_was_written_needs_a_fence(which: str) -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        k.wgmma_fence()
        p.product()
        one = p.totals[1] if which == "totals" else p.a[1]
        one @= one + 1.0 if which == "totals" else one ^ p.a[0]
        p.product()

    refused(wrong, r"no wgmma.fence stands before it, after\n  tests/ptxgen/verify/test_products.py")


def test_a_fence_on_one_path_only_is_none() -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        with k.when(k.ctaid.x == 0):
            k.wgmma_fence()
        p.product()

    refused(wrong, r"no wgmma.fence stands before it")


def test_a_read_without_a_wait_is_refused() -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        k.wgmma_fence()
        p.product(wait=None)
        p.keep(p.totals[2])

    refused(wrong, r"st.global.f32 reads %f2, which a product has that may not have been waited for")


def test_a_wait_for_what_was_not_committed_is_none() -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        k.wgmma_fence()
        p.product(commit=False)
        p.keep(p.totals[0])

    refused(wrong, r"reads %f0, which a product has")


def test_a_wait_that_leaves_the_group_pending_is_none() -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        k.wgmma_fence()
        p.product(wait=None)
        k.wgmma_commit_group()
        k.wgmma_wait_group(2)
        p.keep(p.totals[0])

    refused(wrong, r"reads %f0, which a product has")


def test_a_factor_that_is_written_before_the_wait_is_refused() -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        for _ in k.strided(0, 3):
            k.wgmma_fence()
            p.a[3] @= p.a[3] ^ p.a[2]
            k.wgmma_fence()
            p.product(wait=None)
        k.wgmma_wait_group(0)

    refused(wrong, r"(reads|writes) %b[23], which a product has")


def test_accumulators_of_another_shape_need_a_wait() -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        k.wgmma_fence()
        p.product(wait=None)
        k.wgmma(p.wide, p.a, p.b)

    refused(wrong, r"uses %f0, which another product has for something else")


def test_a_block_that_is_no_whole_warpgroup_is_refused() -> None:
    def wrong(k: KernelBuilder, p: Parts) -> None:
        k.wgmma_fence()
        p.product()

    refused(wrong, r"needs blocks of whole warpgroups, this one has 192 threads", block=192)


def test_warps_of_a_warpgroup_may_not_part() -> None:
    def one(condition: Callable[[KernelBuilder], Value]) -> Body:
        def body(k: KernelBuilder, p: Parts) -> None:
            with k.when(condition(k)):
                k.wgmma_fence()
                p.product()

        return body

    check(one(lambda k: k.warpgroup == 1), block=256)
    check(one(lambda k: k.tid.x // 128 == 1), block=256)
    refused(one(lambda k: k.warp == 1), r"needs all threads of the warpgroup, but some may not", block=256)
    refused(one(lambda k: k.lane == 1), r"needs all threads of the warpgroup, but some may not", block=256)


@pytest.mark.parametrize("place", ["b", "scale_d"])
def test_what_a_warpgroup_shares_must_be_the_same_in_its_warps(place: str) -> None:
    def body(number: Callable[[KernelBuilder], Value]) -> Body:
        def written(k: KernelBuilder, p: Parts) -> None:
            k.wgmma_fence()
            own = number(k)
            b = p.b + k.u64(own) if place == "b" else p.b
            k.wgmma(p.totals, p.a, b, accumulate=own == 0 if place == "scale_d" else True)

        return written

    check(body(lambda k: k.warpgroup), block=256)
    refused(body(lambda k: k.warp), f"needs the same {place} in all threads of the warpgroup", block=256)
