"""A message of a launch to the other ranks: f32 values that their next launches wait for, each a word with the number of the
message beside it, in one store. So it takes the way there and no more, and none of its words waits for another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import Scalar, Signature, addresses, update
from ptxgen.dsl.value import Value
from ptxgen.types import U32, U64

INBOXES: Final = 2
"""Messages go into them in turn. GatherDigits says why two are enough where all ranks receive before they send the next."""

SENT: Final = ("y_numbers", "y_inbox")
"""The arrays that a message changes: of its own rank, and of the others."""


def message_arguments(n: int, ranks: int, blocks: int) -> Signature:
    """y_numbers: u32[blocks], of the last message, and y_inbox: u64[2, ranks, n], where those of the others come: zeros before
    the first launch, and nobody else's; y_inboxes: u64[ranks], the addresses of the y_inbox of each rank; rank: u32."""
    return {
        "y_numbers": update(U32, blocks),
        "y_inbox": update(U64, INBOXES, ranks, n),
        "y_inboxes": addresses("y_inbox", ranks),
        "rank": Scalar(U32, 0, ranks - 1),
    }


class Message:
    """The message of this launch, of one of `ranks`: a block counts its own."""

    def __init__(self, k: KernelBuilder, ranks: int) -> None:
        """Write the loads: the kernel has waited for the launch before it."""
        self._k = k
        self._inboxes = [k.arg.y_inboxes[(k.arg.rank + away) % ranks] for away in range(1, ranks)]
        self._number = k.load(k.arg.y_numbers[k.ctaid.x]) + 1
        self._half = self._number & (INBOXES - 1)

    def send(self, place: Value, value: Value) -> None:
        """This value (f32) is the one of this number among the rank's."""
        k = self._k
        for inbox in self._inboxes:
            k.send_word(inbox[self._half, k.arg.rank, place], k.bits(value, U32), self._number)

    def end(self) -> None:
        """All of the block have sent. All threads must come here."""
        k = self._k
        k.barrier()  # all have the number
        with k.when(k.tid.x == 0):
            k.store(k.arg.y_numbers[k.ctaid.x], self._number)


def message_inputs(rng: np.random.Generator, n: int, ranks: int, blocks: int) -> dict[str, Any]:
    """Arguments of all ranks behind some message, the last before 2^32 among them; so few others that an f64 holds each word."""
    number = int(rng.choice([0, 1, 2**20 - 1, 2**32 - 1]))
    latest = [number - (number % INBOXES != half) for half in range(INBOXES)]  # that went into either half
    inbox = np.array([one % 2**32 % 2**20 << 32 for one in latest], np.uint64).reshape(1, INBOXES, 1, 1)
    return {
        "y_numbers": np.full((ranks, blocks), number, np.uint32),
        "y_inbox": np.broadcast_to(inbox, (ranks, INBOXES, ranks, n)).copy(),
        "y_inboxes": np.zeros((ranks, ranks), np.uint64),
        "rank": np.arange(ranks, dtype=np.uint32),
    }


def message_reference(arguments: Mapping[str, Any], sent: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """SENT after each rank has sent its values, f64[ranks, n]."""
    numbers = arguments["y_numbers"] + np.uint32(1)
    words = _bits(sent).astype(np.uint64) | numbers[:, :1].astype(np.uint64) << np.uint64(32)
    return {"y_numbers": numbers, "y_inbox": _with_words(arguments["y_inbox"].copy(), arguments, words)}


def message_bounds(
    arguments: Mapping[str, Any], sent: NDArray[np.float64], bounds: NDArray[np.float64]
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """How far these may be off where values are within these bounds: words by the bits of values of one sign that lie between,
    by anything where the sign is open."""
    low, high = sent - bounds, sent + bounds
    between = np.abs(_bits(high).astype(np.float64) - _bits(low)) + 1
    off = np.where(low * high > 0, between, 2.0**32)
    zeros = np.zeros(arguments["y_inbox"].shape)
    return {"y_numbers": np.zeros(arguments["y_numbers"].shape), "y_inbox": _with_words(zeros, arguments, off)}


def _with_words(inbox: NDArray[Any], arguments: Mapping[str, Any], words: NDArray[Any]) -> NDArray[Any]:
    ranks = len(words)
    half = (int(arguments["y_numbers"][0, 0]) + 1) % INBOXES
    for rank in range(ranks):
        others = np.arange(ranks) != rank
        inbox[rank, half, others] = words[others]
    return inbox


def _bits(values: NDArray[np.float64]) -> NDArray[np.uint32]:
    return values.astype(np.float32).view(np.uint32)
