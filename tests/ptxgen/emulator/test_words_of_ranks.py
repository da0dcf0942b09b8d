"""k.send_word and k.receive_words: words that ranks send each other with the number of their message beside them. What is
broken in any one place is found, whatever the order of turns; what is right never is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.conformance.execution import compare, emitted
from ptxgen.dsl.arguments import Scalar, Signature, addresses, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.emulator import Addresses, Finding, run_together
from ptxgen.errors import Nonconformity
from ptxgen.kernels.collective.gather_planes import GatherPlanes
from ptxgen.toolchain.module import emit
from ptxgen.types import U32, U64
from tests.ptxgen.emulator.changed import run_changed

Broken = Callable[[str], str]


def replaced(pattern: str, by: str = "") -> Broken:
    return lambda text: re.sub(pattern, by, text, flags=re.MULTILINE)


BROKEN = {
    "no word is sent": (replaced(r"^ +st\.relaxed\.sys.*\n"), "deadlock"),
    "it is sent plainly": (replaced(r"st\.relaxed\.sys", "st"), "race"),
    "it is sent to its own device": (replaced(r"st\.relaxed\.sys", "st.relaxed.gpu"), "race"),
    "it is looked for plainly": (replaced(r"ld\.relaxed\.sys", "ld"), "race"),
    "it is looked for on its own device": (replaced(r"ld\.relaxed\.sys", "ld.relaxed.gpu"), "race"),
    "it has another number": (replaced(r"mov\.b64 (%rd\d+), \{(%r\d+), %r\d+\}", r"mov.b64 \1, {\2, 7}"), "deadlock"),
}
GATHER = GatherPlanes(n=128, ranks=2, digits=3, normed=True)


def gathered(broken: Broken, seed: int | None = None) -> tuple[list[Finding], Mapping[str, Any], dict[str, NDArray[Any]]]:
    """What is found in a gather whose text was changed, its arguments, and what it leaves."""
    return run_changed(GATHER, broken, seed)


@pytest.mark.parametrize("name", BROKEN)
def test_a_gather_that_is_broken_in_one_place_is_found(name: str) -> None:
    broken, kind = BROKEN[name]
    assert broken(emitted(GATHER).text) != emitted(GATHER).text
    for seed in (None, 0, 1):
        assert kind in {finding.kind for finding in gathered(broken, seed)[0]}


def test_one_that_waits_for_nothing_has_gathered_something_else() -> None:
    """Its accesses are words of their own, which race with none: what it takes for words of the others are those before."""
    found, arguments, left = gathered(replaced(r"^ +@%p\d+ bra \$poll_\d+;\n"))
    assert found == []
    with pytest.raises(Nonconformity, match="values of digits are off"):
        compare(GATHER, arguments, left)
    found, arguments, left = gathered(str)
    assert found == []
    compare(GATHER, arguments, left)


@dataclass(frozen=True)
class Messages(KernelType):
    """out: u32[count, ranks] = what each rank has sent: x + the number of the message, of `count` messages in a row through
    `turns` inboxes in turn. A rank has one thread."""

    family: ClassVar[str] = "test"
    name = "messages"
    ranks: int = 2
    turns: int = 2
    count: int = 5

    def signature(self) -> Signature:
        return {
            "out": update(U32, self.count, self.ranks),
            "x": read(U32, 1),
            "first": read(U32, 1),
            "inbox": update(U64, self.turns, self.ranks),
            "inboxes": addresses("inbox", self.ranks),
            "rank": Scalar(U32, 0, self.ranks - 1),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=1, block=1, ranks=self.ranks)

    def emit(self, k: KernelBuilder) -> None:
        rank, x, first = k.arg.rank, k.load(k.arg.x[0]), k.load(k.arg.first[0])
        others = [(rank + away) % self.ranks for away in range(1, self.ranks)]
        for message in range(self.count):
            number = first + message
            for other in others:
                k.send_word(k.arg.inboxes[other][message % self.turns, rank], x + message, number)
            found = k.receive_words([k.arg.inbox[message % self.turns, other] for other in others], number)
            for other, word in zip(others, found, strict=True):
                k.store(k.arg.out[message, other], word)

    def reference(self, **arguments: Any) -> Mapping[str, NDArray[Any]]:
        raise NotImplementedError

    def work(self) -> Work:
        return Work(0, 1)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls()

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        raise NotImplementedError

    def tolerance(self, **arguments: Any) -> Mapping[str, NDArray[Any] | float]:
        raise NotImplementedError


@cache
def text_of(messages: Messages) -> str:
    return emit(messages).text


def sent(messages: Messages, *, seed: int | None, first: int = 1) -> tuple[list[Finding], list[NDArray[Any]]]:
    """What is found, and what each rank has received; its own place stays 0."""
    ranks = range(messages.ranks)
    out = [np.zeros((messages.count, messages.ranks), np.uint32) for _ in ranks]
    inbox = [np.full((messages.turns, messages.ranks), (first - 1) % 2**32 << 32, np.uint64) for _ in ranks]
    x, number = [np.array([100 * (r + 1)], np.uint32) for r in ranks], np.array([first], np.uint32)
    args = [[out[r], x[r], number.copy(), inbox[r], Addresses(inbox), np.uint32(r)] for r in ranks]
    return run_together(text_of(messages), "messages", 1, 1, args, seed=seed), out


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("first", [1, 2**32 - 2])
def test_messages_in_a_row_arrive_in_any_order_of_turns(ranks: int, first: int) -> None:
    messages = Messages(ranks)
    whole = np.arange(messages.count)[:, None] + 100 * np.arange(1, ranks + 1)
    for seed in (None, *range(6)):
        found, received = sent(messages, seed=seed, first=first)
        assert found == []
        for rank, out in enumerate(received):
            assert (np.delete(out, rank, 1) == np.delete(whole, rank, 1)).all()


def test_a_single_inbox_loses_what_nobody_has_read_yet() -> None:
    found = [one for seed in range(8) for one in sent(Messages(turns=1), seed=seed)[0]]
    assert {one.kind for one in found} == {"deadlock"}
