"""hw_dp4a for matrices of two formats in one launch: the bits of a launch each, who is joined so, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL, Format
from ptxgen.kernels.compose import fuse_horizontally
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.shared_planes import Layout
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.running import assert_matches_reference, emulate, inputs

Q4_K, Q5_K, ALIGNED, Q8_0 = (ALL[name] for name in ("Q4_K", "Q5_K", "Q6_K_ALIGNED", "Q8_0"))


def made(format: Format, n: int, *, k: int = 1536, **settings: Any) -> HwDp4aGemv:
    return HwDp4aGemv(format, k=k, n=n, **{"digits": 3, "num_warps": 2, "rows_per_warp": 2, **settings})


@pytest.mark.parametrize(
    ("formats", "sizes", "settings"),
    [
        ((Q4_K, ALIGNED), (7, 2, 5), {}),  # no block is full but the first of the first
        ((Q4_K, ALIGNED), (8, 4, 4), {"k": 1024}),  # all are; rows of Q4_K side by side
        ((Q5_K, ALIGNED), (4, 9, 3), {"rows_per_warp": 1, "digits": 1}),
        ((ALIGNED, Q4_K), (3, 3, 3), {}),  # the other way round
        ((Q4_K, Q8_0), (5, 6, 7), {"digits": 2}),
    ],
    ids=str,
)
def test_matrices_of_two_formats_have_the_bits_that_they_have_alone(
    formats: tuple[Format, Format], sizes: tuple[int, int, int], settings: dict[str, int]
) -> None:
    first, second, last = (made(format, n, **settings) for format, n in zip((formats[0], *formats), sizes, strict=True))
    together = fuse_horizontally(first, [second, last])
    assert together is not None
    assert together.name.startswith("mixed_")
    assert together.launch().grid[0] == sum(one.launch().grid[0] for one in (first, second, last))
    arguments = inputs(together)
    results, findings = emulate(together, arguments, target=Target(90))
    assert not findings
    assert_matches_reference(together, arguments, results)
    for number, one in (("", first), ("2", second), ("3", last)):
        own = {name: arguments[name] for name in ("digits", "scales", "sums")} | {"w": arguments[f"w{number}"]}
        alone, _ = emulate(one, inputs(one) | own, target=Target(90), sanitize=False)
        assert alone["y"].tobytes() == results[f"y{number}"].tobytes()


def test_blocks_of_either_format_stage_in_the_same_memory() -> None:
    together = fuse_horizontally(made(Q4_K, 4096, k=8192), [made(Q4_K, 1024, k=8192), made(ALIGNED, 1024, k=8192)])
    assert together is not None
    assert together.launch().dynamic_shared == max(Layout(format, 8192, 1, 3).bytes for format in (Q4_K, ALIGNED))
    assert assemble(emit(together, Target(90)).text, Target(90)).spill_stores == 0


def kind(kernel: KernelType | None) -> str:
    return "" if kernel is None else kernel.name.partition("_")[0]


def test_who_is_fused_so() -> None:
    q, k, v = made(Q4_K, 16), made(Q4_K, 8), made(ALIGNED, 8, rows_per_warp=1)
    together = fuse_horizontally(q, [k, v])
    assert together == gemvs.fused_with_another(**q.parameters(), format=Q4_K, n2=8, n3=8, last=ALIGNED, last_rows_per_warp=1)
    assert kind(fuse_horizontally(q, [k])) == "joined"
    assert kind(fuse_horizontally(q, [k, made(Q4_K, 8)])) == "joined"
    for others in ([v], [v, k], [k, made(ALIGNED, 8, digits=1)], [made(ALIGNED, 8), made(ALIGNED, 8)], [k, v, v]):
        assert fuse_horizontally(q, others) is None
    in_rounds = {"num_warps": 8, "rows_per_warp": 1, "k": 4096}  # three: 768 blocks, of which 264 are there at once
    q, k, v = (made(format, n, **in_rounds) for format, n in ((Q4_K, 4096), (Q4_K, 1024), (ALIGNED, 1024)))
    assert fuse_horizontally(q, [k, v]) is None
    assert kind(fuse_horizontally(replace(q, rows_per_warp=2, row_groups=2), [k, v])) == "mixed"
    beyond = {"k": 28672}  # activations that do not fit shared memory at once
    assert fuse_horizontally(made(Q4_K, 16, **beyond), [made(Q4_K, 8, **beyond), made(ALIGNED, 8, **beyond)]) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n3": 0}, "n3 must be an integer, 1 or more, got 0"),
        ({"last_rows_per_warp": 9}, "last_rows_per_warp must be an integer, 1..8, got 9"),
        ({"k": 28672}, "3 planes of k=28672 do not fit shared memory at once"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find("mixed_hw_dp4a_q4k_q6k_gemv").make(**{"k": 1536, "n": 4, "n2": 4, "n3": 4, "digits": 3, **settings})


def test_one_format_alone_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is for two formats, got Q4_K for both"):
        gemvs.fused_with_another(Q4_K, k=1536, n=4, n2=4, n3=4, last=Q4_K)


def test_matrices_of_fewer_rows_than_row_groups_take_are_fused_in_one_row_group() -> None:
    q = made(Q4_K, 64, row_groups=8)
    few = made(Q4_K, 8), made(Q4_K, 8), made(ALIGNED, 8)
    for others, row_groups in (((few[0],), 1), (few[:2], 1), ((few[0], few[2]), 1), ((made(Q4_K, 16), made(ALIGNED, 16)), 8)):
        together = fuse_horizontally(q, others)
        assert together is not None
        assert together.parameters()["row_groups"] == row_groups
    short = made(Q4_K, 64, k=512)
    together = fuse_horizontally(replace(short, row_groups=4, rows_per_warp=1), [short, made(ALIGNED, 64, k=512)])
    assert together is not None, "two rows of v for each of the warp's lane groups are more than lanes in four row groups"
