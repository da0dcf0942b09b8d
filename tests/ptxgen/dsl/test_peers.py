"""Arrays of other ranks, k.signal_peers with k.wait_for_peers, k.send_word with k.receive_words: what keeps them right is
asked for at the author's line, and a wait ends. That the sanitiser finds what breaks them: test_several_devices.py and
test_words_of_ranks.py of tests/ptxgen/emulator."""

from __future__ import annotations

import numpy as np
import pytest

from ptxgen.dsl.arguments import Array, Scalar, Signature, addresses, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.cooperation import MOST_POLLS
from ptxgen.emulator import Addresses, run_together
from ptxgen.errors import ArgumentError, AuthorError, TypeMismatch
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.toolchain.module import emit
from ptxgen.types import F32, U32, U64
from tests.ptxgen.dsl.writing import Body, text, written

RANKS = 2
SIGNATURE: Signature = {
    "x": update(F32, 4, 8),
    "xs": addresses("x", RANKS),
    "flags": update(U32, 1, RANKS),
    "peers": addresses("flags", RANKS),
    "lost": addresses("nowhere", RANKS),
    "of_rank": addresses("rank", RANKS),
    "rank": Scalar(U32, 0, RANKS - 1),
}


def body(k: KernelBuilder) -> None:
    number = k.signal_peers(k.arg.flags, k.arg.peers, k.arg.rank, 0)
    k.wait_for_peers(k.arg.flags, k.arg.rank, 0, number)


def said(line: Body, error: type[AuthorError] = AuthorError, *, block: int | tuple[int, ...] = 64, ranks: int = RANKS) -> str:
    with pytest.raises(error) as raised:
        written(line, block=block, signature=SIGNATURE, ranks=ranks)
    return str(raised.value)


def test_an_array_of_another_rank_is_used_as_ones_own() -> None:
    signature = {name: SIGNATURE[name] for name in ("x", "xs", "rank")}

    def moves(k: KernelBuilder) -> None:
        k.store(k.arg.xs[1 - k.arg.rank][2, 3], k.load(k.arg.x[0, 1]))

    x = [np.full((4, 8), 7 + rank, np.float32) for rank in range(RANKS)]
    args = [[x[rank], Addresses(x), np.uint32(rank)] for rank in range(RANKS)]
    assert run_together(text(moves, signature=signature), "probe", 1, 1, args) == []
    assert [float(one[2, 3]) for one in x] == [8, 7]


def test_a_rank_that_does_not_come_ends_the_wait() -> None:
    """The other rank ends before it has told anything: the polls are bounded."""
    kernel = AllGather(n=64, ranks=2)
    bounded = emit(kernel).text.replace(f", {MOST_POLLS};", ", 5;")
    leaves = bounded.replace("    add.u32 %r1,", "    setp.eq.u32 %p0, %r0, 1;\n    @%p0 ret;\n    add.u32 %r1,", 1)
    assert leaves != bounded
    flags, y = ([np.zeros(shape, dtype) for _ in range(2)] for shape, dtype in (((1, 2), np.uint32), ((1, 64), np.float32)))
    x = np.zeros((1, 32), np.float32)
    args = [[y[r], x.copy(), flags[r], Addresses(y), Addresses(flags), np.uint32(r)] for r in range(2)]
    (finding,) = run_together(leaves, "all_gather", 1, kernel.launch().block, args)
    assert (finding.kind, finding.message) == ("trap", "all_gather on device 0, block (0,0,0) executes trap")
    assert "trap;" in finding.ptx_text


def test_what_signals_and_waits_need_is_said() -> None:
    assert "LaunchConfig(..., ranks=R)" in said(body, ranks=1)
    assert "needs a one-dimensional block, this one is (8, 4, 1)" in said(body, block=(8, 4))
    assert "needs a thread for each of 2 ranks, the block has 1" in said(body, block=1)
    wrong = said(lambda k: k.signal_peers(k.arg.x, k.arg.peers, k.arg.rank, 0), TypeMismatch)
    assert "the flags of k.signal_peers must be u32[blocks, 2] in global memory, these are f32[4, 8]" in wrong
    other = said(lambda k: k.signal_peers(k.arg.flags, k.arg.xs, k.arg.rank, 0), TypeMismatch)
    assert (
        "the peers of k.signal_peers must be the flags of all ranks, got the arrays of the ranks of xs (each f32[4, 8])"
        in other
    )
    assert '"peers": addresses("flags", ranks)' in other
    assert "k.wait_for_peers takes a register" in said(lambda k: k.wait_for_peers(k.arg.flags, 0, 0, k.u32(1)), TypeMismatch)  # type: ignore[arg-type]
    assert "k.signal_peers takes an argument that is an array" in said(lambda k: k.signal_peers(1, k.arg.peers, k.arg.rank, 0))  # type: ignore[arg-type]


def test_words_of_ranks_are_sent_to_elements_of_u64() -> None:
    alone = said(lambda k: k.send_word(k.arg.flags[0, 0], k.u32(1), k.u32(1)), ranks=1)
    assert "k.send_word is for launches of several ranks, and this is one by itself" in alone
    narrow = said(lambda k: k.send_word(k.arg.flags[0, 0], k.u32(1), k.u32(1)), TypeMismatch)
    assert "k.send_word takes an element of u64 in global memory, this is an element in global memory (u32)" in narrow
    assert "k.receive_words takes an element" in said(lambda k: k.receive_words([k.arg.flags], k.u32(1)))


@pytest.mark.parametrize("name", ["lost", "of_rank"])
def test_addresses_are_of_an_array_of_the_kernel(name: str) -> None:
    of = {"lost": "nowhere", "of_rank": "rank"}[name]
    assert f"{name} has the addresses of {of}, which is no array argument" in said(lambda k: k.argument(name))


def test_addresses_are_a_constant_u64_of_each_rank() -> None:
    assert addresses("x", 4) == Array(U64, (4,), align=8, constant=True, addresses_of="x")
    for wrong in ({"dtype": U32}, {"shape": (2, 2)}, {"constant": False}):
        with pytest.raises(ArgumentError, match=r"the addresses of x are a constant u64\[ranks\], not"):
            Array(**({"dtype": U64, "shape": (2,), "constant": True, "addresses_of": "x"} | wrong))  # type: ignore[arg-type]
    assert read(U64, 2).addresses_of == ""
