"""Races on global memory: found in every order of blocks and warps, and not where atomics, fences and flags prevent them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import Finding, MemoryMap, compile_module, run, uninitialised
from tests.ptxgen.emulator.nvrtc import compile_cuda
from tests.ptxgen.emulator.ptx import FIRST_LINE, kernel

SEEDS = [None, 0, 1, 2, 3]
"""Both orders of two blocks are among them, and of two warps."""
HEAD = "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nshl.b32 %r3, %r2, 2;\ncvt.u64.u32 %rd2, %r3;"
BODY = FIRST_LINE + 5  # the line after HEAD; %r1 is the thread, %r2 the block, %rd1 the array


def ints(n: int = 64) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.uint32)


def launch(body: str, *args: Any, grid: int = 2, block: int = 1, seed: int | None = None, shared: str = "") -> list[Finding]:
    arrays = args or (ints(),)
    return run(kernel(f"{HEAD}\n{body}", *["u64"] * len(arrays), shared=shared), "k", grid, block, list(arrays), seed=seed)


def races(body: str, *args: Any, grid: int = 2, block: int = 1, shared: str = "") -> list[bool]:
    """Whether there is a race, and nothing else, for each of the seeds."""
    found = [launch(body, *args, grid=grid, block=block, seed=seed, shared=shared) for seed in SEEDS]
    assert {f.kind for f in itertools.chain(*found)} <= {"race"}, found
    return [bool(f) for f in found]


def always(verdicts: list[bool]) -> bool:
    return all(verdicts)


def test_the_seeds_are_both_orders_of_two_blocks() -> None:
    last = {seed: ints() for seed in SEEDS}
    for seed, x in last.items():
        launch("st.volatile.global.u32 [%rd1], %r2;", x, seed=seed)
    assert {int(x[0]) for x in last.values()} == {0, 1}


FIRST_BLOCK = "setp.eq.u32 %p1, %r2, 0;\n@!%p1 bra OTHER;\n{first}\nret;\nOTHER:\n{other}"


@pytest.mark.parametrize(
    ("first", "other", "wrong"),
    [
        ("ld.global.u32 %r4, [%rd1];", "ld.global.u32 %r4, [%rd1];", False),
        ("ld.global.u32 %r4, [%rd1];", "st.global.u32 [%rd1+4], %r1;", False),
        ("ld.global.u32 %r4, [%rd1];", "st.global.u32 [%rd1], %r1;", True),
        ("st.global.u32 [%rd1], %r1;", "st.global.u32 [%rd1], %r1;", True),  # the same value, too: which is there is luck
        ("st.global.u8 [%rd1], %r1;", "st.global.u8 [%rd1+1], %r1;", False),
        ("st.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};", "ld.global.u8 %r4, [%rd1+15];", True),
        ("st.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};", "ld.global.u8 %r4, [%rd1+16];", False),
        ("atom.global.add.u32 %r4, [%rd1], 1;", "red.global.add.u32 [%rd1], 1;", False),
        ("atom.global.cas.b32 %r4, [%rd1], 0, 1;", "atom.global.exch.b32 %r4, [%rd1], 1;", False),
        ("atom.global.add.u32 %r4, [%rd1], 1;", "ld.global.u32 %r4, [%rd1];", True),
        ("atom.global.add.u32 %r4, [%rd1], 1;", "ld.volatile.global.u32 %r4, [%rd1];", False),
        ("atom.global.add.u32 %r4, [%rd1], 1;", "st.global.u32 [%rd1], %r1;", True),
        ("atom.cta.global.add.u32 %r4, [%rd1], 1;", "atom.global.add.u32 %r4, [%rd1], 1;", True),
        ("st.volatile.global.u32 [%rd1], %r1;", "ld.volatile.global.u32 %r4, [%rd1];", False),
        ("st.volatile.global.u32 [%rd1], %r1;", "ld.global.u32 %r4, [%rd1];", True),
        ("st.relaxed.gpu.global.u32 [%rd1], %r1;", "ld.relaxed.sys.global.u32 %r4, [%rd1];", False),
        ("st.relaxed.cta.global.u32 [%rd1], %r1;", "ld.relaxed.gpu.global.u32 %r4, [%rd1];", True),
        # What a thread does with atomics later takes nothing back of what it did before
        ("st.global.u32 [%rd1], %r1;\nred.global.add.u32 [%rd1], 1;", "red.global.add.u32 [%rd1], 1;", True),
        ("ld.global.u32 %r4, [%rd1];\nld.volatile.global.u32 %r4, [%rd1];", "red.global.add.u32 [%rd1], 1;", True),
        ("red.global.add.u32 [%rd1], 1;", "red.global.add.u32 [%rd1], 1;\nld.global.u32 %r4, [%rd1];", True),
        ("cvta.global.u64 %rd5, %rd1;\nst.u32 [%rd5], %r1;", "ld.global.nc.u32 %r4, [%rd1];", True),
    ],
)
def test_two_blocks_that_touch_one_place(first: str, other: str, wrong: bool) -> None:
    body = FIRST_BLOCK.format(first=first, other=other)
    assert races(body) == [wrong] * len(SEEDS)


@pytest.mark.parametrize("barrier", ["", "bar.sync 0;"])
def test_two_warps_of_a_block_need_a_barrier(barrier: str) -> None:
    body = f"""xor.b32 %r4, %r1, 32;\nmul.wide.u32 %rd3, %r1, 4;\nmul.wide.u32 %rd4, %r4, 4;\nadd.u64 %rd3, %rd1, %rd3;
    add.u64 %rd4, %rd1, %rd4;\nst.global.u32 [%rd3], %r1;\n{barrier}\nld.global.u32 %r5, [%rd4];"""
    assert races(body, grid=1, block=64) == [not barrier] * len(SEEDS)


def test_one_reader_among_many_is_found_in_any_order() -> None:
    """Every thread of both blocks reads, and one thread writes what only its own block's first warp has read before."""
    body = """setp.eq.u32 %p1, %r2, {block};\nsetp.eq.and.u32 %p1, %r1, {thread}, %p1;\nld.global.u32 %r4, [%rd1];
    {barrier}\n@%p1 st.global.u32 [%rd1], %r4;"""
    for block, thread in itertools.product((0, 1), (0, 31, 32, 63)):
        assert always(races(body.format(block=block, thread=thread, barrier=""), block=64))
        assert always(races(body.format(block=block, thread=thread, barrier="bar.sync 0;"), block=64))
        alone = body.format(block=block, thread=thread, barrier="bar.sync 0;")
        assert not any(races(alone, grid=1, block=64))


