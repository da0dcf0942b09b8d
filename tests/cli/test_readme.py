"""What the README shows must work."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as Q

from ptxgen.kernels import registry
from tests.cli.invoke import COMMANDS, facts, invoke
from tests.paths import ROOT
from tests.synthetic import write_model

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_kernel_of_the_readme_conforms_and_assembles_for_every_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = (block for block in blocks("python") if "@register" in block)
    monkeypatch.setattr(registry, "_entries", dict(registry.entries()))
    module = types.ModuleType("saxpy")
    monkeypatch.setitem(sys.modules, "saxpy", module)
    path = tmp_path / "saxpy.py"
    path.write_text(source)
    exec(compile(source, str(path), "exec"), module.__dict__)

    conformed = invoke("ptxgen", "conform", "saxpy")
    assert conformed.exit_code == 0, conformed.output
    assert {"passed  saxpy  refusals", "passed  saxpy(n=1)  emulator"} <= set(conformed.stdout.splitlines())
    results = facts("ptxgen", "check", "saxpy", "--target", "all")
    assert results
    assert all(result["error"] is None for result in results)


def test_the_python_of_the_readme_generates_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (source,) = (block for block in blocks("python") if "load_model" in block)
    write_model(tmp_path / "model.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    (command,) = (line for block in blocks("") for line in block.splitlines() if line.endswith("pytest -n 2"))
    assert command in (ROOT / ".ci" / "run").read_text()


def test_a_test_runs_every_command_that_the_readme_shows() -> None:
    shown = set(re.findall(r"^(ptxgen|ptxrun) (\w+)", "".join(blocks("")), re.MULTILINE))
    assert {program for program, _ in shown} == set(COMMANDS)
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [words for words in shown if not re.search(rf'"{words[0]}",\s*"{words[1]}"', tests)] == []
