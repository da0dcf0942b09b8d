"""The message by which a kernel sends the int8 planes of activations that it makes to the other ranks, word by word, as
send_digits sends those of another kernel; and what it leaves, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, addresses, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.value import Value
from ptxgen.kernels.collective.plane_words import PlaneWords
from ptxgen.types import U32, U64

Made = Mapping[str, NDArray[Any]]
"""Planes s8[1, digits, n], scales and sums of a rank's part, or how far each may be off."""


def message_arguments(words: PlaneWords, ranks: int, blocks: int) -> Signature:
    """y_numbers: u32[blocks], of the last message, and y_inbox: u64[ranks, words], where the others' come: zeros before the
    first launch, and nobody else's; y_inboxes: u64[ranks], the addresses of the y_inbox of each rank; rank: u32."""
    return {
        "y_numbers": update(U32, blocks),
        "y_inbox": update(U64, ranks, words.count),
        "y_inboxes": addresses("y_inbox", ranks),
        "rank": Scalar(U32, 0, ranks - 1),
    }


class PlaneMessage:
    """That of one of `ranks`, of which each block sends some words. One inbox does: GatherPlanes says why."""

    def __init__(self, k: KernelBuilder, ranks: int) -> None:
        """Write the loads: the kernel has waited for the launch before it."""
        self._k = k
        self._number = k.load(k.arg.y_numbers[k.ctaid.x]) + 1
        self._inboxes = [k.arg.y_inboxes[(k.arg.rank + away) % ranks] for away in range(1, ranks)]

    def send(self, place: Value, word: Value) -> None:
        """This word (u32) is the one of this number."""
        for inbox in self._inboxes:
            self._k.send_word(inbox[self._k.arg.rank, place], word, self._number)

    def end(self) -> None:
        """All of the block have sent. All threads must come here."""
        k = self._k
        k.barrier()  # all have the number
        with k.when(k.tid.x == 0):
            k.store(k.arg.y_numbers[k.ctaid.x], self._number)


def word_of_lanes(k: KernelBuilder, plane: Value) -> Value:
    """The low bytes of the s32 of four neighbouring lanes in a u32, the first lane's lowest, in each of them. All lanes of the
    warp must come here."""
    word = (k.bits(plane, U32) & 0xFF) << ((k.lane & 3) * 8)
    for away in (1, 2):
        word = word | k.shuffle_xor(word, away)
    return word


def message_inputs(rng: np.random.Generator, words: PlaneWords, ranks: int, blocks: int) -> dict[str, Any]:
    """Arguments of all ranks behind some message, the last before 2^32 among them; others so low that an f64 holds words."""
    number = int(rng.choice([0, 1, 2**20 - 1, 2**32 - 1]))
    return {
        "y_numbers": np.full((ranks, blocks), number, np.uint32),
        "y_inbox": np.full((ranks, ranks, words.count), (number % 2**20) << 32, np.uint64),
        "y_inboxes": np.zeros((ranks, ranks), np.uint64),
        "rank": np.arange(ranks, dtype=np.uint32),
    }


def message_reference(arguments: Mapping[str, Any], words: PlaneWords, made: Sequence[Made]) -> dict[str, NDArray[Any]]:
    """What is left where each rank has sent what it has made."""
    numbers = arguments["y_numbers"] + np.uint32(1)
    sent = np.stack([_words(words, one) for one in made]).astype(np.uint64) | numbers[:, :1].astype(np.uint64) << np.uint64(32)
    return {"y_numbers": numbers, "y_inbox": _to_others(arguments["y_inbox"].copy(), sent)}


def message_bounds(
    arguments: Mapping[str, Any], words: PlaneWords, made: Sequence[Made], bounds: Sequence[Made]
) -> dict[str, NDArray[Any]]:
    """How far that may be off where what is made is within these bounds: a plane that is may be any byte, a scale one of those
    between, and a sum any word."""
    off = []
    for one, bound in zip(made, bounds, strict=True):
        digits = 255.0 * (np.asarray(bound["digits"])[0] > 0).reshape(words.digits * words.lanes, 4)
        scales, wide = np.asarray(one["scales"], np.float64).reshape(-1), np.asarray(bound["scales"], np.float64).reshape(-1)
        low, high = ((scales + sign * wide).astype(np.float32).view(np.uint32).astype(np.float64) for sign in (-1, 1))
        between = np.where(wide > 0, np.where(scales > wide, high - low + 1, 2.0**32), 0.0)
        sums = np.where(np.asarray(bound["sums"]).reshape(-1) > 0, 2.0**32, 0.0)
        off.append(np.concatenate([digits @ 256.0 ** np.arange(4), between, sums]))
    zeros = np.zeros(arguments["y_inbox"].shape)
    return {"y_numbers": np.zeros(arguments["y_numbers"].shape), "y_inbox": _to_others(zeros, np.stack(off))}


def _words(words: PlaneWords, made: Made) -> NDArray[np.uint32]:
    arrays = [made[name] for name in ("digits", *words.of_blocks)]
    return np.concatenate([np.ascontiguousarray(array).reshape(-1).view(np.uint32) for array in arrays])


def _to_others(inbox: NDArray[Any], sent: NDArray[Any]) -> NDArray[Any]:
    ranks = len(sent)
    for rank in range(ranks):
        others = np.arange(ranks) != rank
        inbox[rank, others] = sent[others]
    return inbox
