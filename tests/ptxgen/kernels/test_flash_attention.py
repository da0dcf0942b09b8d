"""Attention of many queries by tensor cores: tiles of several sequences, what is idle, what a row's bits depend on, and
precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen import emulator
from ptxgen.dsl.arguments import Signature, read, write
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.flash_attention import FlashAttention, tiles_of
from ptxgen.kernels.attention.query_tile import exp2
from ptxgen.target import Target
from ptxgen.toolchain.module import module_text
from ptxgen.types import F32
from tests.ptxgen.kernels.checking import check, run
from tests.ptxgen.kernels.running import assert_matches_reference, emulate

SHAPE: dict[str, Any] = {"heads": 4, "kv_heads": 2, "head_dim": 32, "page_len": 32, "pages": 6, "slots": 2, "max_len": 96}
KERNEL = FlashAttention(rows=40, tiles=5, kv_type="f16", **SHAPE)
NOWHERE = 2**32 - 1
UNTOUCHED = 7.5


def step(kernel: FlashAttention, chunks: list[tuple[int, int, int]], tiles: list[tuple[int, int]]) -> dict[str, Any]:
    """Arguments of rows in chunks: slot, first position, number of rows. The pages are in no order, those behind the last row
    of a slot are NOWHERE, and what no row sees is NaN. The query of a slot's position does not depend on the chunks."""
    rng = np.random.default_rng(3)
    slot, position = np.zeros(kernel.rows, np.uint32), np.full(kernel.rows, NOWHERE, np.uint32)
    at = 0
    for number, first, count in chunks:
        slot[at : at + count], position[at : at + count] = number, np.arange(first, first + count)
        at += count
    order = rng.permutation(kernel.pages).reshape(kernel.slots, -1)
    tables = np.full((kernel.slots, kernel.max_len // kernel.page_len), NOWHERE, np.uint32)
    arguments: dict[str, Any] = {"tables": tables, "slot": slot, "position": position}
    for number in range(kernel.slots):
        ends = [int(p) + 1 for s, p in zip(slot, position, strict=True) if s == number and p < kernel.max_len]
        used = -(-max(ends, default=0) // kernel.page_len)
        tables[number, :used] = order[number, :used]
    unseen = np.ones((kernel.pages, kernel.page_len), bool)
    for row in range(kernel.rows):
        unseen[tuple(kernel.seen(arguments, row).T)] = False
    for tensor in ("k", "v"):
        x = rng.normal(size=(kernel.pages, kernel.kv_heads, kernel.page_len, kernel.head_dim)).astype(np.float32)
        x[np.broadcast_to(unseen[:, None], x.shape[:3])] = np.nan
        for part, array in zip(kernel.kv.parts, kernel.kv.encode(x), strict=True):
            arguments[f"{tensor}_{part.suffix}"] = array
    queries = rng.normal(0.0, 2.0, (kernel.slots, kernel.max_len, kernel.heads, kernel.head_dim)).astype(np.float32)
    given = np.zeros((kernel.tiles, 2), np.uint32)
    given[: len(tiles)] = tiles
    return {
        "out": np.full((kernel.rows, kernel.heads, kernel.head_dim), UNTOUCHED, np.float32),
        "q": queries[np.minimum(slot, kernel.slots - 1), np.minimum(position, kernel.max_len - 1)],
        "tiles": given,
        **arguments,
    }


def untouched(out: NDArray[Any]) -> list[int]:
    """The rows that nothing was written to."""
    return [row for row, values in enumerate(out) if (values == UNTOUCHED).all()]


def test_tiles_of_two_sequences_with_tails_and_positions_past_the_start() -> None:
    chunks = [(1, 40, 25), (0, 0, 8), (1, 5, 1)]
    out = check(KERNEL, step(KERNEL, chunks, [(0, 17), (33, 1), (17, 8), (0, 0), (25, 7)]))["out"]
    assert untouched(out) == [32, *range(34, 40)]


def test_rows_are_dealt_out_to_tiles_the_longest_first_and_the_shortest_beside_them() -> None:
    chunks = [(1, 40, 25), (0, 0, 8), (1, 5, 1)]
    arguments = step(KERNEL, chunks, [(0, 0)])
    tiles = tiles_of(arguments["slot"][:34], arguments["position"][:34], 16)
    assert tiles.tolist() == [[16, 9], [0, 16], [25, 8], [33, 1]]
    arguments["tiles"][: len(tiles)] = tiles
    assert untouched(check(KERNEL, arguments)["out"]) == list(range(34, 40))
    assert tiles_of(np.array([0, 1]), np.array([3, 4]), 16).tolist() == [[1, 1], [0, 1]]
    assert tiles_of(np.array([]), np.array([]), 16).shape == (0, 2)


def test_a_row_has_the_same_bits_in_every_tile_and_beside_every_neighbour() -> None:
    chunk = [(1, 40, 25)]
    whole = run(KERNEL, step(KERNEL, chunk, [(0, 25)]), seed=1)["out"][:25]
    parts = run(KERNEL, step(KERNEL, chunk, [(18, 7), (0, 1), (1, 17)]), seed=2)["out"][:25]
    assert whole.tobytes() == parts.tobytes()
    alone = step(KERNEL, [(0, 3, 9), (1, 52, 1)], [(9, 1)])
    known = step(KERNEL, chunk, [(0, 25)])
    alone |= {name: known[name] for name in ("tables", "k_cache", "v_cache")}
    assert run(KERNEL, alone)["out"][9].tobytes() == whole[12].tobytes()


def test_blocks_of_four_warps_give_the_bits_of_those_of_eight() -> None:
    eight = FlashAttention(rows=40, tiles=5, kv_type="f32", **{**SHAPE, "head_dim": 64})
    four = replace(eight, most_warps=4)
    assert (eight.warps, four.warps, eight.tile_rows) == (8, 4, 2 * four.tile_rows)
    chunk = [(1, 40, 25)]
    whole, half = step(eight, chunk, [(0, 25)]), step(four, chunk, [(0, 16), (16, 9)])
    assert check(four, half)["out"].tobytes() == run(eight, whole, seed=1)["out"].tobytes()


def test_a_tile_ends_where_its_rows_become_idle() -> None:
    """At max_len, at a page that must not be followed, in a slot that does not exist; a tile of too many rows is none."""
    past = step(KERNEL, [(0, 90, 10)], [(0, 10)])
    assert untouched(check(KERNEL, past)["out"]) == list(range(6, 40))
    missing = step(KERNEL, [(1, 60, 8)], [(0, 8)])
    missing["tables"][1, 2] = KERNEL.pages
    assert untouched(check(KERNEL, missing)["out"]) == list(range(4, 40))
    missing["tables"][1, 0] = NOWHERE
    assert len(untouched(check(KERNEL, missing)["out"])) == 40
    for tile in ((0, KERNEL.tile_rows + 1), (39, 2), (40, 1), (NOWHERE, 1), (0, NOWHERE)):
        assert len(untouched(check(KERNEL, step(KERNEL, [(0, 0, 40)], [tile]))["out"])) == 40
    elsewhere = step(KERNEL, [(0, 0, 4)], [(0, 4)])
    elsewhere["slot"][:] = 2
    assert len(untouched(check(KERNEL, elsewhere)["out"])) == 40


def test_a_nan_shows_in_its_own_head_alone() -> None:
    arguments = step(KERNEL, [(0, 30, 5)], [(0, 5)])
    arguments["q"][2, 1, 3] = np.nan
    wrong = np.isnan(run(KERNEL, arguments)["out"][:5])
    assert wrong[2, 1].all()
    assert wrong.sum() == KERNEL.head_dim


@pytest.mark.parametrize(
    ("kv_type", "head_dim", "kv_heads", "parts"), [("f16", 128, 1, 2), ("f32", 96, 2, 2), ("q8_0", 64, 1, 1)]
)
def test_two_parts_are_as_good_as_f32_and_one_is_f16(kv_type: str, head_dim: int, kv_heads: int, parts: int) -> None:
    shape = {**SHAPE, "heads": 2, "kv_heads": kv_heads, "head_dim": head_dim}
    kernel = FlashAttention(rows=8, tiles=1, parts=parts, kv_type=kv_type, **shape)
    arguments = step(kernel, [(1, 60, 8)], [(0, 8)])
    results, _ = emulate(kernel, arguments, sanitize=False)
    assert_matches_reference(kernel, arguments, results)
    exact = kernel.reference(**arguments)["out"]
    low, high = {2: (0.0, 1e-6), 1: (5e-5, 1e-3)}[parts]
    assert low < float(np.sqrt(np.mean((results["out"] - exact) ** 2) / np.mean(exact**2))) < high


def test_the_power_of_two_is_within_1_5_units() -> None:
    threads, blocks = 256, 512
    x = np.random.default_rng(4).uniform(-126.0, 0.0, threads * blocks).astype(np.float32)
    x[:6] = 0.0, -126.0, -127.0, -1e30, -np.inf, np.nan
    signature: Signature = {"x": read(F32, x.size), "y": write(F32, x.size)}
    k = KernelBuilder("probe", signature, LaunchConfig(blocks, threads), Target(80))
    i = k.ctaid.x * threads + k.tid.x
    k.store(k.arg.y[i], exp2(k, k.load(k.arg.x[i])))
    y = np.zeros_like(x)
    emulator.run(module_text([k.finish()], Target(80)), "probe", blocks, threads, [x, y], sanitize=False)
    right = np.exp2(x[6:].astype(np.float64))
    assert np.max(np.abs(y[6:] - right) / right) < 1.5 * 2.0**-24
    assert y[:5].tolist() == [1.0, 2.0**-126, 0.0, 0.0, 0.0]
    assert np.isnan(y[5])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"head_dim": 36}, "head_dim must be 32, 512 or a multiple of 8, 40..256, got 36"),
        (
            {"head_dim": 512, "kv_type": "f32"},
            "keys, values and scores of a tile would take 148480 bytes of shared memory, and 101376 are allowed; choose a "
            "smaller one of head_dim=512",
        ),
        ({"head_dim": 256, "heads": 130}, "at most 64 heads may share a key/value head, got 65"),
        ({"heads": 130}, "at most 64 heads may share a key/value head, got 65"),
        ({"parts": 3}, r"parts must be one of \(1, 2\), got 3"),
        ({"most_warps": 2}, r"most_warps must be one of \(4, 8\), got 2"),
        ({"tiles": 0}, "tiles must be an integer, 1 or more, got 0"),
        ({"kv_type": "q4_0"}, "kv_type must be one of f32, f16, q8_0, got 'q4_0'"),
    ],
)
def test_what_the_kernel_cannot_do_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=f"^flash_attention: {said}$"):
        FlashAttention(**{"rows": 8, "tiles": 1, "kv_type": "f16", **SHAPE, **wrong})
