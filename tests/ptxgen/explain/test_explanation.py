"""What is said of a whole kernel: lines of Python, PTX and SASS that belong together, and the facts of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ptxgen.errors import PtxGenError
from ptxgen.explain.explanation import Explanation, explain
from ptxgen.explain.report import summary
from ptxgen.explain.sass import disassemble, find_nvdisasm
from ptxgen.extras import install
from ptxgen.gpus.gpu import GPUS
from ptxgen.kernels import registry
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.target import Target
from tests.cli.invoke import facts, invoke, refused

NORM = ("rmsnorm", "--set", "hidden=8192")
SM_90 = Target(90)


@pytest.fixture(scope="module")
def gemv() -> Explanation:
    return explain(registry.find("q4k_gemv").make(k=4096, n=64), SM_90, GPUS["h200"])


def needs_nvdisasm() -> None:
    if find_nvdisasm() is None:
        pytest.skip(f"nvdisasm is not installed: {install('sass')}")


def test_every_instruction_is_found_on_its_line_of_the_text(gemv: Explanation) -> None:
    text = gemv.emitted.text.splitlines()
    assert [text[number - 1].strip() for number in gemv.lines] == [str(op) for op in gemv.emitted.function.ops]
    assert sorted(number for numbers in gemv.by_author.values() for number in numbers) == sorted(gemv.lines)


def test_only_lines_of_kernels_and_formats_are_named_as_authors(gemv: Explanation) -> None:
    assert {where.file.split("/")[1] for where in gemv.by_author} == {"kernels", "formats"}


def test_machine_code_names_ptx_lines_of_its_own_kind(gemv: Explanation) -> None:
    needs_nvdisasm()
    products = [line for line in gemv.sass if line.text.startswith("FFMA")]
    assert products
    named = {gemv.lines[line.ptx_line].row.name for line in products if line.ptx_line in gemv.lines}
    assert "fma" in named
    assert named <= {"fma", "mul", "add", "sub"}
    assert sum("EXIT" in line.text for line in gemv.sass) >= 1
    assert not gemv.sass[-1].text.startswith("NOP")
    (loop,) = gemv.inner_loops
    assert loop.sass is not None
    assert loop.mix.total / 2 < loop.sass < loop.mix.total * 2


def test_the_entry_comes_before_functions_that_the_assembler_added() -> None:
    needs_nvdisasm()
    kernel = registry.find("incremental_attention").make(heads=2, kv_heads=2, head_dim=32, max_len=64)
    sass = explain(kernel, SM_90, GPUS["h200"]).sass
    assert sass[0].address == 0
    assert any(line.text.startswith("__cuda") for line in sass[1:])


def test_without_nvdisasm_everything_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgen.explain.sass.find_nvdisasm", lambda: None)
    explanation = explain(AddInPlace(n=64), SM_90, GPUS["h100"])
    assert (explanation.sass, explanation.inner_loops) == ((), ())
    assert 'pip install "nvidia-cuda-nvdisasm' in explanation.no_sass
    assert explanation.assembled.registers > 0


def test_the_command_prints_facts_bounds_and_the_ptx_of_each_python_line() -> None:
    said = invoke("ptxgen", "explain", *NORM, "--gpu", "rtx4090").stdout
    for part in ("y = gamma * x", "f32[8192]", "0 B spilled", "of 48 warps", "issue slots", "GeForce RTX 4090", "sm_89"):
        assert part in said
    assert "ptxgen/kernels/norm/rmsnorm.py:" in said
    assert "fma.rn.f32" in said
    assert "fma.rn.f32" not in invoke("ptxgen", "explain", *NORM, "--no-listing").stdout


def test_the_json_holds_the_manifest_and_the_figures() -> None:
    said = facts("ptxgen", "explain", *NORM, "--target", "sm_90")
    assert (said["entry"], said["target"], said["gpu"]["name"]) == ("rmsnorm", "sm_90", "h200")
    assert said["occupancy"]["limit"] in ("registers", "threads", "blocks", "shared memory")
    assert said["bounds"][0]["share"] == 1.0
    assert said["instructions"]["f32 fma"] > 0
    assert all(line["ptx_lines"] for line in said["lines"])
    assert said["accuracy"] == {}


def test_a_gpu_older_than_the_target_is_refused() -> None:
    assert refused("ptxgen", "explain", *NORM, "--target", "sm_90", "--gpu", "a100") == (
        "A100 SXM 80 GB is sm_80 and cannot run code for sm_90"
    )
    assert "unknown GPU 'h300'; did you mean h" in refused("ptxgen", "explain", *NORM, "--gpu", "h300")


@dataclass(frozen=True)
class Measured(AddInPlace):
    """A kernel that knows what its approximations cost."""

    name = "measured"

    def accuracy(self, rng: np.random.Generator) -> Mapping[str, float]:
        return {"normal activations": 3.5e-3}


@pytest.mark.slow
def test_what_a_kernel_measured_of_itself_is_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(registry._entries, "measured", registry.KernelEntry("measured", Measured))
    words = ("explain", "measured", "--set", "n=64")
    assert "normal activations" in invoke("ptxgen", *words).stdout
    assert facts("ptxgen", *words)["accuracy"] == {"normal activations": 3.5e-3}
    assert invoke("ptxgen", *words, "--html", tmp_path / "page.html").output == f"wrote {tmp_path / 'page.html'}\n"
    assert "3.50e-03" in (tmp_path / "page.html").read_text()


def test_disassembly_of_something_else_says_what_nvdisasm_said() -> None:
    needs_nvdisasm()
    with pytest.raises(PtxGenError, match="nvdisasm"):
        disassemble(b"not a cubin", "none")


@pytest.mark.parametrize(("n", "said"), [(132 * 8, "1 wave"), (132 * 16, "2 waves"), (132 * 4, "0.5 waves")])
def test_waves_are_counted_in_words(n: int, said: str) -> None:
    kernel = registry.find("residual_add").make(n=n * 256)
    shown = dict(summary(explain(kernel, SM_90, GPUS["h200"])))
    assert shown["occupancy"].endswith(f"; {said}")