def test_a_race_names_both_blocks_threads_and_lines() -> None:
    body = FIRST_BLOCK.format(
        first="setp.eq.u32 %p2, %r1, 3;\n@%p2 st.global.u32 [%rd1+8], %r1;",
        other="setp.eq.u32 %p2, %r1, 5;\n@%p2 ld.global.u32 %r4, [%rd1+8];",
    )
    (f,) = launch(body, ints(), block=8)
    assert (f.kind, f.block, f.thread, f.ptx_line, f.count) == ("race", (1, 0, 0), (5, 0, 0), BODY + 7, 1)
    assert f.against is not None
    assert (f.against.ptx_line, f.against.ptx_text) == (BODY + 3, "@%p2 st.global.u32 [%rd1+8], %r1;")
    head = "k, thread (5,0,0) of block (1,0,0) reads "
    assert f.message.startswith(head)
    assert f.message.endswith(
        " (byte 8 of the array of p0, which has 256) that thread (3,0,0) of block (0,0,0) wrote, and nothing orders the two"
    )
    assert str(f).splitlines()[1:] == [
        f"  ptx line {BODY + 7}   @%p2 ld.global.u32 %r4, [%rd1+8];",
        "against",
        f"  ptx line {BODY + 3}   @%p2 st.global.u32 [%rd1+8], %r1;",
    ]


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_blocks_in_any_order_have_their_own_names(seed: int) -> None:
    text = kernel(f"{HEAD}\nmov.u32 %r5, %ctaid.y;\nst.global.u32 [%rd1], %r5;", "u64")
    (f,) = run(text, "k", (1, 3), 1, [x := ints()], seed=seed)
    first = (0, int(f.message.partition("that thread (0,0,0) of block (0,")[2][0]), 0)
    assert first != f.block
    assert {first, f.block, (0, int(x[0]), 0)} == {(0, y, 0) for y in range(3)}
    assert f.count == 2


