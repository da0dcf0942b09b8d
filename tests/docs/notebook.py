"""Runs notebooks without Jupyter: the cells of one in turn, as one session, with what each prints and what its last line is
worth. `python -m tests.docs.notebook docs/notebooks/*.ipynb` writes that into the files. No test."""

from __future__ import annotations

import ast
import json
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any


def load(path: Path) -> dict[str, Any]:
    """The notebook, as the format of Jupyter (nbformat 4) has it."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def source(cell: dict[str, Any]) -> str:
    """The text of a cell."""
    return "".join(cell["source"])


def outputs(path: Path) -> list[list[dict[str, Any]]]:
    """Run the code cells and return what each gives, as the file holds it. An exception of a cell is raised."""
    space: dict[str, Any] = {"__name__": "__main__"}
    cells = (cell for cell in load(path)["cells"] if cell["cell_type"] == "code")
    return [run(source(cell), space, f"{path.name}, cell {i}") for i, cell in enumerate(cells, start=1)]


def run(text: str, space: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Run one cell."""
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, name, "exec"), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)  # type: ignore[attr-defined]
    made: list[dict[str, Any]] = []
    if printed.getvalue():
        made.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        made.append(
            {
                "data": {"text/plain": lines(repr(value))},
                "execution_count": None,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return made


def lines(text: str) -> list[str]:
    """Text as Jupyter keeps it."""
    return text.splitlines(keepends=True)


def write(path: Path) -> None:
    """Put what the cells give now into the file."""
    notebook = load(path)
    for cell, made in zip((cell for cell in notebook["cells"] if cell["cell_type"] == "code"), outputs(path), strict=True):
        cell["outputs"] = made
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        write(Path(argument))
