"""Products of a row that comes in parts of several ranks: the bits of those of the whole row, whatever words and rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgen.conformance.execution import inputs
from ptxgen.errors import ArgumentError
from ptxgen.formats import ALL
from ptxgen.kernels.collective.gather_planes import GatherPlanes
from ptxgen.kernels.compose import (
    add_residual,
    complete_norm,
    fuse_horizontally,
    fuse_swiglu,
    pipeline_weights,
    receive_parts,
    send_part,
)
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.received_planes import in_parts
from ptxgen.kernels.quantize.int8_planes import BLOCK
from ptxgen.kernels.quantize.quantize import Quantize
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.emulator.changed import run_changed
from tests.ptxgen.kernels import gemvs
from tests.ptxgen.kernels.checking import run

Q4, Q5, Q6, Q8 = (ALL[name] for name in ("Q4_K", "Q5_K", "Q6_K_ALIGNED", "Q8_0_ALIGNED"))
NARROW: dict[str, Any] = {"num_warps": 2, "rows_per_warp": 1}
WHOLE: list[HwDp4aGemv] = [
    HwDp4aGemv(Q4, k=1536, n=7, digits=3, **NARROW),
    HwDp4aGemv(Q4, k=2048, n=7, digits=3, row_groups=2, stages=3, normed=True, **NARROW),
    HwDp4aGemv(Q8, k=4096, n=5, digits=3, normed=True, **NARROW),
    HwDp4aGemv(Q6, k=3584, n=5, digits=2, num_warps=4, rows_per_warp=1),
    HwDp4aGemv(ALL["Q8_0"], k=896, n=3, digits=1, normed=True, **NARROW),
    gemvs.residual(Q4, k=14336, n=5, digits=3, stages=2, **NARROW),
    gemvs.residual(Q4, k=4096, n=101, digits=3, stages=2, num_warps=1, rows_per_warp=1),  # its last blocks come late
    gemvs.leaving_norm(Q4, k=2048, n=32, digits=3, out_digits=3, num_warps=8, rows_per_warp=2, row_groups=2),
    gemvs.swiglu(Q4, k=4096, n=32, digits=3, out_digits=2, num_warps=8, row_groups=4, stages=2, normed=True),
    gemvs.fused(Q5, k=1536, n=9, n2=4, n3=3, digits=3, normed=True, **NARROW),
    gemvs.fused_with_another(Q4, last=Q6, k=1024, n=33, n2=8, n3=9, digits=3, num_warps=4, rows_per_warp=2, normed=True),
]


def received(kernel: HwDp4aGemv, parts: int, given: dict[str, Any], seed: int) -> tuple[HwDp4aGemv, dict[str, Any]]:
    """The kernel that takes the row of these arguments in parts, and its arguments."""
    one = replace(kernel, row_parts=parts)
    return one, in_parts(np.random.default_rng(seed), given, one.source.part_words, parts)


@pytest.mark.parametrize("kernel", WHOLE, ids=lambda kernel: f"{kernel.name} {kernel.k}")
@pytest.mark.parametrize("parts", [2, 4])
def test_a_row_in_parts_gives_the_bits_of_the_whole(kernel: HwDp4aGemv, parts: int) -> None:
    given = inputs(kernel, seed=parts)
    expected = run(kernel, given)
    for seed in range(3):  # ranks and numbers
        found = run(*received(kernel, parts, given, seed))
        assert {name: array.tobytes() for name, array in found.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([2, 3, 4, 7, 8]), st.integers(1, 6), st.booleans(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_so_does_any_row(parts: int, blocks: int, normed: bool, digits: int, seed: int) -> None:
    k = parts * blocks * BLOCK * (8 if parts % 8 else 1)  # whole super-blocks
    kernel = HwDp4aGemv(ALL["Q8_0"], k=k, n=3, digits=digits, normed=normed, **NARROW)
    given = inputs(kernel, seed=seed)
    assert run(*received(kernel, parts, given, seed))["y"].tobytes() == run(kernel, given)["y"].tobytes()


def sent_and_received(change: Callable[[str], str] = str) -> tuple[list[bytes], list[bytes]]:
    """What two ranks make of a row by send_digits, whose text is changed, and a product that waits; and what they should."""
    findings, given, left = run_changed(GatherPlanes(n=512, ranks=2, digits=3, only_sends=True), change)
    assert findings == []
    product = HwDp4aGemv(Q4, k=512, n=3, digits=3, row_parts=2, **NARROW)
    whole = replace(product, row_parts=1)
    weights = inputs(whole)
    row = {"x": given["x"].reshape(1, 512)}
    made = run(Quantize(3, n=512), {**inputs(Quantize(3, n=512)), **row})
    expected = run(whole, {**weights, **made})["y"].tobytes()
    found = []
    for rank in range(2):
        own = {name: left[name][rank] for name in ("digits", "scales", "sums")}
        message = {"inbox": left["inbox"][rank, 0], "number": left["numbers"][rank, :1], "rank": np.uint32(rank)}
        found.append(run(product, {**weights, **own, **message})["y"].tobytes())
    return found, [expected] * 2


def test_what_is_sent_is_what_is_received() -> None:
    found, expected = sent_and_received()
    assert found == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"k": 2048, "n": 64, "num_warps": 8, "row_groups": 4, "stages": 2, "row_parts": 2, "normed": True, "ranks": 2},
        {"k": 512, "n": 96, "num_warps": 4, "row_groups": 7, "ranks": 4},  # blocks that share groups
    ],
    ids=["rings and parts", "shared groups"],
)
def test_gate_and_up_send_the_very_planes_that_they_leave(settings: dict[str, Any]) -> None:
    """What they leave are those of each rank alone."""
    kernel = gemvs.sent_swiglu(Q4, digits=3, out_digits=3, **settings)
    assert kernel.sends is not None
    given, words, ranks = inputs(kernel, seed=3), kernel.sends.words(kernel.blocks[0]), kernel.sends.ranks
    left = run(kernel, given)
    alone = [run(kernel.alone, _of_rank(kernel.alone, given, rank)) for rank in range(ranks)]
    for rank, made in enumerate(alone):
        sent = np.concatenate([made[f"y_{name}"].reshape(-1).view(np.uint32) for name in ("digits", *words.of_blocks)])
        for name in ("y_digits", "y_scales", "y_sums"):
            size = made[name].shape[-1]
            assert left[name][rank][..., rank * size : (rank + 1) * size].tobytes() == made[name].tobytes()
        for other in set(range(ranks)) - {rank}:
            found = left["y_inbox"][other, rank]
            assert (found >> np.uint64(32) == left["y_numbers"][rank, 0]).all()
            assert (found.astype(np.uint32) == sent).all()


def _of_rank(alone: HwDp4aGemv, given: dict[str, Any], rank: int) -> dict[str, Any]:
    """Its arguments among those of all; digits have the size of its part."""
    own = {name: given[name][rank] for name in alone.signature()}
    return own | {name: array for name, array in inputs(alone).items() if name in ("y_digits", "y_scales", "y_sums")}


@pytest.mark.parametrize(
    "change",
    [
        partial(re.sub, r"(?m)^ +st\.relaxed\.sys.*\n", "", count=1),
        partial(re.sub, r"mov\.b64 (%rd\d+), \{(%r\d+), %r\d+\}", r"mov.b64 \1, {\2, 7}", count=1),
    ],
    ids=["a word is not sent", "it has another number"],
)
def test_a_product_does_not_go_on_without_a_word(change: Callable[[str], str]) -> None:
    """The emulator says that it goes nowhere; a GPU ends it after MOST_POLLS looks."""
    with pytest.raises(AssertionError, match=r"endless loop: hw_dp4a_q4k_gemv, block .* makes no progress"):
        sent_and_received(change)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"row_parts": 9}, "row_parts must be an integer, 1..8, got 9"),
        ({"row_parts": 0}, "row_parts must be an integer, 1..8, got 0"),
        ({"row_parts": 2, "k": 288}, "k must be a multiple of 64, 1 or more, got 288"),
        ({"row_parts": 2, "pdl": True}, "takes one row in parts, without pdl, got 1, pdl=True"),
        (
            {"row_parts": 2, "k": 36864},
            "row_parts must be 1 where activations do not fit shared memory at once, as 3 planes of k=36864",
        ),
    ],
    ids=str,
)
def test_parts_that_there_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        HwDp4aGemv(ALL["Q8_0"], **{"k": 512, "n": 4, "digits": 3, **settings})
    with pytest.raises(ArgumentError, match="takes one row in parts, without pdl, got 3, pdl=False"):
        gemvs.batched(Q4, k=512, n=4, m=3, digits=3, row_parts=2)


def test_parts_of_two_ranks_spill_nothing_where_weights_have_a_pipeline() -> None:
    """Of an 8B, whose kernels were measured."""
    o, down = (add_residual(HwDp4aGemv(Q4, k=k, n=2048, digits=3)) for k in (4096, 14336))
    better = add_residual(HwDp4aGemv(Q6, k=14336, n=2048, digits=3))
    plain = HwDp4aGemv(Q4, k=4096, n=7168, digits=3)
    gated, query = fuse_swiglu(plain, plain, 3), replace(plain, n=2048)
    joined = fuse_horizontally(query, [replace(query, n=512)] * 2)
    mixed = fuse_horizontally(query, [replace(query, n=512), HwDp4aGemv(Q6, k=4096, n=512, digits=3)])
    readers = [one and complete_norm(one) for one in (gated, joined, mixed)] + [o, down, better]
    for reader in readers:
        parts = reader and receive_parts(reader, 2)
        pipelined = parts and pipeline_weights(parts)
        assert pipelined is not None
        assert assemble(emit(pipelined, Target(90)).text, Target(90)).spill_stores == 0
        sends = send_part(pipelined, 2)
        if sends is not None:
            assert assemble(emit(sends, Target(90)).text, Target(90)).spill_stores == 0


def test_who_cannot_take_parts_says_so() -> None:
    plain = HwDp4aGemv(Q4, k=4096, n=64, digits=3)
    assert receive_parts(plain, 2) == replace(plain, row_parts=2)
    assert receive_parts(plain, 3) is None
    assert receive_parts(HwDp4aGemv(Q4, k=36864, n=64, digits=3), 2) is None  # in pieces
    assert receive_parts(HwDp4aGemv(ALL["Q3_K"], k=4864, n=64, digits=3), 2) is None  # in a loop
    assert receive_parts(replace(plain, pdl=True), 2) is None
    assert receive_parts(gemvs.batched(Q4, k=4096, n=64, m=3, digits=3), 2) is None
    assert receive_parts(HwDp4aGemv(Q4, k=13312, n=64, digits=3), 2) is None  # no room for the squares beside
    mixed = fuse_horizontally(plain, [replace(plain, n=32), HwDp4aGemv(Q6, k=4096, n=32, digits=3)])
    assert isinstance(mixed, HwDp4aGemv)
    assert receive_parts(mixed, 2) == replace(mixed, row_parts=2)