def test_a_second_launch_comes_after_the_first() -> None:
    module = compile_module(kernel(f"{HEAD}\nadd.u64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;", "u64"), sanitize=True)
    x, memory = ints(), MemoryMap()
    memory.add(x.ctypes.data, x.nbytes, "x")
    for _ in range(2):
        assert not module.kernel("k").launch(2, 1, x.ctypes.data.to_bytes(8, "little"), memory=memory)


def test_allocations_that_overlap_are_one_memory() -> None:
    module = compile_module(
        kernel(
            HEAD + "\nld.param.u64 %rd3, [p1];\n"
            + FIRST_BLOCK.format(first="st.global.u32 [%rd1+32], %r1;", other="ld.global.v4.u32 {%r4,%r5,%r6,%r7}, [%rd3];"),
            "u64", "u64",
        ),
        sanitize=True,
    )  # fmt: skip
    x, memory = ints(), MemoryMap()
    memory.add(x.ctypes.data, 48, "the first part")
    memory.add(x.ctypes.data + 32, 96, "the second")
    for address in (32, 40):
        params = x.ctypes.data.to_bytes(8, "little") + (x.ctypes.data + address - address % 16).to_bytes(8, "little")
        assert [f.kind for f in module.kernel("k").launch(2, 1, params, memory=memory)] == ["race"]


def test_a_pointer_that_comes_from_memory_may_point_anywhere() -> None:
    table, x = np.zeros(1, np.uint64), ints()
    text = kernel(f"{HEAD}\nld.global.u64 %rd3, [%rd1];\nst.global.u32 [%rd3], %r1;", "u64", "u64")
    module = compile_module(text, sanitize=True)
    memory = MemoryMap()
    for array in (table, x):
        memory.add(array.ctypes.data, array.nbytes, "it")
    table[0] = x.ctypes.data
    params = table.ctypes.data.to_bytes(8, "little") + x.ctypes.data.to_bytes(8, "little")
    assert [f.kind for f in module.kernel("k").launch(2, 1, params, memory=memory)] == ["race"]


def test_a_variable_of_the_module_can_be_raced_for() -> None:
    body = "mov.u64 %rd3, v;\nst.global.u32 [%rd3], %r1;"
    assert always(races(body, shared=".global .align 4 .b8 v[8];"))
    assert not any(
        races(body.replace("st.global.u32 [%rd3], %r1", "red.global.add.u32 [%rd3], 1"), shared=".global .align 4 .b8 v[8];")
    )


@pytest.mark.parametrize(("taken", "wrong"), [(0, False), (4, False), (5, True), (8, True)])
def test_what_a_copy_takes_can_be_raced_for(taken: int, wrong: bool) -> None:
    copy = f"mov.u32 %r9, s;\ncp.async.ca.shared.global [%r9], [%rd1], 8, {taken};\ncp.async.wait_all;"
    body = FIRST_BLOCK.format(first="st.global.u32 [%rd1+4], %r1;", other=copy)
    verdicts = races(body, shared=".shared .align 16 .b8 s[16];")
    assert always(verdicts) if wrong else not any(verdicts)


# Fences and flags
LAST_BLOCK = """setp.eq.u32 %p1, %r1, 0;\nadd.u64 %rd3, %rd1, %rd2;\n@%p1 st.global.u32 [%rd3+64], %r2;\n{after_store}
bar.sync 0;
{before_flag}\n@%p1 {flag};\n{after_flag}
mov.u32 %r9, s;\n@%p1 st.shared.u32 [%r9], %r4;\nbar.sync 0;\nld.shared.u32 %r4, [%r9];
setp.ne.u32 %p2, %r4, 2;\n@%p2 ret;\n{before_loads}
ld.global.u32 %r5, [%rd1+64];\nld.global.u32 %r6, [%rd1+68];\nld.global.u32 %r7, [%rd1+72];"""
"""The last of three blocks, as the counter at %rd1 says, reads what a thread of each has written."""
COUNT = "atom.global.add.u32 %r4, [%rd1], 1"
FENCE = "membar.gl;"


