"""Attention over a paged cache: what a row's result depends on and what it does not, and rows that are idle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxgen.errors import ArgumentError
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.int8_planes import Int8PlanesOutput
from ptxgen.kernels.attention.output import Output
from ptxgen.kernels.attention.paged_attention import PagedAttention
from ptxgen.kernels.attention.paged_attention_reduce import PagedAttentionReduce
from ptxgen.kernels.attention.paged_last_block import PagedAttentionLastBlock
from ptxgen.kernels.attention.paged_rope_scatter import PagedRopeScatter
from ptxgen.kernels.attention.split import SequenceSplit
from ptxgen.kernels.attention.suited import suited
from ptxgen.kernels.quantize.int8_planes import quantize, unwritten
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import check, run
from tests.ptxgen.kernels.running import assert_matches_reference

Arguments = dict[str, Any]

SHAPE = {"heads": 2, "kv_heads": 1, "head_dim": 32, "page_len": 32, "max_len": 160}
LENGTHS = (1, 31, 32, 33, 64, 65, 128, 129, 160)


def made(rows: int, *, kv_type: str = "f32", splits: int = 3, least: int = 32, **shape: int) -> PagedAttention:
    sizes: dict[str, Any] = {**SHAPE, "pages": 5 * rows + 2, "slots": rows, **shape}
    return PagedAttention(rows=rows, kv_type=kv_type, splits=splits, least=least, **sizes)


def at(kernel: PagedAttention, lengths: tuple[int, ...], seed: int = 1) -> Arguments:
    """Random arguments of rows of these lengths, each in a slot of its own with pages in no order; what no row sees is NaN."""
    rng = np.random.default_rng(seed)
    arguments = kernel.inputs(rng)
    tables = np.full_like(arguments["tables"], 2**32 - 1)
    free = rng.permutation(kernel.pages)
    for row, length in enumerate(lengths):
        used, free = np.split(free, [-(-length // kernel.page_len)])
        tables[row, : len(used)] = used
    arguments |= {"tables": tables, "slot": np.arange(len(lengths), dtype=np.uint32)}
    arguments["position"] = np.array(lengths, np.uint32) - np.uint32(1)
    for tensor in ("k", "v"):
        rows = rng.normal(size=(len(lengths), kernel.max_len, kernel.kv_heads, kernel.head_dim)).astype(np.float32)
        x = np.full((kernel.pages, kernel.kv_heads, kernel.page_len, kernel.head_dim), np.nan, np.float32)
        for row, length in enumerate(lengths):
            where = kernel.standing(arguments, row)
            x[where[:, 0], :, where[:, 1]] = rows[row, :length]
        for part, array in zip(kernel.kv.parts, kernel.kv.encode(x), strict=True):
            arguments[f"{tensor}_{part.suffix}"] = array
    return arguments


def attended(kernel: PagedAttention, arguments: Arguments, *, digits: int = 0) -> dict[str, NDArray[Any]]:
    """What the two kernels make of the arguments. Between them, what the first left unwritten is NaN."""
    shape = {name: getattr(kernel, name) for name in ("rows", "heads", "head_dim", "max_len", "splits", "least")}
    reduce = PagedAttentionReduce(**shape, output=Int8PlanesOutput(digits) if digits else Output())
    out = {"out": np.full((kernel.rows, kernel.heads, kernel.head_dim), np.nan, np.float32)}
    if digits:
        out |= unwritten(kernel.rows, digits, kernel.heads * kernel.head_dim)
    return run(reduce, {**out, **run(kernel, arguments), "position": arguments["position"]})


def alone(kernel: PagedAttention, arguments: Arguments, row: int) -> tuple[PagedAttention, Arguments]:
    """A step of this row only."""
    single = made(1, kv_type=kernel.kv_type, splits=kernel.splits, least=kernel.least, pages=kernel.pages, slots=kernel.slots)
    return single, arguments | {
        name: value[row : row + 1] for name, value in arguments.items() if name in ("q", "slot", "position", *PARTIALS)
    }


PARTIALS = ("peaks", "totals", "weighted")


@pytest.mark.parametrize(("least", "tile"), [(32, 32), (64, 32), (32, 16), (128, 16)])
def test_lengths_about_the_edges_of_tiles_and_parts(least: int, tile: int) -> None:
    lengths = (*LENGTHS, 15, 16, 17, 48, 49)
    kernel = made(len(lengths), least=least, tile=tile)
    check(kernel, at(kernel, lengths))


def test_the_two_kernels_together_are_attention() -> None:
    kernel = made(len(LENGTHS))
    arguments = at(kernel, LENGTHS)
    out = attended(kernel, arguments)["out"]
    for row, length in enumerate(LENGTHS):
        whole = ContiguousAttention(indirect=False, heads=2, kv_heads=1, head_dim=32, max_len=length)
        where = kernel.seen(arguments, row)
        caches = {f"{tensor}_cache": kernel.values(arguments, tensor, where).astype(np.float32) for tensor in ("k", "v")}
        given = {"out": out[row], "q": arguments["q"][row], **caches, "length": np.uint32(length)}
        assert_matches_reference(whole, given, {"out": out[row]})


def test_a_row_has_the_bits_that_it_has_alone() -> None:
    kernel = made(3, kv_type="q8_0")
    arguments = at(kernel, (40, 160, 7))
    together = attended(kernel, arguments)["out"]
    for row in range(3):
        assert attended(*alone(kernel, arguments, row))["out"].tobytes() == together[row].tobytes()


def test_blocks_that_do_several_parts_give_the_same_bits() -> None:
    lengths = (160, 70, 1)
    usual = run(made(3, splits=5), arguments := at(made(3, splits=5), lengths))
    for spread in (1, 2):
        few = made(3, splits=5, spread=spread)
        assert few.launch().grid[2] == spread
        assert all(usual[name].tobytes() == array.tobytes() for name, array in run(few, arguments, seed=spread).items())


@pytest.mark.parametrize(
    ("head_dim", "kv_type", "tile"),
    [(96, "f16", 32), (96, "f32", 16), (128, "f16", 16), (160, "q8_0", 32), (224, "f32", 16), (256, "q8_0", 16)],
)
def test_every_layout_of_a_row_uses_all_of_its_values(head_dim: int, kv_type: str, tile: int) -> None:
    kernel = made(2, heads=1, head_dim=head_dim, kv_type=kv_type, tile=tile)
    check(kernel, at(kernel, (100, 33)))


def test_where_the_pages_lie_changes_no_bit() -> None:
    kernel = made(2)
    arguments = at(kernel, (100, 70))
    moved = np.random.default_rng(5).permutation(kernel.pages).astype(np.uint32)
    used = arguments["tables"] < kernel.pages
    other = arguments | {"tables": np.where(used, moved[np.where(used, arguments["tables"], 0)], arguments["tables"])}
    for name in ("k_cache", "v_cache"):
        other[name] = np.empty_like(arguments[name])
        other[name][moved] = arguments[name]
    assert attended(kernel, arguments)["out"].tobytes() == attended(kernel, other)["out"].tobytes()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_cache_that_holds_the_same_values_gives_the_same_bits(kv_type: str) -> None:
    kernel, plain = made(2, kv_type=kv_type), made(2)
    arguments = at(kernel, (100, 33))
    kept = {name: value for name, value in arguments.items() if "cache" not in name and "scales" not in name}
    for tensor in ("k", "v"):
        parts = [arguments[f"{tensor}_{part.suffix}"] for part in kernel.kv.parts]
        kept[f"{tensor}_cache"] = kernel.kv.decode(parts).astype(np.float32)
    assert attended(kernel, arguments)["out"].tobytes() == attended(plain, kept)["out"].tobytes()


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("position", 1, 160), ("position", 1, 2**32 - 1), ("slot", 1, 3), ("slot", 1, 2**32 - 1), ("tables", (1, 2), 17)],
)
def test_an_idle_row_gives_zeros_and_is_not_felt_by_the_others(name: str, place: Any, value: int) -> None:
    kernel = made(3)
    arguments = at(kernel, (40, 150, 90))
    usual = attended(kernel, arguments, digits=2)
    changed = arguments[name].copy()
    changed[place] = value
    results = attended(kernel, arguments | {name: changed}, digits=2)
    for array, before in zip(results.values(), usual.values(), strict=True):
        assert not array[1].any()
        assert array[0].tobytes() == before[0].tobytes()
        assert array[2].tobytes() == before[2].tobytes()


def test_a_part_without_a_page_says_so() -> None:
    kernel = made(1)
    arguments = at(kernel, (150,))
    arguments["tables"][0, 2] = kernel.pages
    partials = check(kernel, arguments)
    assert (partials["totals"][0, 0] == [partials["totals"][0, 0, 0], 0.0, partials["totals"][0, 0, 2]]).all()
    assert (partials["peaks"][0, :, 1] == -np.inf).all()
    assert np.isnan(partials["weighted"][0, :, 1]).all()


def test_slots_that_share_a_page_see_the_same_values() -> None:
    kernel = made(2)
    arguments = at(kernel, (32, 32))
    arguments["tables"][1, 0], arguments["q"][1] = arguments["tables"][0, 0], arguments["q"][0]
    out = attended(kernel, arguments)["out"]
    assert out[0].tobytes() == out[1].tobytes()


def test_a_chunk_of_a_prompt_has_the_bits_of_its_tokens_one_after_another() -> None:
    """Three rows of a slot, over the edge of a page: written and attended in one step, and in three."""
    shape = {**SHAPE, "pages": 7, "slots": 1}
    chunk, single = made(3, kv_type="f16", pages=7, slots=1), made(1, kv_type="f16", pages=7, slots=1)
    scatter, one = (PagedRopeScatter(rows=rows, **shape, kv_type="f16", neox=True, bias=False) for rows in (3, 1))
    held = at(single, (31,))
    held["tables"][0, 1] = next(page for page in range(7) if page != held["tables"][0, 0])
    new = scatter.inputs(np.random.default_rng(3))
    places = {"slot": np.zeros(3, np.uint32), "position": np.arange(31, 34, dtype=np.uint32)}
    caches = {name: held[name] for name in ("k_cache", "v_cache", "tables")}
    written = run(scatter, new | caches | places)
    whole = attended(chunk, {**chunk.inputs(np.random.default_rng(1)), **caches, **written, **places})["out"]
    for row in range(3):
        now = {name: array[row : row + 1] for name, array in {**new, **places}.items() if name in ("q", "k", "v", *places)}
        written = run(one, new | caches | now)
        caches |= {name: written[name] for name in ("k_cache", "v_cache")}
        alone = attended(single, {**single.inputs(np.random.default_rng(1)), **caches, **now, "q": written["q"]})["out"]
        assert alone.tobytes() == whole[row].tobytes()


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_the_planes_are_those_of_the_result_bit_for_bit(digits: int) -> None:
    kernel = made(2)
    results = attended(kernel, at(kernel, (100, 33)), digits=digits)
    expected = quantize(results["out"].reshape(2, -1), digits)
    assert all(results[name].tobytes() == array.tobytes() for name, array in expected._asdict().items())


def test_a_nan_that_a_row_sees_is_not_lost() -> None:
    kernel = made(2)
    arguments = at(kernel, (100, 100))
    page, place = kernel.standing(arguments, 1)[50]
    arguments["k_cache"][page, 0, place] = np.nan
    out = attended(kernel, arguments)["out"]
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).all()


@given(length=st.integers(0, 131072), splits=st.integers(1, 256), least=st.sampled_from([32, 64, 128, 256]))
def test_parts_cover_a_row_once_and_are_no_more_than_there_are_blocks(length: int, splits: int, least: int) -> None:
    slices = SequenceSplit(splits, least).slices(length)
    assert len(slices) <= splits
    assert [at.start for at in slices] == [0, *(at.stop for at in slices)][: len(slices)]
    assert length == (slices[-1].stop if slices else 0)
    assert all((at.stop - at.start) % least == 0 for at in slices[:-1])


def test_a_short_row_has_one_part_and_a_long_one_as_many_as_there_are_blocks() -> None:
    split = SequenceSplit(64, 128)
    assert [len(split.slices(length)) for length in (0, 1, 128, 129, 1024, 8192, 8193, 131072)] == [0, 1, 1, 2, 8, 64, 33, 64]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"kv_type": "bf16"}, "kv_type must be one of f32, f16, q8_0, got 'bf16'"),
        ({"page_len": 48}, r"page_len must be a multiple of 32, 32\.\.16777216, got 48"),
        ({"max_len": 100}, r"max_len must be a multiple of 32, 32\.\.16777216, got 100"),
        ({"splits": 257}, r"splits must be an integer, 1\.\.256, got 257"),
        ({"least": 96}, r"least must be one of \(32, 64, 128, 256\), got 96"),
        ({"tile": 8}, r"tile must be one of \(16, 32\), got 8"),
        ({"heads": 3, "kv_heads": 2}, r"heads must be a multiple of kv_heads \(2\), got 3"),
        ({"head_dim": 36}, r"head_dim must be 32, 512 or a multiple of 8, 40\.\.256, got 36"),
        ({"head_dim": 40, "kv_type": "q8_0"}, "a cache of q8_0 needs a head_dim that is a multiple of 32, got 40"),
    ],
    ids=str,
)
def test_an_impossible_shape_is_refused_by_name(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^paged_attention: {message}"):
        made(2, **shape)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "kv_type", "settings", "spreads"),
    [
        (32, 8, "f32", (32, 16, 512), (33, 4, 1)),  # Llama-3.1-8B
        (32, 8, "f16", (64, 32, 512), (66, 8, 2)),
        (32, 8, "q8_0", (64, 32, 384), (66, 8, 2)),
        (12, 2, "f32", (128, 32, 256), (256, 33, 8)),  # Qwen2.5-1.5B, six heads a group
        (300, 300, "f32", (32, 16, 512), (1, 1, 1)),  # more heads than blocks
    ],
)
def test_suited_settings_fill_a_large_gpu(
    heads: int, kv_heads: int, kv_type: str, settings: tuple[int, ...], spreads: tuple[int, ...]
) -> None:
    of_target = [suited(Target(sm), heads=heads, kv_heads=kv_heads, head_dim=128, kv_type=kv_type) for sm in (80, 90)]
    assert of_target[1] == settings
    assert of_target[0][:2] == settings[:2]  # what bits depend on
    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": 128, "kv_type": kv_type}
    cache: dict[str, Any] = {"page_len": 32, "pages": 4, "slots": 1, "max_len": 128}
    kernels = [PagedAttention(rows=rows, **shape, **cache, **of_target[1]._asdict()) for rows in (1, 8, 32)]
    assert tuple(kernel.filling().spread for kernel in kernels) == spreads


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("heads", [8, 32])
def test_suited_settings_spill_no_register_on_hopper(heads: int, kv_type: str) -> None:
    target, cache = Target(90), {"page_len": 32, "pages": 256, "slots": 8, "max_len": 8192}
    settings = suited(target, heads=heads, kv_heads=8, head_dim=128, kv_type=kv_type)._asdict()
    shape: dict[str, Any] = {"rows": 8, "heads": heads, "kv_heads": 8, "head_dim": 128, "kv_type": kv_type, **cache, **settings}
    for kind in (PagedAttention, PagedAttentionLastBlock):
        assert assemble(emit(kind(**shape).filling(), target, dependent=True).text, target).spill_stores == 0
