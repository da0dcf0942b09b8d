"""What is installed from the wheel, built from the source distribution: every file of the two packages, nothing else, and
commands that work where the repository is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from ptxgen import __version__
from tests.paths import ROOT

PACKAGES = ("ptxgen", "executor")
LEFT_OUT = ("tests", "benchmarks", "docs", "golden", "examples")
BACKEND = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def call(*words: str | Path, cwd: Path) -> str:
    """What a program prints; its stderr if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PTXGEN_"))}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source distribution of the tree, and a wheel of what that holds."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in LEFT_OUT:
        (tree / name).mkdir()
        (tree / name / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    source = folder / call(sys.executable, "-c", BACKEND, "build_sdist", folder, cwd=tree).splitlines()[-1]
    with tarfile.open(source) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return source, folder / call(sys.executable, "-c", BACKEND, "build_wheel", folder, cwd=unpacked).splitlines()[-1]


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of a fresh environment that has the wheel, and of ours the dependencies alone."""
    folder = tmp_path_factory.mktemp("stranger") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    import click

    for entry in Path(click.__file__).parents[1].iterdir():
        if not entry.name.startswith((*PACKAGES, "__editable__")):
            (site / entry.name).symlink_to(entry)
    words: list[str | Path] = ["-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--no-deps", "--no-index"]
    call(sys.executable, *words, built[1], cwd=folder)
    return folder / "bin"


def test_every_file_that_is_no_python_is_package_data() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert project["packages"]["find"]["include"] == [f"{name}*" for name in PACKAGES]
    for name in PACKAGES:
        data = {path for pattern in project["package-data"][name] for path in (ROOT / name).glob(pattern)}
        files = {path for path in (ROOT / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        assert {path for path in files if path.suffix != ".py"} == data


@pytest.mark.slow
def test_wheel_and_source_have_every_file_of_the_packages_and_nothing_else(built: tuple[Path, Path]) -> None:
    files = {path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()}
    files = {path for path in files if "__pycache__" not in path}
    assert {"ptxgen/py.typed", "executor/py.typed", "ptxgen/dsl/builder.pyi", "executor/choice/nvidia-h200.json"} <= files
    source, wheel = built
    assert {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name} == files
    with tarfile.open(source) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert files | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert wheel.stat().st_size < 5e6


@pytest.mark.slow
def test_the_installed_commands_work_where_the_repository_is_not(installed: Path, tmp_path: Path) -> None:
    assert call(installed / "ptxgen", "--version", cwd=tmp_path) == f"ptxgen, version {__version__}\n"
    assert call(installed / "ptxrun", "--help", cwd=tmp_path).startswith("Usage: ptxrun")
    assert "q4k_gemv\tk, n\t" in call(installed / "ptxgen", "list", "q4k_*", cwd=tmp_path)
    assert ".visible .entry rmsnorm" in call(installed / "ptxgen", "emit", "rmsnorm", "--set", "hidden=64", cwd=tmp_path)
    assert "Options:" in call(installed / "ptxgen", "bundle", "--help", cwd=tmp_path)  # by its entry point


@pytest.mark.slow
def test_what_is_installed_is_the_wheel_with_its_tables_and_pages(installed: Path, tmp_path: Path) -> None:
    folder = str(installed.parent)
    code = (
        "import executor, ptxgen; from importlib.util import find_spec; from executor import CudaExecutor, GpuProfile; "
        f"assert all(m.__file__.startswith({folder!r}) for m in (ptxgen, executor)); "
        f"assert not any(find_spec(name) for name in {LEFT_OUT!r}); print('right')"
    )
    assert call(installed / "python", "-c", code, cwd=tmp_path) == "right\n"
    call(installed / "ptxgen", "explain", "residual_add", "--set", "n=32", "--html", "page.html", cwd=tmp_path)
    assert "<html" in (tmp_path / "page.html").read_text()