@pytest.mark.parametrize(
    ("parts", "right"),
    [
        ({"before_flag": FENCE, "after_flag": FENCE}, True),
        ({"before_flag": "fence.acq_rel.gpu;", "before_loads": "fence.sc.sys;"}, True),
        ({"after_store": FENCE, "before_loads": FENCE}, True),
        ({"flag": "atom.acq_rel.gpu.global.add.u32 %r4, [%rd1], 1"}, True),
        ({"before_flag": FENCE, "flag": "atom.acquire.gpu.global.add.u32 %r4, [%rd1], 1"}, True),
        ({"after_flag": FENCE, "flag": "atom.release.gpu.global.add.u32 %r4, [%rd1], 1"}, True),
        ({}, False),
        ({"before_flag": FENCE}, False),
        ({"after_flag": FENCE}, False),
        ({"before_loads": FENCE}, False),
        ({"before_flag": "membar.cta;", "after_flag": FENCE}, False),
        ({"before_flag": FENCE, "after_flag": "fence.acq_rel.cta;"}, False),
        ({"flag": "atom.release.gpu.global.add.u32 %r4, [%rd1], 1"}, False),
        ({"flag": "atom.acquire.gpu.global.add.u32 %r4, [%rd1], 1"}, False),
        ({"flag": "atom.acq_rel.cta.global.add.u32 %r4, [%rd1], 1"}, False),
    ],
)
def test_the_last_block_reads_what_all_have_written(parts: dict[str, str], right: bool) -> None:
    filled = {"after_store": "", "before_flag": "", "flag": COUNT, "after_flag": "", "before_loads": ""} | parts
    shared = ".shared .align 4 .b8 s[4];"
    verdicts = races(LAST_BLOCK.format(**filled), grid=3, block=64, shared=shared)
    assert verdicts == [not right] * len(SEEDS)


def test_a_fence_is_for_what_comes_before_it() -> None:
    late = LAST_BLOCK.format(
        after_store="",
        before_flag=FENCE + "\n@%p1 st.global.u32 [%rd3+64], %r2;",
        flag=COUNT,
        after_flag=FENCE,
        before_loads="",
    )
    shared = ".shared .align 4 .b8 s[4];"
    assert always(races(late, grid=3, block=64, shared=shared))


def test_another_flag_publishes_nothing() -> None:
    other = LAST_BLOCK.format(
        after_store="", before_flag=f"{FENCE}\n@%p1 red.global.add.u32 [%rd1+4], 1;\n", flag=COUNT, after_flag=FENCE,
        before_loads="",
    ).replace(FENCE + "\n@%p1 red", "@%p1 red", 1)  # fmt: skip
    wrong = other.replace("@%p1 red", f"{FENCE}\n@%p1 red", 1)
    shared = ".shared .align 4 .b8 s[4];"
    assert always(races(other, grid=3, block=64, shared=shared))
    assert not any(races(wrong, grid=3, block=64, shared=shared))  # the fence is before the counter, too


PASS_ON = """add.u64 %rd3, %rd1, %rd2;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra WRITE;
{load} %r4, [%rd3+60];\n{after}\nsetp.eq.u32 %p2, %r4, 0;\n@%p2 ret;\nld.global.u32 %r5, [%rd1];\nbra FLAG;
WRITE:\nst.global.u32 [%rd1], %r1;\nFLAG:\nmov.u32 %r6, 1;\n{before}\n{store} [%rd3+64], %r6;"""
"""Block 0 writes data and raises a flag; each next one, if its predecessor's flag is up, reads the data and raises its own."""


@pytest.mark.parametrize(
    ("load", "after", "before", "store", "right"),
    [
        ("ld.acquire.gpu.global.u32", "", "", "st.release.gpu.global.u32", True),
        ("ld.volatile.global.u32", FENCE, FENCE, "st.volatile.global.u32", True),
        ("ld.relaxed.gpu.global.u32", FENCE, "", "st.release.gpu.global.u32", True),
        ("ld.acquire.gpu.global.u32", "", FENCE, "st.relaxed.gpu.global.u32", True),
        ("ld.relaxed.gpu.global.u32", "", "", "st.release.gpu.global.u32", False),
        ("ld.acquire.gpu.global.u32", "", "", "st.relaxed.gpu.global.u32", False),
        ("ld.volatile.global.u32", "", FENCE, "st.volatile.global.u32", False),
        ("ld.volatile.global.u32", FENCE, "", "st.volatile.global.u32", False),
        ("ld.acquire.cta.global.u32", "", "", "st.release.gpu.global.u32", False),
        ("ld.acquire.gpu.global.u32", "", "", "st.release.cta.global.u32", False),
        ("ld.global.u32", FENCE, FENCE, "st.global.u32", False),
    ],
)
def test_a_flag_publishes_data_from_block_to_block(load: str, after: str, before: str, store: str, right: bool) -> None:
    body = PASS_ON.format(load=load, after=after, before=before, store=store)
    assert {f.kind for f in launch(body, ints(), grid=4)} == (set() if right else {"race"})


