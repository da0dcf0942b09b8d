"""hw_dp4a for several matrices in one launch: the bits of a launch each, as many blocks as these have together, and which
kernels can be joined."""

from __future__ import annotations

from typing import Any

import pytest

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import find as find_format
from ptxgen.kernels.compose import add_residual, for_rows, fuse_horizontally
from ptxgen.kernels.gemv.hw_dp4a import FUSED, HwDp4aGemv
from ptxgen.kernels.registry import find
from ptxgen.target import REGISTERS, Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

Q4_K = find_format("Q4_K")


def made(n: int, *, k: int = 512, digits: int = 3, **settings: Any) -> HwDp4aGemv:
    return HwDp4aGemv(Q4_K, k=k, n=n, digits=digits, **{"num_warps": 2, "rows_per_warp": 2, **settings})


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((7, 2, 5), {}),  # no block is full but the first of the first
        ((8, 4, 4), {}),  # all are
        ((4, 9), {"rows_per_warp": 1}),
        ((1, 1, 1), {"digits": 1, "num_warps": 1}),
        ((3, 4), {"k": 18944, "digits": 2}),  # a loop over chunks
    ],
)
def test_matrices_of_one_launch_have_the_bits_that_they_have_alone(sizes: tuple[int, ...], settings: dict[str, int]) -> None:
    first, *others = (made(n, **settings) for n in sizes)
    together = fuse_horizontally(first, others)
    assert together is not None
    assert together.name == "joined_hw_dp4a_q4k_gemv"
    assert together.launch().grid[0] == sum(one.launch().grid[0] for one in (first, *others))
    arguments = inputs(together)
    results, findings = emulate(together, arguments, target=Target(90), sanitize=True)
    assert not findings
    assert_matches_reference(together, arguments, results)
    for number, one in zip(("", "2", "3"), (first, *others), strict=False):
        own = {name: arguments[name] for name in ("digits", "scales", "sums")} | {"w": arguments[f"w{number}"]}
        alone, _ = emulate(one, inputs(one) | own, target=Target(90), sanitize=False)
        assert alone["y"].tobytes() == results[f"y{number}"].tobytes()


@pytest.mark.parametrize("format", FUSED, ids=lambda format: format.id)
def test_no_register_is_spilled_and_a_multiprocessor_holds_as_many_blocks_as_of_matrices_alone(format: Any) -> None:
    narrow: dict[str, Any] = {"num_warps": 4, "rows_per_warp": 1, "resident_threads": 256}
    cases: tuple[tuple[int, tuple[int, ...], dict[str, Any]], ...] = (
        (4096, (4096, 1024, 1024), {"num_warps": 4}),
        (4096, (14336, 14336), {}),
        (3584, (18944, 18944), narrow),
    )
    for k, sizes, settings in cases:
        first, *others = (HwDp4aGemv(format, k=k, n=n, digits=3, **settings) for n in sizes)
        together = fuse_horizontally(first, others)
        assert together is not None
        alone, joined = (assemble(emit(one, Target(90)).text, Target(90)) for one in (first, together))
        assert joined.spill_stores == 0
        threads = together.launch().threads
        of_one, of_all = (REGISTERS // (-(-taken.registers // 8) * 8 * threads) for taken in (alone, joined))
        assert of_all >= min(of_one, first.resident_threads // threads), "registers are given to a thread by eights"


def test_only_kernels_for_the_same_activations_are_fused() -> None:
    one = made(9)
    assert fuse_horizontally(one, [made(5, num_warps=8, rows_per_warp=1)]) == gemvs.fused(**one.parameters(), format=Q4_K, n2=5)
    others: tuple[KernelType, ...] = (made(9, digits=2), made(9, k=256), HwDp4aGemv(find_format("Q5_K"), k=512, n=9, digits=3))
    onto = add_residual(one)
    batched = gemvs.batched(Q4_K, k=512, n=9, m=2, digits=3)
    assert onto is not None
    for other in (*others, onto, batched, find("mwv_q4k_gemv").make(k=512, n=9)):
        assert fuse_horizontally(one, [other]) is None
        assert fuse_horizontally(other, [one]) is None
    assert fuse_horizontally(one, []) is None
    assert fuse_horizontally(one, [made(9)] * 3) is None
    together = fuse_horizontally(one, [made(9)])
    assert together is not None
    assert fuse_horizontally(together, [one]) is None
    assert fuse_horizontally(one, [together]) is None
    assert add_residual(together) is None
    assert for_rows(together, 4) == ()


def test_how_many_rows_a_second_matrix_has_must_be_said_and_a_third_has_none_less_than_none() -> None:
    with pytest.raises(ArgumentError, match="n2"):
        find("joined_hw_dp4a_q4k_gemv").make(k=512, n=4)
    with pytest.raises(ArgumentError, match="n3 must be an integer, 0 or more, got -1"):
        gemvs.fused(Q4_K, k=512, n=4, n2=4, n3=-1)
