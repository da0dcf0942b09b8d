"""Kernels whose body is CUDA C++: the same contract, the author's lines in every message, arithmetic as it is written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cuda.bindings
import numpy as np
import pytest

from ptxgen import emulator
from ptxgen.conformance import check
from ptxgen.dsl.arguments import Scalar, Signature, read, write
from ptxgen.dsl.build import build
from ptxgen.dsl.kernel_type import KernelType, Work
from ptxgen.dsl.launch_config import LaunchConfig
from ptxgen.errors import PtxGenError
from ptxgen.kernels.shape import require
from ptxgen.target import Target
from ptxgen.toolchain import cuda_source
from ptxgen.toolchain.cuda_source import CompileError, CudaSourceKernel, translation_unit
from ptxgen.toolchain.module import emit
from ptxgen.types import F32, U32
from tests.cli.invoke import python

HERE = Path(__file__)


@dataclass(frozen=True)
class Reversed(CudaSourceKernel):
    """y[i] = a * x[n - 1 - i] + i / 2^step in each stretch of 64. y, x: f32[n, 64]; a: f32; first: u32."""

    family: ClassVar[str] = "test"
    name = "test_reversed"
    n: int

    def __post_init__(self) -> None:
        require(self, "n")

    def signature(self) -> Signature:
        return {
            "y": write(F32, self.n, 64, align=4),
            "x": read(F32, self.n, 64, align=4),
            "a": Scalar(F32),
            "first": Scalar(U32),
        }

    def launch(self) -> LaunchConfig:
        return LaunchConfig(grid=self.n, block=64)

    def preamble(self) -> str:
        return """
            __device__ int mirrored(int i) { return 63 - i; }
        """

    def source(self) -> str:
        return """
            __shared__ float held[64];
            int i = threadIdx.x, row = blockIdx.x;
            held[i] = x[row * 64 + i];
            __syncthreads();
            y[row * 64 + i] = a * held[mirrored(i)] + (float)(row < n ? first : 0u);
        """

    def reference(self, **arguments: Any) -> dict[str, Any]:
        return {"y": np.float64(arguments["a"]) * arguments["x"][:, ::-1].astype(np.float64) + arguments["first"]}

    def tolerance(self, **arguments: Any) -> dict[str, Any]:
        product = np.abs(np.float64(arguments["a"]) * arguments["x"][:, ::-1])
        return {"y": (product + np.abs(self.reference(**arguments)["y"]) + 1e-6) * 2.0**-23}

    def work(self) -> Work:
        return Work(flops=128 * self.n, bytes=512 * self.n)

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"y": np.zeros((self.n, 64), "f4"), "x": rng.standard_normal((self.n, 64), "f4"), "a": 1.5, "first": 7}

    @classmethod
    def cases(cls, **fixed: Any) -> Iterator[KernelType]:
        yield cls(n=1)
        yield cls(n=5)


def line_of(text: str) -> int:
    """The line of this file that has the text, and not as a part of a test."""
    return next(i for i, line in enumerate(HERE.read_text().splitlines(), 1) if line.strip() == text)


def test_a_body_in_cuda_cpp_passes_the_conformance_kit() -> None:
    report = check(Reversed)
    assert report.passed, str(report)


def test_the_manifest_says_the_same_as_for_any_kernel() -> None:
    facts = emit(Reversed(n=3), Target(90)).manifest()
    assert (facts["entry"], facts["grid"], facts["block"]) == ("test_reversed", [3, 1, 1], [64, 1, 1])
    assert [parameter["name"] for parameter in facts["parameters"]] == ["y", "x", "a", "first"]
    assert (facts["shared_bytes"], facts["target"]) == (256, "sm_90")


def test_parameters_keep_the_names_of_the_signature() -> None:
    text = emit(Reversed(n=3)).text
    assert "ld.param.u64" in text
    assert "[first]" in text
    assert "param_0" not in text


def test_products_and_sums_are_not_fused_behind_the_authors_back() -> None:
    text = emit(Reversed(n=3)).text
    assert "mul.rn.f32" in text
    assert "add.rn.f32" in text
    assert "fma" not in text


def test_the_shape_is_there_as_constants() -> None:
    assert "enum : int { n = 3 };" in translation_unit(Reversed(n=3))
    assert ".global" not in emit(Reversed(n=3)).text.partition(".entry")[0]  # and not as memory


@dataclass(frozen=True)
class Misspelt(Reversed):
    def source(self) -> str:
        return f"""
            int i = threadIdx.x + {self.n};
            y[i] = a * x[i] + nothing;
            x[i] = something;
        """


def test_an_error_names_the_authors_file_and_line_and_all_that_is_wrong() -> None:
    with pytest.raises(CompileError) as raised:
        emit(Misspelt(n=2))
    assert raised.value.where is not None
    assert raised.value.where.file == str(HERE)
    assert raised.value.where.line == line_of("y[i] = a * x[i] + nothing;")
    said = str(raised.value)
    assert said.startswith('test_reversed(n=2) does not compile for sm_75: identifier "nothing" is undefined')
    assert f"{HERE}:{line_of('x[i] = something;')}  x[i] = something;" in said


@dataclass(frozen=True)
class Beyond(Reversed):
    def source(self) -> str:
        return """
            y[blockIdx.x * 64 + threadIdx.x + 8] = x[threadIdx.x];
        """


def test_the_sanitiser_names_the_authors_line() -> None:
    (fault,) = check(Beyond(n=1)).failures
    assert "out of bounds" in fault.reason
    assert "past the end of the array of y" in fault.reason
    assert f"{HERE}:{line_of('y[blockIdx.x * 64 + threadIdx.x + 8] = x[threadIdx.x];')}" in fault.reason


def test_a_text_that_stands_in_no_file_is_called_by_the_kernels_name() -> None:
    class Elsewhere(Reversed):
        def source(self) -> str:
            return "".join(["no", "_such_", "name;"])

    with pytest.raises(CompileError, match=r"test_reversed\.cu:1"):
        emit(Elsewhere(n=1))


def test_a_newer_compilers_ptx_version_is_lowered_to_what_drivers_load(monkeypatch: pytest.MonkeyPatch) -> None:
    text = emit(Reversed(n=4)).text
    newer = text.replace(".version 9.0", ".version 9.5")
    monkeypatch.setattr(cuda_source, "_compile", lambda unit, options: newer)
    assert emit(Reversed(n=4)).ptx_version == "9.0"


def test_without_nvrtc_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    monkeypatch.delattr(cuda.bindings, "nvrtc", raising=False)
    with pytest.raises(PtxGenError, match=r"cannot load NVRTC .* `pip install \"nvidia-cuda-nvrtc.*`"):
        emit(Reversed(n=99))


def test_the_builder_refuses_a_body_that_it_cannot_write() -> None:
    with pytest.raises(PtxGenError, match="is written in CUDA C"):
        build(Reversed(n=1))


def test_importing_ptxgen_does_not_import_the_compiler() -> None:
    done = python(
        "import sys, ptxgen.toolchain.cuda_source, ptxgen.toolchain.module\n"
        "print([name for name in sys.modules if name.startswith('cuda')])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@dataclass(frozen=True)
class Printing(Reversed):
    """The same arguments; prints, and leaves y as it was."""

    name = "test_printing"

    def source(self) -> str:
        return 'if (threadIdx.x < 2) printf("%s %d %.2f\\n", "thread", (int)threadIdx.x, a);'


def test_printf_in_cuda_source_prints_on_the_emulator() -> None:
    kernel = Printing(n=1)
    emitted, texts = emit(kernel, Target(90)), list[str]()
    given = [kernel.inputs(np.random.default_rng(0))[name] for name in kernel.signature()]
    arguments = [
        value if isinstance(value, np.ndarray) else np.float32(1.5) if n == 2 else np.uint32(value)
        for n, value in enumerate(given)
    ]
    emulator.run(emitted.text, emitted.entry, kernel.launch().grid, kernel.launch().block, arguments, prints=texts.append)
    assert texts == ["thread 0 1.50\n", "thread 1 1.50\n"]
