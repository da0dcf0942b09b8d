"""Attention that rotates and appends by itself: the bits are those of the two launches that it stands for, whatever stood in
the caches from the position on, and no block reads what another one writes there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.conformance.dependent_launch import violations
from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.memory import GlobalArray, SharedPart
from ptxgen.dsl.value import Value
from ptxgen.emulator.flow import flow
from ptxgen.emulator.origins import Origins
from ptxgen.emulator.parse import parse
from ptxgen.errors import ArgumentError
from ptxgen.isa.effects import Effect
from ptxgen.isa.operands import Address
from ptxgen.kernels.attention.attention_type import AttentionType
from ptxgen.kernels.attention.contiguous_attention import ContiguousAttention
from ptxgen.kernels.attention.group_tiles import Load
from ptxgen.kernels.attention.newest_tiles import NewestTiles, Rows
from ptxgen.kernels.attention.query_source import PLAIN
from ptxgen.kernels.attention.rope_source import RopeFused
from ptxgen.kernels.attention.scores import Scoring
from ptxgen.kernels.attention.token_heads import BlockToken, Share, TokenHeads
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.checking import check, run
from tests.ptxgen.kernels.running import emulate

SHORT = 64
STYLES = {"llama": "rope_", "qwen2": "bias_rope_neox_", "qwen3": "norm_rope_neox_"}


def made(style: str, **shape: int) -> ContiguousAttention:
    sizes = {"heads": 3, "kv_heads": 1, "head_dim": 64, "max_len": 300, "splits": 4, "least": 32, "short": SHORT, **shape}
    digits = "_digits" if "digits" in shape else ""
    kernel = find(f"{style}grouped_attention{digits}_indirect").make(**sizes)
    assert isinstance(kernel, ContiguousAttention)
    return kernel


def at(kernel: ContiguousAttention, position: int) -> dict[str, Any]:
    """Random arguments; the caches hold NaN at the position and after it."""
    rng = np.random.default_rng(position)
    arguments = kernel.inputs(rng)
    for name in ("k_cache", "v_cache"):
        arguments[name] = rng.normal(size=arguments[name].shape).astype(np.float32)
        arguments[name][:, position:] = np.nan
    return arguments | {"position": np.array([position], np.uint32)}


def by_two_launches(kernel: ContiguousAttention, arguments: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """What the kernels leave that this one stands for."""
    source = kernel.source
    assert isinstance(source, RopeFused)
    scatter = source.scatter(kernel)
    rotated = run(scatter, {name: arguments[name] for name in scatter.signature()})
    attention = replace(kernel, source=PLAIN)
    given = {**arguments, **rotated, "length": arguments["position"] + np.uint32(1)}
    attended = run(attention, {name: given[name] for name in attention.signature()})
    return attended | {name: rotated[name] for name in ("k_cache", "v_cache")}


def same(kernel: ContiguousAttention, position: int) -> None:
    arguments = at(kernel, position)
    found, wanted = check(kernel, arguments, seed=position), by_two_launches(kernel, arguments)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 64, 65, 96, 97, 129, 255, 256, 257, 300])
@pytest.mark.parametrize("model", ["llama", pytest.param("qwen2", marks=pytest.mark.slow), "qwen3"])
def test_a_token_has_the_bits_of_two_launches_at_any_length(model: str, length: int) -> None:
    same(made(STYLES[model], digits=2), length - 1)


@pytest.mark.parametrize("length", [225, 256, 257, 511])
def test_a_warp_with_several_tiles_loads_the_later_ones_itself(length: int) -> None:
    same(made("rope_", heads=1, head_dim=128, max_len=512, short=512), length - 1)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 70])
@pytest.mark.parametrize("style", ["rope_", "rope_neox_", "bias_rope_", "bias_rope_neox_", "norm_rope_neox_"])
@pytest.mark.parametrize("head_dim", [32, 96, 128, 192, 256])
def test_every_layout_has_the_bits_of_two_launches(head_dim: int, style: str, length: int) -> None:
    if style.startswith("norm_") and head_dim % 64:
        with pytest.raises(ArgumentError, match="normalises heads of 64, 128, 192 or 256 values in the style of neox"):
            made(style, head_dim=head_dim)
        return
    same(made(style, heads=5, head_dim=head_dim, max_len=100, splits=3, short=40, digits=3), length - 1)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (2, 2), (4, 2), (7, 1), (8, 1), (12, 2)])
def test_every_size_of_a_group_has_the_bits_of_two_launches(heads: int, kv_heads: int) -> None:
    kernel = made("bias_rope_neox_", heads=heads, kv_heads=kv_heads, max_len=100, digits=1)
    for position in (40, 99):
        same(kernel, position)


@pytest.mark.parametrize("position", [40, 99])
def test_with_alibi_a_token_has_the_bits_of_two_launches(position: int) -> None:
    same(replace(made("rope_", max_len=100), scores=Scoring(alibi=8.0)), position)


@pytest.mark.parametrize("style", STYLES.values())
@pytest.mark.parametrize("position", [300, 2**32 - 1])
def test_a_position_out_of_range_changes_nothing(position: int, style: str) -> None:
    kernel = made(style, digits=2)
    arguments = at(kernel, 100) | {"position": np.array([position], np.uint32)}
    assert all(array.tobytes() == arguments[name].tobytes() for name, array in check(kernel, arguments).items())


@pytest.mark.parametrize("style", STYLES.values())
def test_all_that_no_launch_before_writes_is_read_before_the_wait(style: str) -> None:
    """What earlier tokens left in the caches, too; queries, key and value are not."""
    kernel = made(style, digits=3)
    text, signature = emit(kernel, Target(90), dependent=True).text, kernel.signature()
    arrays = {name: argument for name, argument in signature.items() if isinstance(argument, Array)}
    dependent = {name for name, argument in arrays.items() if argument.readable_before_wait}
    assert dependent >= {"position", "table", "k_cache", "v_cache"}
    assert not dependent & {"q", "k", "v", "out", "digits", "counters"}
    assert not violations(text, kernel.name, signature)
    unsafe: Signature = {n: replace(a, constant=False, settled=False) for n, a in arrays.items()}
    assert {one.split(" is ")[0] for one in violations(text, kernel.name, signature | unsafe)} == dependent


@pytest.mark.parametrize(
    ("head_dim", "max_len", "keys", "values"),
    [(64, 300, 16, 0), (96, 300, 3 * 16, 0), (128, 300, 16, 0), (256, 300, 2 * 24, 2 * 24), (64, 20, 4, 0), (256, 1, 0, 0)],
)
def test_rows_of_the_first_tile_that_registers_do_not_hold_are_asked_of_the_cache_before_the_wait(
    head_dim: int, max_len: int, keys: int, values: int
) -> None:
    """Of two rounds of 16 keys one is held, and all values; with heads of 256 one of four of eight of each. A row takes as many
    prefetches as wide loads."""
    kernel = made("rope_", heads=2, head_dim=head_dim, max_len=max_len, digits=3)
    text = emit(kernel, Target(90), dependent=True).text
    code = flow(parse(text), kernel.name)
    origins, caches = Origins(code), {"k_cache", "v_cache"}
    steps = [step for block in code.blocks for step in block.instructions]
    asked = Counter(
        cache
        for step in steps[: next(i for i, step in enumerate(steps) if step.row.waits_for_grids(step.modifiers))]
        if step.row.effect is Effect.PREFETCH
        for operand in step.operands.values()
        if isinstance(operand, Address)
        for cache in origins.of(operand) & caches
    )
    assert asked == Counter({"k_cache": keys, "v_cache": values})


class PastTheNewest(NewestTiles):
    """Reads the newest row, too, from the cache."""

    def _load(self, k: KernelBuilder, into: Rows, cache: GlobalArray, start: Value, position: Value) -> None:
        super()._load(k, into, cache, start, position + 1)


@dataclass(frozen=True)
class FromTheCache(RopeFused):
    """As if the row that one block writes were there for all."""

    def newest(self, k: KernelBuilder, attention: AttentionType, warps: int) -> NewestTiles:
        return PastTheNewest(attention.head_dim, warps, attention.kept, early=super().newest(k, attention, warps).early)

    def rows_before(
        self, k: KernelBuilder, cache: GlobalArray, attention: AttentionType, start: Value, position: Value, newest: SharedPart
    ) -> Load:
        return super().rows_before(k, cache, attention, start, position + 1, newest)


class EveryBlockStores(TokenHeads):
    """Has every block write key and value into the caches."""

    def begin(self, k: KernelBuilder, token: BlockToken, start: int = 0) -> Share:
        object.__setattr__(token, "stores", token.position < (1 << 31))
        return super().begin(k, token, start)


@dataclass(frozen=True)
class ManyWriters(RopeFused):
    """With several writers of one row, which all write the same."""

    def token(self, head_dim: int, queries: int, warps: int) -> TokenHeads:
        return EveryBlockStores(self.neox, self.bias, self.normed, head_dim, queries, warps * 32)


@pytest.mark.slow
@pytest.mark.parametrize("position", [20, 150])
@pytest.mark.parametrize("wrong", [FromTheCache, ManyWriters])
def test_the_sanitiser_finds_who_reads_or_writes_the_row_of_another_block(wrong: type[RopeFused], position: int) -> None:
    right = made("rope_", heads=8, head_dim=128, digits=2)
    for one, races in ((right, False), (replace(right, source=wrong(neox=False)), True)):
        _, findings = emulate(one, at(right, position))
        assert any("race" in str(finding) for finding in findings) == races


@pytest.mark.parametrize(
    ("style", "heads", "kv_heads", "head_dim"),
    [
        ("rope_", 32, 8, 128),
        ("rope_", 32, 8, 64),
        ("bias_rope_neox_", 28, 4, 128),
        ("norm_rope_neox_", 32, 8, 128),
    ],
)
def test_for_models_a_multiprocessor_has_the_registers_and_little_more_code(
    style: str, heads: int, kv_heads: int, head_dim: int
) -> None:
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "max_len": 4096, "splits": 16, "digits": 3}
    apart, together = (
        assemble(emit(find(f"{prefix}grouped_attention_digits_indirect").make(**shape), Target(90)).text, Target(90))
        for prefix in ("", style)
    )
    assert together.spill_stores == together.spill_loads == together.stack == 0
    assert together.code <= apart.code + 8 * 1024
