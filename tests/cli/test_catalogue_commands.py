"""`ptxgen list`, `emit` and `check`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ptxgen.commands import catalogue
from ptxgen.dsl.builder import KernelBuilder
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.kernels import known_models, registry
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.known_models import Dimensions
from ptxgen.kernels.registry import find
from tests.cli.invoke import facts, invoke, refused


def test_list_shows_every_registered_kernel_with_its_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {entry["name"]: entry for entry in facts("ptxgen", "list")}
    assert list(listed) == sorted(registry.entries())
    assert listed["rope"]["parameters"] == [
        {"name": "heads", "required": True},
        {"name": "head_dim", "required": True},
        {"name": "max_len", "required": True},
        {"name": "rotary_dim", "required": False, "default": 0},
    ]
    lines = [line.split("\t") for line in invoke("ptxgen", "list").stdout.splitlines()]
    assert [name for name, *_ in lines] == list(listed)
    assert all(len(line) == 3 for line in lines)
    assert next(parameters for name, parameters, _ in lines if name == "rope") == "heads, head_dim, max_len, rotary_dim=0"
    monkeypatch.setattr("ptxgen.commands.console.in_terminal", lambda: True)
    table = invoke("ptxgen", "list").stdout
    assert all(name in table for name in listed)
    assert max(map(len, table.splitlines())) <= 100


def test_list_shows_those_of_a_name() -> None:
    some = [entry["name"] for entry in facts("ptxgen", "list", "q4k_*", "rms*")]
    assert some == [name for name in sorted(registry.entries()) if name.startswith(("q4k_", "rms"))]
    assert [line.split("\t")[0] for line in invoke("ptxgen", "list", "rope").stdout.splitlines()] == ["rope"]
    said = refused("ptxgen", "list", "rope", "rmsnrm*")
    assert said.startswith("no kernel has a name like 'rmsnrm*'; did you mean rmsnorm")


def test_emit_writes_the_same_text_to_stdout_and_to_a_file_with_its_manifest(tmp_path: Path) -> None:
    words = ("emit", "rmsnorm", "--set", "hidden=576", "--target", "sm_90")
    text = invoke("ptxgen", *words).stdout
    assert ".target sm_90" in text
    assert invoke("ptxgen", *words, "-o", tmp_path / "norm.ptx").output == ""
    assert (tmp_path / "norm.ptx").read_text() == text
    manifest = json.loads((tmp_path / "norm.json").read_text())
    assert (manifest["entry"], manifest["grid"], manifest["block"]) == ("rmsnorm", [1, 1, 1], [256, 1, 1])
    assert [parameter["name"] for parameter in manifest["parameters"]] == ["y", "x", "gamma", "eps"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["norm.json", "norm.ptx"]


def test_a_gpu_stands_for_its_target_and_not_beside_one() -> None:
    words = ("emit", "silu", "--set", "n=5")
    assert ".target sm_89" in invoke("ptxgen", *words, "--gpu", "RTX 4090").stdout
    said = "--target names sm_90, and --gpu l4; leave one of the two out"
    assert refused("ptxgen", *words, "--gpu", "l4", "--target", "sm_90") == said
    assert "known: t4, a100" in refused("ptxgen", "check", "silu", "--set", "n=5", "--gpu", "rtx1")
    checked = facts("ptxgen", "check", "silu", "--set", "n=5", "--gpu", "l4", "--gpu", "orin", "--target", "sm_89")
    assert [one["target"] for one in checked] == ["sm_89", "sm_87"]


def test_emit_names_the_authors_lines_when_asked() -> None:
    plain, lined = (invoke("ptxgen", "emit", "silu", "--set", "n=5", *more).stdout for more in ((), ("--lines",)))
    assert ".loc" in lined
    assert ".loc" not in plain


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    words = ("emit", "silu", "--set", "n=5", "-o")
    assert (
        refused("ptxgen", *words, tmp_path / "no" / "silu.ptx")
        == f"{tmp_path}/no/silu.ptx: cannot be written: No such file or directory"
    )
    assert "Is a directory" in refused("ptxgen", *words, tmp_path)
    assert "name it .ptx" in refused("ptxgen", *words, tmp_path / "silu.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rmsnrm",), "no kernel is called 'rmsnrm'; did you mean rmsnorm"),
        (("rmsnorm",), "rmsnorm needs hidden"),
        (("rmsnorm", "--set", "width=3"), "rmsnorm has no parameter 'width'; it has hidden"),
        (("rmsnorm", "--set", "hidden=wide"), "rmsnorm: hidden is 'wide'; it must be a whole number"),
        (("rmsnorm", "--set", "hidden=1.5"), "rmsnorm: hidden is '1.5'; it must be a whole number"),
        (("rmsnorm", "--set", "hidden=0"), "hidden must be an integer"),
        (("rmsnorm", "--set", "hidden"), "--set hidden is not of the form name=value"),
        (("rmsnorm", "--set", "hidden=1", "--set", "hidden=2"), "--set hidden is given twice: 1 and 2"),
        (("rmsnorm", "--set", "hidden=64", "--target", "sm_70"), "unknown target 'sm_70'; known: sm_75"),
    ],
)
def test_a_shape_that_is_not_allowed_is_one_clear_line(words: tuple[str, ...], said: str) -> None:
    assert said in refused("ptxgen", "emit", *words)


MMA = ("mma_q4k_gemm", "--set", "k=256", "--set", "n=64", "--set", "m=8")  # from sm_80 on
WGMMA = ("wgmma_q4k_gemm", "--set", "k=256", "--set", "n=64", "--set", "m=64")  # sm_90a alone


@pytest.mark.parametrize(
    ("words", "least", "below"), [(MMA, "sm_80", "sm_75"), pytest.param(WGMMA, "sm_90a", "sm_89", marks=pytest.mark.slow)]
)
def test_commands_write_for_the_oldest_target_of_a_kernel_and_refuse_one_below(
    words: tuple[str, ...], least: str, below: str
) -> None:
    assert f".target {least}\n" in invoke("ptxgen", "emit", *words).stdout
    (checked,) = facts("ptxgen", "check", *words)
    assert (checked["target"], checked["error"]) == (least, None)
    said = f"{find(words[0]).make(k=256, n=64, m=64).name} "
    said += f"needs {least} or newer" if least == "sm_80" else f"is written for {least} alone"
    said += f", and the target is {below}"
    assert refused("ptxgen", "emit", *words, "--target", below) == said
    assert refused("ptxgen", "explain", *words, "--target", below) == said
    (checked,) = facts("ptxgen", "check", *words, "--target", below, exit_code=1)
    assert checked["error"] == said


@pytest.mark.slow
def test_explain_takes_a_gpu_that_the_kernel_is_for_when_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddInPlace, "least_sm", 100)
    assert facts("ptxgen", "explain", "residual_add", "--set", "n=64")["gpu"]["name"] == "b200"


def test_a_kernel_for_no_known_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddInPlace, "least_sm", 200)
    assert refused("ptxgen", "emit", "residual_add", "--set", "n=64") == (
        "residual_add needs sm_200 or newer, and no known target is; known: sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_100, "
        "sm_103, sm_110, sm_120, sm_121"
    )


def test_check_reports_what_the_assembler_says_of_each_shape_and_target() -> None:
    results = facts("ptxgen", "check", "residual_add", "--set", "n=64", "--target", "sm_75", "--target", "sm_90")
    assert [(result["kernel"], result["target"], result["error"]) for result in results] == [
        ("residual_add(n=64)", "sm_75", None),
        ("residual_add(n=64)", "sm_90", None),
    ]
    assert all(result["registers"] > 0 and result["spilled_bytes"] == 0 for result in results)
    table = invoke("ptxgen", "check", "residual_add", "--set", "n=64").stdout
    assert "registers" in table
    assert "ok" in table


def test_check_of_a_kernel_with_many_parameters_still_shows_target_and_registers() -> None:
    shape = ("--set", "k=256", "--set", "n=3")
    (result,) = facts("ptxgen", "check", "hw_dp4a_q4k_gemv", *shape, "--target", "sm_90")
    assert len(result["kernel"]) > 80
    table = invoke("ptxgen", "check", "hw_dp4a_q4k_gemv", *shape, "--target", "sm_90").stdout
    assert max(map(len, table.splitlines())) <= 100
    assert all(word in table for word in ("sm_90", str(result["registers"]), "spilled B", "ok"))


def test_check_of_a_kernel_that_spills_fails_and_still_shows_what_it_takes() -> None:
    words = ("hw_dp4a_q4k_gemv", "--set", "k=4096", "--set", "n=16", "--set", "resident_threads=2048", "--target", "sm_90")
    (result,) = facts("ptxgen", "check", *words, exit_code=1)
    assert result["registers"] == 32
    assert result["spilled_bytes"] > 0
    assert result["error"] == f"{result['spilled_bytes']} bytes are spilled (32 registers)"
    shown = invoke("ptxgen", "check", *words)
    assert "failed" in shown.stdout
    assert result["error"] in shown.stderr


def test_check_of_the_shapes_of_known_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "MANY", 2)  # by several processes
    tiny = {"tiny": Dimensions(hidden=32, ff=256, heads=2, kv_heads=1, head_dim=32, vocab=512)}
    monkeypatch.setattr(known_models, "KNOWN_MODELS", tiny)
    results = facts("ptxgen", "check", "dp4a_q8_0_gemv", "--models", "--target", "sm_90")
    entry = registry.find("dp4a_q8_0_gemv")
    shapes = ((k, n, digits) for k, n in ((32, 512), (64, 32), (256, 32)) for digits in (3, 2, 1))
    assert [result["kernel"] for result in results] == [str(entry.make(k=k, n=n, digits=d)) for k, n, d in shapes]
    assert not any(result["error"] for result in results)
    assert "give one of them" in refused("ptxgen", "check", "dp4a_q8_0_gemv", "--models", "--set", "k=32")
    assert "known models have no shape for it" in refused("ptxgen", "check", "rmsnorm", "--models")


def test_check_takes_every_sample_shape_when_none_is_given() -> None:
    results = facts("ptxgen", "check", "residual_add")
    assert [result["kernel"] for result in results] == [str(kernel) for kernel in find("residual_add").cases()]


@dataclass(frozen=True)
class Wrong(AddInPlace):
    """A kernel that its author got wrong."""

    name = "wrong"

    def emit(self, k: KernelBuilder) -> None:
        k.u32(1) + k.f32(1.0)

    @classmethod
    def cases(cls, **fixed: object) -> Iterator[KernelType]:
        yield cls(n=1)


def test_check_of_a_wrong_kernel_fails_with_exit_code_1_and_the_authors_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._entries, "wrong", registry.KernelEntry("wrong", Wrong))
    (result,) = facts("ptxgen", "check", "wrong", exit_code=1)
    assert Path(__file__).name in result["error"]
    assert "f32 and u32" in result["error"] or "u32 and f32" in result["error"]
    shown = invoke("ptxgen", "check", "wrong", "residual_add")
    assert shown.exit_code == 1
    assert "failed" in shown.stdout
    assert "ok" in shown.stdout
    assert Path(__file__).name in shown.stderr
