"""What the output projection asks the L2 cache for: the first rows of the first warps of gate and up that have no pipeline."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ptxgen.conformance.execution import emitted
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.dsl.parts import with_parameters
from ptxgen.emulator import Marked, run
from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import between, borrowed, defer_norm, fuse_swiglu, pipeline_weights
from ptxgen.kernels.gemv.hw_dp4a import HwDp4aGemv
from ptxgen.kernels.gemv.suited import PREFETCHED
from ptxgen.kernels.norm.rmsnorm import RmsNorm
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from ptxgen.toolchain.module import emit
from tests.ptxgen.kernels.running import emulate, inputs

LINE = 128


def leaving(k: int = 4096, n: int = 4096, format: str = "q8_0_aligned", pipelined: bool = True) -> HwDp4aGemv:
    kernel = defer_norm(find(f"hw_dp4a_{format}_gemv").make(k=k, n=n, digits=3), 3)
    kernel = kernel and ((pipeline_weights(kernel) if pipelined else None) or kernel)
    assert isinstance(kernel, HwDp4aGemv)
    return kernel


def prefetches(kernel: KernelType) -> int:
    count: int = kernel.parameters()["prefetches"]
    return count


def gated(n: int, k: int = 4096, format: str = "q8_0_aligned") -> HwDp4aGemv:
    gate = find(f"hw_dp4a_{format}_gemv").make(k=k, n=n, digits=3)
    kernel = fuse_swiglu(gate, gate, 3)
    assert kernel is not None
    found = pipeline_weights(kernel) or kernel
    assert isinstance(found, HwDp4aGemv)
    return found


@pytest.mark.parametrize(
    ("every", "of", "k", "own"),
    [(8, 53, 256, 512), (1, 3, 4096, 512), (4, 256, 1536, 512), (8, 53, 256, 4096)],  # the last is of more steps than are ahead
)
def test_the_lines_of_these_rows_are_asked_for_and_no_other(every: int, of: int, k: int, own: int) -> None:
    """Each asked line is counted in the matrix instead."""
    count = -(-of // every)
    kernel = find("hw_dp4a_q8_0_aligned_gemv_residual_normed").make(
        k=own,
        n=k,
        digits=3,
        out_digits=3,
        num_warps=8,
        rows_per_warp=4,
        prefetches=count,
        prefetch_every=every,
        prefetch_rows=of,
    )
    arguments: dict[str, Any] = {**inputs(kernel)}
    for name in borrowed(kernel):
        arguments[name] = np.zeros_like(arguments[name])

    def passed(name: str, argument: Any) -> Any:
        if not isinstance(argument, Array):
            return arguments[name]
        return Marked(arguments[name], argument.direction != "out", argument.constant and name not in borrowed(kernel))

    text, changed = re.subn(r"prefetch\.global\.L2 (\[[^]]+\]);", r"red.global.add.u32 \1, 1;", emitted(kernel).text)
    assert changed >= 2
    launch = kernel.launch()
    run(text, kernel.name, launch.grid, launch.block, [passed(*one) for one in kernel.signature().items()])
    row_bytes = arguments["next_w"].shape[1]
    expected = np.zeros((of, row_bytes), np.uint8)
    expected[::every, ::LINE] = 1
    for name in borrowed(kernel):
        np.testing.assert_array_equal(arguments[name], expected)


def test_no_bit_depends_on_it() -> None:
    kernel = find("hw_dp4a_q8_0_aligned_gemv_residual_normed").make(
        k=4096,
        n=256,
        digits=3,
        out_digits=3,
        num_warps=16,
        rows_per_warp=2,
        stages=2,
        prefetches=2,
        prefetch_every=4,
        prefetch_rows=5,
    )
    arguments = inputs(kernel)
    results, findings = emulate(kernel, arguments)
    assert not findings
    plain = with_parameters(kernel, prefetches=0, prefetch_every=1, prefetch_rows=0)
    expected, _ = emulate(plain, {name: value for name, value in arguments.items() if name not in borrowed(kernel)})
    assert all(results[name].tobytes() == expected[name].tobytes() for name in expected)


def test_they_are_asked_for_behind_the_staging_and_before_the_sums() -> None:
    text = emit(with_parameters(leaving(), prefetches=3, prefetch_rows=3), Target(90), dependent=True).text
    first, last = text.index("prefetch.global.L2"), text.rindex("prefetch.global.L2")
    assert text.index("griddepcontrol.wait") < text.index("bar.sync") < first <= last < text.index(" dp4a.")


def test_the_rows_are_those_that_the_warps_of_gate_and_up_begin_with() -> None:
    found = []
    for n in (14336, 8192):
        behind = gated(n)
        kernel = between(leaving(), None, behind)
        every, count = (kernel.parameters()[name] for name in ("prefetch_every", "prefetches"))
        assert borrowed(kernel) == {"next_w": "w", "next_w2": "w2"}
        assert kernel.signature()["next_w"] == behind.signature()["w"]
        assert kernel.signature()["next_w2"] == behind.signature()["w2"]
        assert every == behind.blocks[0].warp_results
        found.append((every, count))
    row_bytes = 4096 // 256 * 272
    assert found == [(4, PREFETCHED // (2 * row_bytes)), (4, 963)]


def test_nothing_is_asked_for_where_what_comes_is_not_known_or_copies_ahead_itself() -> None:
    aligned = leaving()
    behind = {
        "nobody": None,
        "a norm": RmsNorm(hidden=4096, digits=3),
        "copies ahead": gated(14336, format="q4k"),
        "another format": gated(14336, format="q8_0"),
        "other columns": gated(14336, k=2048),
    }
    for kernel in behind.values():
        assert (prefetches(between(aligned, None, kernel)), borrowed(between(aligned, None, kernel))) == (0, {})
    assert prefetches(between(leaving(pipelined=False), None, gated(14336))) == 0
    assert prefetches(between(leaving(format="q4k"), None, gated(14336, format="q4k"))) == 0


@pytest.mark.parametrize("settings", [{"prefetches": 8, "prefetch_every": 8, "prefetch_rows": 56}, {"prefetches": 1}])
def test_rows_that_are_not_there_are_refused(settings: dict[str, Any]) -> None:
    count = settings["prefetches"]
    most = 7 if count == 8 else 0
    assert prefetches(with_parameters(leaving(), prefetches=7, prefetch_every=8, prefetch_rows=56)) == 7
    with pytest.raises(ArgumentError, match=f"prefetches must be {most} or fewer.*got {count}"):
        with_parameters(leaving(), **settings)
