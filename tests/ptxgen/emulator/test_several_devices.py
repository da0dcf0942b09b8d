"""Launches of several devices that run together: who waits for another device gets it, and the sanitiser knows which scope
reaches that far. A gather that is broken in any one place is found, whatever the order of turns; the right one never is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgen.dsl.arguments import Scalar, Signature, addresses, read, update
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.emulator import (
    MOST_BLOCKS,
    Addresses,
    EmulationError,
    Finding,
    Launch,
    MemoryMap,
    Touched,
    compile_module,
    launch_together,
    run_together,
    uninitialised,
)
from ptxgen.errors import ArgumentError
from ptxgen.toolchain.module import emit
from ptxgen.types import F32, U32
from tests.ptxgen.emulator.ptx import kernel

Array = NDArray[Any]
HEAD = "ld.param.u64 %rd1, [p0];\nld.param.u64 %rd2, [p1];\nld.param.u32 %r1, [p2];\nmov.u32 %r2, %ctaid.x;"
SENDS = """setp.eq.u32 %p1, %r1, 0;
@%p1 bra WAITS;
st.global.u32 [%rd2+128], 7;
{release}
ret;
WAITS:
POLL:
nanosleep.u32 20;
ld.{order}.global.u32 %r4, [%rd1];
setp.eq.u32 %p2, %r4, 0;
@%p2 bra POLL;
{then}
ld.global.u32 %r5, [%rd1+128];
st.global.u32 [%rd1+4], %r5;"""
"""%rd1 is this device's memory, %rd2 the other's: device 1 writes a 7 into that of device 0, which waits for it."""
FENCED = "fence.acq_rel.{scope};\nst.relaxed.sys.global.u32 [%rd2], 1;"


def sent(body: str, *, seed: int | None = None, sanitize: bool = True, grid: int = 1) -> tuple[list[Finding], int]:
    """What is found, and what device 0 has copied."""
    memory = [np.zeros(64, np.uint32) for _ in range(2)]
    args = [[memory[rank], memory[1 - rank], np.uint32(rank)] for rank in range(2)]
    found = run_together(kernel(f"{HEAD}\n{body}", "u64", "u64", "u32"), "k", grid, 1, args, seed=seed, sanitize=sanitize)
    return found, int(memory[0][1])


@pytest.mark.parametrize(
    ("release", "order", "then", "ordered"),
    [
        ("st.release.sys.global.u32 [%rd2], 1;", "acquire.sys", "", True),
        (FENCED.format(scope="sys"), "acquire.sys", "", True),
        (FENCED.format(scope="sys"), "relaxed.sys", "fence.acq_rel.sys;", True),
        ("membar.sys;\nst.volatile.global.u32 [%rd2], 1;", "volatile", "membar.sys;", True),
        ("red.release.sys.global.add.u32 [%rd2], 1;", "acquire.sys", "", True),
        ("st.release.gpu.global.u32 [%rd2], 1;", "acquire.sys", "", False),
        ("st.release.sys.global.u32 [%rd2], 1;", "acquire.gpu", "", False),
        ("st.relaxed.sys.global.u32 [%rd2], 1;", "acquire.sys", "", False),
        ("st.release.sys.global.u32 [%rd2], 1;", "relaxed.sys", "", False),
        (FENCED.format(scope="gpu"), "acquire.sys", "", False),
        ("st.release.sys.global.u32 [%rd2], 1;", "relaxed.sys", "fence.acq_rel.gpu;", False),
        ("st.global.u32 [%rd2], 1;", "acquire.sys", "", False),
    ],
)
def test_another_device_takes_over_what_is_published_for_the_system(release: str, order: str, then: str, ordered: bool) -> None:
    for seed in (None, 0, 1, 2):
        found, copied = sent(SENDS.format(release=release, order=order, then=then), seed=seed)
        assert copied == 7
        assert {f.kind for f in found} == (set() if ordered else {"race"})


@pytest.mark.parametrize(
    ("within", "between", "ordered"),
    [("gpu", "sys", True), ("sys", "sys", True), ("gpu", "gpu", False), ("cta", "sys", False)],
)
def test_what_a_block_was_told_on_its_device_it_hands_on_to_another(within: str, between: str, ordered: bool) -> None:
    """Block 1 of device 1 writes to device 0, and tells block 0 of its own device, which tells device 0."""
    body = f"""setp.eq.u32 %p1, %r1, 0;\nsetp.eq.u32 %p2, %r2, 0;\n@%p1 bra ZERO;\n@%p2 bra HANDS_ON;
    st.global.u32 [%rd2+128], 7;\nst.release.{within}.global.u32 [%rd1+64], 1;\nret;
    HANDS_ON:\nnanosleep.u32 20;\nld.acquire.{within}.global.u32 %r4, [%rd1+64];\nsetp.eq.u32 %p3, %r4, 0;
    @%p3 bra HANDS_ON;\nst.release.{between}.global.u32 [%rd2], 1;\nret;
    ZERO:\n@!%p2 ret;\nPOLL:\nnanosleep.u32 20;\nld.acquire.{between}.global.u32 %r4, [%rd1];
    setp.eq.u32 %p3, %r4, 0;\n@%p3 bra POLL;\nld.global.u32 %r5, [%rd1+128];\nst.global.u32 [%rd1+4], %r5;"""
    for seed in (None, 0, 1, 2):
        found, copied = sent(body, seed=seed, grid=2)
        assert copied == 7
        assert {f.kind for f in found} == (set() if ordered else {"race"})


def test_a_finding_names_both_devices() -> None:
    body = SENDS.format(release="st.relaxed.sys.global.u32 [%rd2], 1;", order="acquire.sys", then="")
    ((finding,), _) = sent(body)
    assert re.fullmatch(
        r"k on device 0, thread \(0,0,0\) of block \(0,0,0\) reads 0x\w+ \(4 bytes\) \(byte 128 of the array of p0 of device "
        r"0, which has 256\) that thread \(0,0,0\) of block \(0,0,0\) on device 1 wrote, and nothing orders the two",
        finding.message,
    )
    assert finding.against is not None
    assert finding.against.ptx_text == "st.global.u32 [%rd2+128], 7;"


@pytest.mark.parametrize("sanitize", [True, False])
def test_a_device_that_is_told_nothing_is_a_deadlock(sanitize: bool) -> None:
    body = SENDS.format(release="", order="acquire.sys", then="")
    words = "k on device 0, block (0,0,0) waits for another block, as all do that have not ended"
    if sanitize:
        assert [(f.kind, f.message) for f in sent(body)[0]] == [("deadlock", words)]
    else:
        with pytest.raises(EmulationError, match=re.escape(words)):
            sent(body, sanitize=False)


def test_all_devices_have_variables_of_their_own() -> None:
    text = kernel(
        f"{HEAD}\nmov.u64 %rd3, v;\natom.global.add.u32 %r4, [%rd3], 1;\nst.global.u32 [%rd1+4], %r4;", "u64", "u64", "u32",
        shared=".global .align 4 .b8 v[4];",
    )  # fmt: skip
    memory = [np.full(64, 9, np.uint32) for _ in range(2)]
    args = [[memory[rank], memory[1 - rank], np.uint32(rank)] for rank in range(2)]
    assert run_together(text, "k", 1, 1, args) == []
    assert [int(one[1]) for one in memory] == [0, 0]
    one = compile_module(text).kernel("k")
    with pytest.raises(ArgumentError, match="each device has variables of its own"):
        launch_together([Launch(one, 1, 1, bytes(20)) for _ in range(2)])


def test_only_so_many_blocks_are_there_at_once() -> None:
    with pytest.raises(ArgumentError, match=rf"up to {MOST_BLOCKS - 2} blocks of 2 devices can .*; the grids have 1024"):
        sent("ret;", grid=MOST_BLOCKS // 2)


def test_addresses_are_of_arrays_of_the_same_run() -> None:
    text = kernel("ld.param.u64 %rd1, [p0];", "u64")
    with pytest.raises(ArgumentError, match="addresses are of arrays that are arguments of the same run"):
        run_together(text, "k", 1, 1, [[Addresses([np.zeros(4)])]])


@pytest.mark.parametrize("writes", [False, True])
def test_what_a_device_did_before_is_over_for_another_when_it_was_told(writes: bool) -> None:
    """Device 1 writes where device 0 has read or written in an earlier launch: after it has waited for a word of device 0, or
    not."""
    waits = """setp.eq.u32 %p1, %r1, 0;\n@%p1 st.release.sys.global.u32 [%rd2], 1;\n@%p1 ret;\nPOLL:\nnanosleep.u32 20;
    ld.acquire.sys.global.u32 %r4, [%rd1];\nsetp.eq.u32 %p2, %r4, 0;\n@%p2 bra POLL;\n"""
    for before, kinds in ((waits, []), ("setp.eq.u32 %p1, %r1, 0;\n@%p1 ret;\n", ["race"])):
        one = compile_module(kernel(f"{HEAD}\n{before}st.global.u32 [%rd2+128], 7;", "u64", "u64", "u32"), sanitize=True)
        memory = [np.zeros(64, np.uint32) for _ in range(2)]
        at = [array.ctypes.data for array in memory]
        launches = []
        for rank in range(2):
            known = MemoryMap()
            known.add(at[rank], 256, "it")
            params = np.array([at[rank], at[1 - rank], rank], np.uint64).tobytes()[:20]
            earlier = [Touched(at[0] + 96, 64, writes)] if rank == 0 else []
            launches.append(Launch(one.kernel("k"), 1, 1, params, memory=known, earlier=earlier))
        found = launch_together(launches)
        assert [f.kind for f in found] == kinds
        if found:
            did = "wrote" if writes else "read"
            assert found[0].message.endswith(f"that a launch before on device 0 {did}, and nothing orders the two")
            assert found[0].against is None


@dataclass(frozen=True)
class Gathers(KernelType):
    """out = the sum of what `count` gathers in a row have put into `turns` arrays in turn; gather g is of x + g."""

    family: ClassVar[str] = "test"
    name = "gathers"
    ranks: int = 2
    columns: int = 64
    turns: int = 2
    count: int = 4
    blocks: int = 2

    @property
    def n(self) -> int:
        return self.ranks * self.columns

    def signature(self) -> Signature:
        arrays: Signature = {"out": update(F32, self.n), "x": read(F32, self.columns)}
        for turn in range(self.turns):
            arrays |= {f"y{turn}": update(F32, self.n), f"ys{turn}": addresses(f"y{turn}", self.ranks)}
        flags = {"flags": update(U32, self.blocks, self.ranks), "peers": addresses("flags", self.ranks)}
        return arrays | flags | {"rank": Scalar(U32, 0, self.ranks - 1)}

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.blocks, block=64, ranks=self.ranks)

    def emit(self, k: KernelBuilder) -> None:
        """A block gathers and reads a share of its own: what the others gather it does not wait for."""
        rank, block = k.arg.rank, k.ctaid.x
        share = self.columns // self.blocks
        for g in range(self.count):
            arrays: Any = k.argument(f"ys{g % self.turns}")
            mine: Any = k.argument(f"y{g % self.turns}")
            with k.when(k.tid.x < share):
                column = block * share + k.tid.x
                value = k.load(k.arg.x[column]) + float(g)
                for other in range(self.ranks):
                    k.store(arrays[other][rank * self.columns + column], value)
            number = k.signal_peers(k.arg.flags, k.arg.peers, rank, block)
            k.wait_for_peers(k.arg.flags, rank, block, number)
            for i in k.strided(k.tid.x, self.ranks * share, step=64):
                at = i // share * self.columns + block * share + i % share
                k.store(k.arg.out[at], k.load(k.arg.out[at]) + k.load(mine[at]))

    def reference(self, **arguments: Any) -> Mapping[str, Array]:
        raise NotImplementedError

    def work(self) -> Work:
        return Work(0, 1)

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls()

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        raise NotImplementedError

    def tolerance(self, **arguments: Any) -> Mapping[str, Array | float]:
        raise NotImplementedError


@cache
def text_of(gathers: Gathers) -> str:
    return emit(gathers).text


def gathered(
    gathers: Gathers, *, broken: Callable[[str], str] = str, seed: int | None = None, first: int = 0, launches: int = 1
) -> tuple[list[Finding], list[Array]]:
    """What is found in so many launches, whose flags start at a number, and the sums of each rank."""
    ranks = range(gathers.ranks)
    x = [np.arange(gathers.columns, dtype=np.float32) + 100 * rank for rank in ranks]
    out = [np.zeros(gathers.n, np.float32) for _ in ranks]
    ys = [[np.zeros(gathers.n, np.float32) for _ in ranks] for _ in range(gathers.turns)]
    flags = [np.full((gathers.blocks, gathers.ranks), first, np.uint32) for _ in ranks]
    args = [
        [out[r], x[r], *(a for y in ys for a in (uninitialised(y[r]), Addresses(y))), flags[r], Addresses(flags), np.uint32(r)]
        for r in ranks
    ]
    launch, text = gathers.launch(), broken(text_of(gathers))
    assert broken is str or text != text_of(gathers)
    found = [f for _ in range(launches) for f in run_together(text, "gathers", launch.grid, launch.block, args, seed=seed)]
    if not found:
        told = (first + launches * gathers.count) % 2**32
        assert all((one == told).all() for one in flags)
    return found, out


def expected(gathers: Gathers, launches: int = 1) -> Array:
    whole = np.concatenate([np.arange(gathers.columns, dtype=np.float32) + 100 * rank for rank in range(gathers.ranks)])
    return launches * (gathers.count * whole + sum(range(gathers.count)))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("first", [0, 2**32 - 3, 2**31 - 3])
def test_right_gathers_are_clean_in_any_order_and_across_the_end_of_the_numbers(ranks: int, first: int) -> None:
    gathers = Gathers(ranks, blocks=4 // ranks)
    for seed in (None, *range(6)):
        found, sums = gathered(gathers, seed=seed, first=first, launches=2)
        assert found == []
        assert all((one == expected(gathers, launches=2)).all() for one in sums)


def without(pattern: str, by: str = "") -> Callable[[str], str]:
    return lambda text: re.sub(pattern, by, text, flags=re.MULTILINE)


BROKEN = {
    "no flag is written": (without(r"^ +st\.release\.sys.*\n"), "deadlock"),
    "nobody waits": (without(r"^ +@%p\d+ bra \$poll_\d+;\n|^ +ld\.acquire\.sys.*\n"), "race"),
    "the flag is relaxed": (without(r"st\.release\.sys", "st.relaxed.sys"), "race"),
    "the flag is plain": (without(r"st\.release\.sys", "st"), "race"),
    "the flag is for its own device": (without(r"st\.release\.sys", "st.release.gpu"), "race"),
    "the wait is relaxed": (without(r"ld\.acquire\.sys", "ld.relaxed.sys"), "race"),
    "the wait is for its own device": (without(r"ld\.acquire\.sys", "ld.acquire.gpu"), "race"),
    "the fence is for its own device": (
        without(r"st\.release\.sys", "fence.acq_rel.gpu;\n    st.relaxed.sys"), "race",
    ),
    "no barrier before the flag": (without(r"^ +bar\.sync 0;\n( +setp.*\n)(?= +@!%p\d+ bra \$endif)", r"\1"), "race"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_gather_that_is_broken_in_one_place_is_found(name: str) -> None:
    broken, kind = BROKEN[name]
    for seed in (None, 0, 1):
        found, _ = gathered(Gathers(count=2), broken=broken, seed=seed)
        assert kind in {f.kind for f in found}


def test_a_fence_of_the_system_and_a_relaxed_flag_are_as_good() -> None:
    fenced = without(r"st\.release\.sys", "fence.acq_rel.sys;\n    st.relaxed.sys")
    for seed in (None, 0, 1):
        assert gathered(Gathers(count=2), broken=fenced, seed=seed)[0] == []


def test_an_array_that_is_gathered_into_again_at_once_is_found() -> None:
    for seed in (None, *range(5)):
        found, _ = gathered(Gathers(turns=1, count=2), seed=seed)
        assert {f.kind for f in found} == {"race"}
        assert all(" on device " in f.message for f in found)
