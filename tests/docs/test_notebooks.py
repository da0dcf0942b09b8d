"""The notebooks run from top to bottom on the emulator and give what they show."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests.docs.notebook import load, outputs, run, source
from tests.docs.pages import name
from tests.paths import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_kernels")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_gives_what_it_shows(path: Path, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [variable for variable in os.environ if variable.startswith(("PTXGEN_", "GPU_DEBUG"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(kernels))
    monkeypatch.chdir(tmp_path)
    assert outputs(path) == [cell["outputs"] for cell in load(path)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_is_one_that_jupyter_opens(path: Path) -> None:
    notebook = load(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | (
            {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
        )
        if cell["cell_type"] == "code":
            ast.parse(source(cell))  # no magics: they are Python


def test_a_cell_gives_what_it_prints_and_what_its_last_line_is_worth() -> None:
    space: dict[str, object] = {}
    assert run("a = 2\nprint(a)\na * 2", space, "cell") == [
        {"name": "stdout", "output_type": "stream", "text": ["2\n"]},
        {"data": {"text/plain": ["4"]}, "execution_count": None, "metadata": {}, "output_type": "execute_result"},
    ]
    assert run("a += 1", space, "cell") == []