def test_a_flag_that_was_not_raised_yet_orders_nothing() -> None:
    """The reader reads the data although it has not seen the flag: a race in both orders of the blocks."""
    body = FIRST_BLOCK.format(
        first="st.global.u32 [%rd1], %r1;\nst.release.gpu.global.u32 [%rd1+4], 1;",
        other="{read}\nld.acquire.gpu.global.u32 %r4, [%rd1+4];",
    )
    assert always(races(body.format(read="ld.global.u32 %r5, [%rd1];")))
    assert not any(races(body.format(read="")))


@pytest.mark.parametrize(("fence", "right"), [("membar.cta;", True), ("membar.gl;", True), ("", False)])
@pytest.mark.parametrize("space", ["global", "shared"])
def test_warps_of_a_block_may_use_a_flag(space: str, fence: str, right: bool) -> None:
    flag = "%rd1+128" if space == "global" else "%r9"
    body = f"""mov.u32 %r9, s;\nsetp.eq.u32 %p1, %r1, 0;\nmov.u32 %r6, 0;\n@%p1 st.shared.u32 [%r9], %r6;\nbar.sync 0;
    setp.ge.u32 %p2, %r1, 32;\n@%p2 bra WAIT;\n@%p1 st.global.u32 [%rd1], %r1;\n{fence}
    @%p1 atom.{space}.exch.b32 %r5, [{flag}], 1;\nret;
    WAIT:\natom.{space}.or.b32 %r4, [{flag}], 0;\nsetp.eq.u32 %p3, %r4, 0;\n@%p3 bra WAIT;\n{fence}
    ld.global.u32 %r5, [%rd1];"""
    for seed in SEEDS:
        found = launch(body, ints(), grid=1, block=64, seed=seed, shared=".shared .align 4 .b8 s[4];")
        assert {f.kind for f in found} == (set() if right else {"race"})


LAST_BLOCK_CUDA = """__device__ unsigned int count = 0;
extern "C" __global__ void k(float* total, float* partial, const float* x, int n) {
  __shared__ float s[128]; __shared__ bool last;
  float t = 0; for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) t += x[i];
  s[threadIdx.x] = t; __syncthreads();
  for (int d = 64; d; d >>= 1) { if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d]; __syncthreads(); }
  if (threadIdx.x == 0) { partial[blockIdx.x] = s[0]; FENCE; last = atomicInc(&count, gridDim.x) == gridDim.x - 1; FENCE; }
  __syncthreads();
  if (last && threadIdx.x < 32) {
    float t = 0; for (int i = threadIdx.x; i < gridDim.x; i += 32) t += partial[i];
    for (int d = 16; d; d >>= 1) t += __shfl_xor_sync(~0u, t, d);
    if (!threadIdx.x) *total = t; } }"""


@pytest.mark.parametrize("seed", [None, 5])
def test_a_sum_in_one_launch_as_cuda_programs_do_it(seed: int | None) -> None:
    x = np.ones(3000, np.float32)
    for fence, kinds in (("__threadfence()", set()), ("", {"race"})):
        total, partial = np.zeros(1, np.float32), np.zeros(40, np.float32)
        text = compile_cuda(LAST_BLOCK_CUDA.replace("FENCE", fence))
        found = run(text, "k", 40, 128, [uninitialised(total), uninitialised(partial), x, np.int32(3000)], seed=seed)
        assert {f.kind for f in found} == kinds
        assert total[0] == 3000


LOCK_CUDA = """extern "C" __global__ void k(int* lock, int* sum) {
  if (threadIdx.x) return;
  while (atomicCAS(lock, 0, 1)) ;
  TAKEN; *sum = *sum + 1; FREE; atomicExch(lock, 0); }"""


@pytest.mark.parametrize(("taken", "free", "right"), [("__threadfence()",) * 2 + (True,), ("", "__threadfence()", False)])
def test_a_lock_guards_what_plain_accesses_change(taken: str, free: str, right: bool) -> None:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    found = run(compile_cuda(LOCK_CUDA.replace("TAKEN", taken).replace("FREE", free)), "k", 7, 32, [lock, total])
    assert {f.kind for f in found} == (set() if right else {"race"})
    assert total[0] == 7
