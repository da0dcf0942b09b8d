"""Packages of strangers beside ours, in a process of its own each: broken, loud or slow ones harm no command but their own, and
one of the name `executor` is told from ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ptxgen
from ptxgen import neighbour

GOOD = """
from dataclasses import dataclass
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.registry import register

@register
@dataclass(frozen=True)
class Mine(AddInPlace):
    name = "strangers_add"
    '''x += delta\x1b[2J'''
    __doc__ = "x += delta\x1b[2J, limit"
    limit: float = float("nan")
"""


def add(folder: Path, name: str, group: str, entry: str, source: str) -> None:
    """A distribution with one module and one entry point, as an installer leaves it."""
    (folder / f"{name}.py").write_text(f"open({str(folder / (name + '.imported'))!r}, 'w').close()\n{source}")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry} = {name}\n")


def run(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.argv[0] = '{program}'; from ptxgen.commands.start import {program}; {program}()",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


def imported(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.imported")}


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    add(tmp_path, "loud", "ptxgen.kernels", "loud", "print('I am here')\n" + GOOD)
    add(tmp_path, "leaving", "ptxgen.kernels", "leaving", "raise GeneratorExit('bye\\x1b[31m')")
    add(tmp_path, "mute", "ptxgen.kernels", "mute", "class Own(BaseException):\n    __str__ = None\nraise Own")
    return tmp_path


def test_all_kernels_are_listed_whatever_strangers_do_and_each_fault_is_named_once(kernels: Path) -> None:
    done = run(kernels, "ptxgen", "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert listed["strangers_add"]["parameters"][-1] == {"name": "limit", "required": False, "default": "nan"}
    assert listed["leaving"]["reason"].startswith(r"GeneratorExit: bye\x1b[31m (")
    assert listed["mute"]["reason"].startswith("Own (whose message cannot be had: TypeError)")
    table = run(kernels, "ptxgen", "list")
    assert table.returncode == 0
    assert r"x += delta\x1b[2J" in table.stdout
    assert "\x1b" not in table.stdout + table.stderr
    assert (table.stderr.count("GeneratorExit"), table.stderr.count("Own (whose")) == (1, 1)


def test_a_command_on_our_own_kernels_imports_no_stranger(kernels: Path) -> None:
    done = run(kernels, "ptxgen", "emit", "silu", "--set", "n=5")
    assert (done.returncode, done.stderr, imported(kernels)) == (0, "", set())
    missing = run(kernels, "ptxgen", "emit", "nothing", "--set", "n=5")
    assert missing.returncode == 2
    assert [missing.stderr.count(f"entry point {name} = ") for name in ("leaving", "mute")] == [1, 1]
    assert imported(kernels) == {"loud", "leaving", "mute"}


def test_a_strangers_bundle_is_not_ours_and_its_other_commands_are_imported_when_they_are_used(tmp_path: Path) -> None:
    command = "import click\nprint('loud')\nraise SystemExit(0)"
    add(tmp_path, "a_stranger", "ptxgen.commands", "bundle", command)
    add(tmp_path, "b_stranger", "ptxgen.commands", "other", command)
    add(tmp_path, "c_stranger", "ptxgen.commands", "twice", command)
    add(tmp_path, "d_stranger", "ptxgen.commands", "twice", command)
    add(tmp_path, "e_stranger", "ptxgen.commands", "od\x1b[2Jd", command)
    assert "Write the PTX of every kernel that a model needs" in run(tmp_path, "ptxgen", "bundle", "--help").stdout
    shown = run(tmp_path, "ptxgen", "--help").stdout
    assert "(of another package: b_stranger)" in shown
    assert "\x1b" not in shown
    assert imported(tmp_path) == set()
    used = run(tmp_path, "ptxgen", "other")
    assert (used.returncode, used.stdout) == (2, "")
    assert used.stderr.startswith("ptxgen: the command other of b_stranger cannot be used: SystemExit: 0 (")
    twice = run(tmp_path, "ptxgen", "twice")
    assert twice.stderr == "ptxgen: several packages have a command twice: c_stranger, d_stranger; uninstall all but one\n"


@pytest.mark.parametrize(("program", "words"), [("ptxgen", ("bundle", "m.gguf", "-o", "b")), ("ptxrun", ("logits", "m.gguf"))])
def test_another_projects_executor_that_is_found_first_is_named_in_one_sentence(
    tmp_path: Path, program: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "executor").mkdir()
    (tmp_path / "executor" / "__init__.py").write_text("import pipes_of_old_times\n")
    done = run(tmp_path, program, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{program}: the package executor in {tmp_path / 'executor'} is not ptxgen's but another project's of the same name: "
        "uninstall that one (pip uninstall executor) and install ptxgen again, or give ptxgen an environment of its own\n"
    )
    assert run(tmp_path, "ptxgen", "emit", "silu", "--set", "n=5").returncode == 0


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"__init__.py": "theirs", "cli.py": "theirs"}, "is not ptxgen's but another project's"),
        ({"cli.py": "of ptxgen"}, "is not there whole, as that of another project's"),  # theirs was uninstalled
        ({}, "is not there whole"),
        ({"__init__.py": "of ptxgen", "cli.py": "theirs"}, ""),
    ],
)
def test_another_projects_files_in_the_place_of_ours_are_told_from_them(
    tmp_path: Path, left: dict[str, str], said: str
) -> None:
    shutil.copytree(Path(ptxgen.__file__).parent, tmp_path / "ptxgen", ignore=shutil.ignore_patterns("[!_enps]*", "*s"))
    (tmp_path / "executor").mkdir()
    for name, text in left.items():
        (tmp_path / "executor" / name).write_text(f"# {text}\n")
    code = "from ptxgen.neighbour import why_not; print(why_not('executor'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert bool(said) == bool(done.stdout.strip())


def test_our_own_executor_is_ours() -> None:
    assert neighbour.why_not("executor") == ""
