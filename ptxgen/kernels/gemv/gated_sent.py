"""gated_hw_dp4a of ranks that share gate and up by their rows: the digits that a rank makes go to the others at once, whose
down projections wait for them (HwDp4aType.row_parts). So no launch gathers or sends them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Array, Signature
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.dsl.value import Value
from ptxgen.formats import REPACKED, find
from ptxgen.kernels.collective.all_gather import MOST_RANKS
from ptxgen.kernels.collective.digit_message import (
    DigitMessage,
    message_arguments,
    message_bounds,
    message_inputs,
    message_reference,
    word_of_lanes,
)
from ptxgen.kernels.collective.digit_words import DigitWords
from ptxgen.kernels.gemv.chunks import Warp
from ptxgen.kernels.gemv.gated_hw_dp4a import GatedHwDp4aGemv
from ptxgen.kernels.gemv.received_digits import in_parts
from ptxgen.kernels.gemv.row_digits import PREFIX, GroupLane
from ptxgen.kernels.quantize.activation_digits import BLOCK, ActivationDigits
from ptxgen.kernels.quantize.quantize import LANE_VALUES, block_integers, digits_of
from ptxgen.kernels.registry import register
from ptxgen.kernels.shape import require
from ptxgen.types import U32, U64

SENT: Final = (find("Q4_K"), find("Q5_K"), REPACKED["Q8_0_ALIGNED"])
"""The formats that have it in the catalogue: those of gate and up in most models. Of others it is made by its class."""


@register(format=SENT)
@dataclass(frozen=True)
class GatedHwDp4aGemvSent(GatedHwDp4aGemv):
    """y = silu(W x) * (W2 x) on quantised activations on each of several ranks, of which each has rows of its own of both
    matrices, and the digits of y go to the other ranks: gated_hw_dp4a and send_digits, bit for bit and in one launch.

    All arguments as in gated_hw_dp4a, but y_digits: s8[1, out_digits, ranks * n], y_scales: f32[1, ranks * n / 32], y_sums:
    s32[1, ranks * n / 32]: of the whole row, of which the places of this rank's part are written. y_numbers, y_inbox, y_inboxes
    and rank: see collective/digit_message.py; hw_dp4a with `row_parts` takes the first number, and the inbox. A launch on
    each rank is one message (LaunchConfig.ranks); between two there must be another gather: send_digits says why."""

    name_pattern = "gated_hw_dp4a_{format}_gemv_sent"
    ranks: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "ranks", low=2, high=MOST_RANKS)
        if self.row_parts > 1:
            require(self, "ranks", low=self.row_parts, high=self.row_parts)

    @classmethod
    def of(cls, kernel: GatedHwDp4aGemv, ranks: int) -> GatedHwDp4aGemvSent:
        """With the settings of the one that keeps its digits."""
        return cls(**_settings(kernel), format=kernel.format, ranks=ranks)

    @property
    def alone(self) -> GatedHwDp4aGemv:
        """The one that keeps its digits."""
        return GatedHwDp4aGemv(**_settings(self), format=self.format)

    @property
    def words(self) -> DigitWords:
        """What a rank sends."""
        return DigitWords(self.n, self.out_digits, normed=False)

    def sent(self, ranks: int) -> None:
        return None

    def signature(self) -> Signature:
        arguments = super().signature()
        whole: Signature = {}
        for name in _digit_names():
            array = arguments[name]
            assert isinstance(array, Array)
            whole[name] = replace(array, shape=(*array.shape[:-1], self.ranks * array.shape[-1]), partial=True)
        return arguments | whole | message_arguments(self.words, self.ranks, self.launch().blocks)

    def launch(self) -> LaunchConfig:
        return replace(super().launch(), ranks=self.ranks)

    def _early(self, k: KernelBuilder, warp: Warp) -> list[Value | None]:
        warp.message = DigitMessage(k, self.ranks)
        return super()._early(k, warp)

    def _store_own(self, k: KernelBuilder, warp: Warp, sums: list[Value], early: list[Value | None]) -> None:
        super()._store_own(k, warp, sums, early)
        assert warp.message is not None
        warp.message.end()

    def _write(self, warp: Warp, group: GroupLane, y: Value, loaded: Value | None, live: Value) -> None:
        k, message, words = warp.k, warp.message, self.words
        assert message is not None
        integers, scale, total = block_integers(k, self.out_digits, [y])
        of_lanes = [word_of_lanes(k, digit) for (digit,) in digits_of(integers, self.out_digits)]
        with k.when(live & ((k.lane & (LANE_VALUES - 1)) == 0)):
            for digit, word in enumerate(of_lanes):
                whole = k.arg.y_digits[0, digit, k.arg.rank * self.n + group.row]
                k.store(replace(whole, dtype=U32), word)
                message.send(group.row // LANE_VALUES + words.start("digits", digit), word)
        with k.when(live & (k.lane == 0)):
            for name, value in (("scales", scale), ("sums", total)):
                k.store(getattr(k.arg, PREFIX + name)[0, k.arg.rank * words.blocks + group.number], value)
                message.send(group.number + words.start(name), k.bits(value, U32))

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        found = self._of_each(arguments, "reference")
        made = [_made(one) for one in found]
        whole = {name: arguments[name].astype(np.float64) for name in _digit_names()}
        return {**self._together(found, whole), **message_reference(arguments, self.words, made)}

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        """Of a rank that of gated_hw_dp4a; words are those of any digits that near."""
        found, bounds = (self._of_each(arguments, what) for what in ("reference", "tolerance"))
        made, off = ([_made(one) for one in of] for of in (found, bounds))
        zeros = {name: np.zeros(arguments[name].shape) for name in _digit_names()}
        return {**self._together(bounds, zeros), **message_bounds(arguments, self.words, made, off)}

    def _of_each(self, arguments: Mapping[str, Any], what: str) -> list[Mapping[str, NDArray[Any]]]:
        """What this method of `alone` gives for each rank."""
        alone = self.alone
        own = [name for name in alone.signature() if name not in _digit_names()]
        return [getattr(alone, what)(**{name: arguments[name][rank] for name in own}) for rank in range(self.ranks)]

    def _together(
        self, of_each: list[Mapping[str, NDArray[Any]]], whole: dict[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]]:  # fmt: skip
        """Of all ranks: each one's part of the digits in its place of `whole`."""
        for name, array in whole.items():
            for rank, one in enumerate(of_each):
                size = one[name].shape[-1]
                array[rank][..., rank * size : (rank + 1) * size] = one[name]
        others = [name for name in of_each[0] if name not in whole]
        return {**whole, **{name: np.stack([one[name] for one in of_each]) for name in others}}

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        whole = replace(self.alone, row_parts=1)
        of_each = []
        for rank in range(self.ranks):
            given = whole.inputs(rng)
            if self.row_parts > 1:
                given = in_parts(rng, given, self.part_words, self.row_parts, rank)
            of_each.append(given)
        stacked = {name: np.stack([one[name] for one in of_each]) for name in of_each[0]}
        signature = self.signature()
        for name in _digit_names():
            array = signature[name]
            assert isinstance(array, Array)
            stacked[name] = np.zeros((self.ranks, *array.shape), stacked[name].dtype)
        return {**stacked, **message_inputs(rng, self.words, self.ranks, self.launch().blocks)}

    def work(self) -> Work:
        """Of a rank: that of gated_hw_dp4a, and each word to each other rank."""
        gated = super().work()
        return Work(gated.flops, gated.bytes + U64.bytes * self.words.count * (self.ranks - 1))

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[GatedHwDp4aGemvSent]:
        three = fixed | {"digits": 3, "out_digits": 3}
        yield cls(k=max(fixed["format"].block, 3 * BLOCK), n=32, num_warps=2, pairs=2, ranks=2, **three)  # two blocks a group
        if fixed["format"].name == "Q4_K":
            yield cls(k=4096, n=64, num_warps=8, turns=4, ring=3, normed=True, row_parts=2, ranks=2, **three)
            yield cls(k=2048, n=96, num_warps=8, turns=8, digits=2, out_digits=2, ranks=4, **fixed)


def _settings(kernel: GatedHwDp4aGemv) -> dict[str, Any]:
    return {name: value for name, value in kernel.parameters().items() if name not in ("ranks", "rows_per_warp")}


def _digit_names() -> tuple[str, ...]:
    return tuple(PREFIX + name for name in ActivationDigits._fields)


def _made(found: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: found[PREFIX + name] for name in ActivationDigits._fields}
