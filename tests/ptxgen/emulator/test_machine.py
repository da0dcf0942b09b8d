"""Launching: arguments, limits, orders, workers, the cache of compiled code, kernels that cannot finish."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxgen.emulator import EmulationError, MemoryMap, codegen, compile_module, run
from ptxgen.emulator.runtime import link
from ptxgen.emulator.runtime.access import sorter
from ptxgen.emulator.runtime.builder import RuntimeFunction
from ptxgen.emulator.runtime.function import runtime_function
from ptxgen.errors import ArgumentError, ParseError
from tests.ptxgen.emulator.ptx import kernel

POINTER = "ld.param.u64 %rd1, [p0];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\n"
INDEX = POINTER + "mad.lo.u32 %r4, %r2, %r3, %r1;\nmul.wide.u32 %rd2, %r4, 4;\nadd.u64 %rd3, %rd1, %rd2;\n"
FILL = kernel(INDEX + "ld.param.u32 %r5, [p1];\nadd.u32 %r5, %r5, %r4;\nst.global.u32 [%rd3], %r5;", "u64", "u32")
LOOP = kernel("L1:\nbra L1;", "u64")


def array(n: int = 64) -> np.ndarray[Any, Any]:
    return np.zeros(n, np.uint32)


def pointer(x: np.ndarray[Any, Any]) -> bytes:
    return int(x.ctypes.data).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"takes 2 arguments, got 0: p0 \(\.u64\), p1 \(\.u32\)"),
        ([array()[::2], np.uint32(0)], "p0 got an array that is not C-contiguous"),
        ([array(), array()], r"p1 is \.u32 and got an array; an address is \.u64, \.s64 or \.b64"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        run(FILL, "k", 1, 32, arguments)


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        (1, 1025, 0, "1025 threads; 1 to 1024"),
        (1, 0, 0, "0 threads"),
        (1, (1, 1, 65), 0, "z up to 64"),
        ((1, 1 << 16), 32, 0, "out of range"),
        (0, 32, 0, "out of range"),
        ((1, 1, 1, 1), 32, 0, "up to three"),
        (-1, 32, 0, "up to three"),
        (1, 32, 1 << 20, "the most is 232448"),
        (1, 32, -1, "dynamic bytes"),
        ("x", 32, 0, "whole number"),
    ],
)
def test_a_launch_that_no_gpu_would_take(grid: Any, block: Any, shared: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        run(FILL, "k", grid, block, [array(), np.uint32(0)], shared=shared)


def test_a_missing_entry_lists_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="no entry 'nope'; the module has k"):
        run(FILL, "nope", 1, 1, [])


@pytest.mark.parametrize(
    ("directive", "block", "message"),
    [
        (".maxntid 8, 4", (16, 2), ""),
        (".maxntid 8, 4", 33, r"33 threads; .maxntid allows 32"),
        (".reqntid 8, 4", (8, 4), ""),
        (".reqntid 8, 4", 32, r"block of \(32, 1, 1\); .reqntid allows \(8, 4, 1\) only"),
    ],
)
def test_a_block_is_what_the_text_allows(directive: str, block: Any, message: str, tmp_path: Path) -> None:
    text = FILL.replace("p1)", f"p1)\n{directive}")
    x = array()
    for _ in range(2):
        k = compile_module(text, cache_dir=tmp_path).kernel("k")
        if message:
            with pytest.raises(ArgumentError, match=message):
                k.launch(1, block, pointer(x) + bytes(4))
        else:
            assert not k.launch(1, block, pointer(x) + bytes(4))


def test_a_failed_launch_on_several_workers_leaves_each_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.emulator.machine._PARALLEL_NS", 0)  # however fast the machine is, blocks are spread
    check = "ld.param.u32 %r6, [p1];\nsetp.eq.u32 %p1, %r2, %r6;\n@%p1 trap;\nst.global.u32 [%rd3], %r4;"
    k = compile_module(kernel(INDEX + check, "u64", "u32")).kernel("k")
    x = array(1 << 20)

    def launch(trapping: int) -> None:
        k.launch(1 << 14, 64, pointer(x) + trapping.to_bytes(4, "little"), workers=3)

    launch(1 << 20)
    for trapping in (4000, 2000, 4095, 10):
        with pytest.raises(EmulationError, match=rf"block \({trapping},0,0\) executes trap"):
            launch(trapping)
    kept = [scratch.address for scratches in k._scratch.values() for scratch in scratches]
    assert len(kept) == len(set(kept)) == 3


def test_any_number_of_workers_gives_the_same_bits() -> None:
    found = []
    for workers in (1, 2, 5):
        x = array(1 << 16)
        k = compile_module(FILL).kernel("k")
        for _ in range(3):  # the first launch measures, later ones are spread
            k.launch(1 << 10, 64, pointer(x) + (7).to_bytes(4, "little"), workers=workers)
        found.append(x)
    assert all(np.array_equal(x, np.arange(1 << 16) + 7) for x in found)


ORDER = kernel(
    INDEX + "ld.param.u64 %rd4, [p1];\natom.global.add.u32 %r6, [%rd4], 1;\nst.global.u32 [%rd3], %r6;", "u64", "u64"
)


def test_a_seed_shuffles_blocks_and_warps_and_gives_the_same_order_again() -> None:
    def order(seed: int | None) -> list[int]:
        x, counter = array(8 * 64), array(1)
        assert not run(ORDER, "k", 8, 64, [x, counter], seed=seed, sanitize=False)
        assert sorted(x) == list(range(8 * 64))
        return list(x)

    assert order(None) == list(range(8 * 64))
    assert order(1) == order(1) != order(None)
    assert len({tuple(order(s)) for s in range(4)}) > 1


def test_compiled_code_comes_back_from_disk_and_damage_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def result() -> np.ndarray[Any, Any]:
        x = array(32)
        compile_module(FILL, cache_dir=tmp_path).kernel("k").launch(1, 32, pointer(x) + (1).to_bytes(4, "little"))
        return x

    first = result()
    (path,) = tmp_path.glob("*.o")
    whole = path.read_bytes()
    assert np.array_equal(result(), first)
    for damaged in (whole[:-5], whole[:10], b"", whole[:200] + b"\0" + whole[201:]):
        path.write_bytes(damaged)
        assert np.array_equal(result(), first)
        assert path.read_bytes() == whole
    assert "rebuilding damaged cache entry" in caplog.text


def test_a_cached_kernel_is_not_parsed_again(tmp_path: Path) -> None:
    compile_module(FILL, cache_dir=tmp_path).kernel("k")
    module = compile_module(FILL, cache_dir=tmp_path)
    assert [p.name for p in module.kernel("k").parameters] == ["p0", "p1"]
    assert module.image._program is None


def test_an_endless_loop_is_an_error_without_the_sanitiser_too() -> None:
    with pytest.raises(EmulationError, match=r"makes no progress(.|\n)*ptx line 11   bra L1;"):
        compile_module(LOOP).kernel("k").launch(1, 64, bytes(8), budget=1 << 18)


def test_a_loop_that_waits_at_barriers_for_ever_ends() -> None:
    text = kernel("L1:\nbar.sync 0;\nbra L1;", "u64")
    with pytest.raises(EmulationError, match="makes no progress"):
        compile_module(text).kernel("k").launch(1, 64, bytes(8), budget=1 << 18)


def test_a_warp_may_wait_for_another_warp_of_its_block() -> None:
    shared = ".shared .align 4 .b8 s[4];"
    text = kernel(
        POINTER + "mov.u32 %r5, s;\nsetp.eq.u32 %p1, %r1, 0;\nmov.u32 %r6, 0;\n@%p1 st.shared.u32 [%r5], %r6;\nbar.sync 0;\n"
        "setp.lt.u32 %p2, %r1, 32;\n@!%p2 bra WRITE;\nSPIN:\nld.volatile.shared.u32 %r7, [%r5];\nsetp.eq.u32 %p3, %r7, 0;\n"
        "@%p3 bra SPIN;\n@%p1 st.global.u32 [%rd1], %r7;\nret;\nWRITE:\nmov.u32 %r6, 9;\nst.volatile.shared.u32 [%r5], %r6;",
        "u64",
        shared=shared,
    )
    x = array(1)
    run(text, "k", 1, 64, [x], sanitize=False)
    assert x[0] == 9


def test_a_trap_is_an_error_that_names_its_line() -> None:
    with pytest.raises(EmulationError, match="executes trap") as caught:
        run(kernel("trap;", "u64"), "k", 1, 32, [array()], sanitize=False)
    assert caught.value.finding.ptx_line == 10


def test_named_barriers_join_the_threads_they_ask_for() -> None:
    text = kernel(
        POINTER + "mov.u32 %r5, s;\nshl.b32 %r6, %r1, 2;\nadd.u32 %r6, %r5, %r6;\nst.shared.u32 [%r6], %r1;\n"
        "shr.u32 %r7, %r1, 6;\nadd.u32 %r7, %r7, 1;\nbar.sync %r7, 64;\n"
        "xor.b32 %r8, %r1, 32;\nshl.b32 %r8, %r8, 2;\nadd.u32 %r8, %r5, %r8;\nld.shared.u32 %r9, [%r8];\n"
        "mul.wide.u32 %rd2, %r1, 4;\nadd.u64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r9;",
        "u64",
        shared=".shared .align 4 .b8 s[512];",
    )
    x = array(128)
    assert not run(text, "k", 1, 128, [x], seed=5)
    assert x.tolist() == [i ^ 32 for i in range(128)]


def test_shadows_of_a_memory_map_outlive_a_launch() -> None:
    reads = kernel(INDEX + "ld.global.u32 %r5, [%rd3];", "u64")
    x, memory = array(32), MemoryMap()
    memory.add(x.ctypes.data, x.nbytes, "x", initialised=False)
    reader = compile_module(reads, sanitize=True).kernel("k")
    assert [f.kind for f in reader.launch(1, 32, pointer(x), memory=memory)] == ["uninitialised"]
    writer = compile_module(FILL, sanitize=True).kernel("k")
    assert not writer.launch(1, 16, pointer(x) + bytes(4), memory=memory)
    assert [f.count for f in reader.launch(1, 32, pointer(x), memory=memory)] == [16]
    memory.mark_written(x.ctypes.data)
    assert not reader.launch(1, 32, pointer(x), memory=memory)


def test_recursion_and_missing_functions_are_parse_errors() -> None:
    recursive = ".version 8.0\n.target sm_90\n.address_size 64\n.func f() { call f; ret; }\n.entry k() { call f; ret; }\n"
    with pytest.raises(ParseError, match="f calls itself"):
        run(recursive, "k", 1, 1, [])
    missing = ".version 8.0\n.target sm_90\n.address_size 64\n.extern .func f();\n.entry k() { call f; ret; }\n"
    with pytest.raises(ParseError, match="does not define"):
        run(missing, "k", 1, 1, [])


@pytest.mark.parametrize("source", ["target.py", "types.py", "isa/effects.py", "emulator/memory.py"])
def test_code_of_other_sources_is_not_taken_from_the_cache(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read_bytes, changed = Path.read_bytes, Path(codegen.__file__).parents[1] / source
    before = codegen.source_version.__wrapped__()
    monkeypatch.setattr(Path, "read_bytes", lambda path: read_bytes(path) + b"#" * (path == changed))
    assert codegen.source_version.__wrapped__() != before


def test_threads_that_need_a_helper_first_register_it_once() -> None:
    step, threads = 977, 8  # a step that no kernel has
    barrier = threading.Barrier(threads)

    def ask(_: int) -> RuntimeFunction:
        barrier.wait()
        return sorter.__wrapped__(step)  # as a thread does that asks before the cache has the answer of another

    with ThreadPoolExecutor(threads) as pool:
        first, *others = pool.map(ask, range(threads))
    assert all(other is first for other in others)
    assert link.objects([first], quickly=True)


def test_a_part_of_the_runtime_has_no_two_functions_of_one_name() -> None:
    with pytest.raises(TypeError, match=r"runtime.shadow has another runtime function called touch"):

        @runtime_function("void", name="touch", part="ptxgen.emulator.runtime.shadow")
        def another(b: object) -> None: ...


def test_importing_the_emulator_loads_neither_llvm_nor_numpy() -> None:
    import subprocess
    import sys

    code = "import sys, ptxgen.emulator; print(sorted({'llvmlite', 'numpy', 'cuda'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_dot_products_of_bytes_are_the_same_with_the_sanitiser_whatever_their_types() -> None:
    signs = [(a, b) for a in "us" for b in "us"]
    body = INDEX + "ld.param.u32 %r8, [p1];\nmad.lo.u32 %r5, %r4, 0x9e3779b9, %r8;\nmov.u32 %r6, 0;\n"
    for a, b in signs:
        d = "u" if a == b == "u" else "s"
        body += f"dp4a.{a}32.{b}32 %r6, %r5, %r8, %r6;\ndp4a.{b}32.{a}32 %r6, %r8, 0x80ff7f01, %r6;\n"
        body += f"dp2a.hi.{a}32.{b}32 %r6, %r5, %r8, %r6;\nshr.{d}32 %r6, %r6, 1;\n"
    text = kernel(body + "st.global.u32 [%rd3], %r6;", "u64", "u32")
    results = []
    for sanitize in (False, True):
        results.append(array())
        assert run(text, "k", 2, 32, [results[-1], np.uint32(0xDEADBEEF)], sanitize=sanitize) == []
    assert len(set(results[0])) == 64
    assert np.array_equal(results[0], results[1])
