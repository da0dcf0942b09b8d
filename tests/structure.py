"""How the code is built, in figures: `python -m tests.structure` prints each beside its goal. What is counted stands in the
function of the figure; nothing of the packages is run, but kernels are imported to see which classes there are."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from tests.paths import GOLDEN, ROOT
from tests.rooms import imports, modules, room_of

RELATIONS: Final = (
    "batched", "with_residual", "with_norm", "in_parts", "sent", "with_residual_norm", "gated", "with_weight_ring", "between",
    "borrowed", "dependent", "joined",
)  # fmt: skip
"""Methods of KernelType that say what a kernel is beside another one, or with more work."""
COMBINATION: Final = re.compile("Batched|Digits|Halves|Residual|Normed|Gated|Sent|Joined|Mixed|Merged|Rotating")
RULES: Final = ("executor/layers/graph/",)
"""The table of rules, and how operations are bound to kernels."""
POLICY: Final = (
    "executor/choice/",
    "executor/tune/",
    "ptxgen/gpus/",
    "ptxgen/kernels/suited.py",
    "ptxgen/kernels/attention/suited.py",
    "ptxgen/kernels/gemm/suited.py",
    "ptxgen/kernels/gemv/suited.py",
)
"""Where a card, a number of multiprocessors or a measured threshold may stand: the known GPUs, what is chosen on one, and what
suits the kernels of each family."""
LONGEST_FILE: Final = 400


@dataclass(frozen=True)
class Figure:
    """what: its name; goal: the most that it should be; count: what it is."""

    what: str
    goal: int
    count: Callable[[], int]


def kernel_classes() -> list[type]:
    """The classes of ptxgen/kernels that are kernel types, the abstract ones too."""
    from ptxgen.dsl.kernel_type import KernelType
    from ptxgen.kernels.registry import entries

    entries()  # imports all of them
    found: list[type] = []
    waiting = list(KernelType.__subclasses__())
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        if one.__module__.startswith("ptxgen.kernels.") and one not in found:
            found.append(one)
    return found


def registered_classes() -> set[type]:
    """The classes that have a registered name."""
    from ptxgen.kernels.registry import entries

    return {entry.type for entry in entries().values()}


def deciders() -> list[str]:
    """FILE: NAME of the functions that decide which kernel a model runs: that ask compose.py for a composition or a profile for
    its choice; told by the names that they call, so a few are others. Those of the table of rules and of policy are not
    counted: they are where that is decided."""
    functions = (node.name for node in tree("ptxgen/kernels/compose.py").body if isinstance(node, ast.FunctionDef))
    composing = {name for name in functions if not name.startswith("_")}
    asked = {*composing, "choose", "suited"} - {"borrowed", "for_rows", "as_dependent"}
    found = []
    for room in ("bundle", "choice", "layers", "model"):
        for file in (file for file in sources(f"executor/{room}") if not file.startswith((*RULES, *POLICY))):
            for function in ast.walk(tree(file)):
                if isinstance(function, ast.FunctionDef) and any(_called(node) in asked for node in ast.walk(function)):
                    found.append(f"{file}: {function.name}")
    return found


def _composed(module: ast.Module) -> set[str]:
    """The functions of compose.py, but that for dependent launches, that a module imports, or names as those of `compose`."""
    imported = (node for node in ast.walk(module) if isinstance(node, ast.ImportFrom))
    named = (node for node in ast.walk(module) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "compose")
    by_name = {alias.name for node in imported if node.module == "ptxgen.kernels.compose" for alias in node.names}
    return (by_name | {node.attr for node in named}) - {"as_dependent", "borrowed"}


def _called(node: ast.AST) -> str:
    """The name that is called; none for `choose` of anything but a profile (a decoder chooses tokens)."""
    if not isinstance(node, ast.Call):
        return ""
    if not isinstance(node.func, ast.Attribute):
        return getattr(node.func, "id", "")
    of_a_profile = node.func.attr != "choose" or ast.unparse(node.func.value).endswith("profile")
    return node.func.attr if of_a_profile else ""


def depth() -> int:
    """Kernel types among the classes that the deepest kernel inherits from, with itself."""
    from ptxgen.dsl.kernel_type import KernelType

    return max(sum(issubclass(base, KernelType) for base in one.__mro__) for one in kernel_classes())


def relations() -> list[str]:
    """Methods of KernelType that are relations."""
    from ptxgen.dsl.kernel_type import KernelType

    return [name for name in RELATIONS if name in vars(KernelType)]


def overrides() -> int:
    """Definitions of a relation in a kernel's class."""
    return sum(name in vars(one) for one in kernel_classes() for name in RELATIONS)


def booleans() -> int:
    """Fields of GpuProfile that are on or off."""
    from executor.choice.choice import GpuProfile

    return sum(field.type in (bool, "bool") for field in fields(GpuProfile))


def multiprocessors() -> int:
    """Constants of kernels outside policy that are the number of multiprocessors of a card."""
    kernels = [file for file in sources("ptxgen/kernels") if not file.startswith(POLICY)]
    return _lines(kernels, r"^\w*MULTIPROCESSORS\w*(: \w+)? = \d")


def cards() -> int:
    """Lines of source outside policy that name an H100 or H200."""
    files = [file for package in ("ptxgen", "executor") for file in sources(package) if not file.startswith(POLICY)]
    return _lines(files, r"\bH[12]00\b")


def circles() -> list[set[str]]:
    """Circles of files inside rooms: sets of two and more that import each other, imports in functions and for types
    included."""
    known = modules()
    edges: dict[str, set[str]] = {}
    for importer, imported, _ in imports(known):
        if room_of(importer, known) == room_of(imported, known):
            edges.setdefault(importer, set()).add(imported)
    return [component for component in components(edges) if len(component) > 1]


def components(edges: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """The sets of nodes that reach each other."""
    reach = {node: _reached(edges, node) for node in {*edges, *(end for ends in edges.values() for end in ends)}}
    seen: set[str] = set()
    for node, reached in reach.items():
        if node not in seen:
            component = {node, *(other for other in reached if node in reach[other])}
            seen |= component
            yield component


def _reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def long_files() -> list[str]:
    """Files of over LONGEST_FILE lines."""
    files = [file for package in ("ptxgen", "executor") for file in sources(package)]
    return [file for file in files if (ROOT / file).read_text().count("\n") > LONGEST_FILE]


def source_lines() -> int:
    """Lines of both packages."""
    return sum((ROOT / file).read_text().count("\n") for package in ("ptxgen", "executor") for file in sources(package))


def golden_lines() -> int:
    """Lines of PTX that are kept whole."""
    return sum(path.read_text().count("\n") for path in (GOLDEN / "ptx").glob("*.ptx"))


def words(*folders: str) -> int:
    """Words of the Markdown files there, but those of an installed environment."""
    files = {
        path for folder in folders for path in ([ROOT / folder] if folder.endswith(".md") else (ROOT / folder).rglob("*.md"))
    }
    return sum(len(path.read_text().split()) for path in files if not {".venv", "node_modules"} & set(path.parts))


def skipped_formatting() -> int:
    """Lines that ruff may not format."""
    return sum(_lines(sources(package), r"# fmt: skip") for package in ("ptxgen", "executor"))


def same_names() -> int:
    """Names that two classes of both packages, or more, have."""
    count: dict[str, int] = {}
    for package in ("ptxgen", "executor"):
        for file in sources(package):
            for node in tree(file).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    count[node.name] = count.get(node.name, 0) + 1
    return sum(number > 1 for number in count.values())


def sources(folder: str) -> list[str]:
    """The Python files of a folder, from the repository's root."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py"))


def tree(file: str) -> ast.Module:
    """Of a source file."""
    return ast.parse((ROOT / file).read_text())


def _lines(files: list[str], pattern: str) -> int:
    return sum(bool(re.search(pattern, line)) for file in files for line in (ROOT / file).read_text().splitlines())


def _profile_words() -> int:
    from executor.choice.choice import GpuProfile

    return len((inspect.getdoc(GpuProfile) or "").split())


FIGURES: Final = (
    Figure("functions that decide which kernel runs, outside of rules and policy", 0, lambda: len(deciders())),
    Figure("files that they are in", 0, lambda: len({one.partition(":")[0] for one in deciders()})),
    Figure("classes of kernels that are registered", 45, lambda: len(registered_classes())),
    Figure(
        "classes that combine neighbours", 0, lambda: sum(bool(COMBINATION.search(one.__name__)) for one in kernel_classes())
    ),
    Figure("kernel types that the deepest one inherits from", 4, depth),
    Figure("relations of KernelType", 0, lambda: len(relations())),
    Figure("their overrides", 0, overrides),
    Figure("booleans of GpuProfile", 0, booleans),
    Figure("words of its docstring", 100, _profile_words),
    Figure("numbers of multiprocessors in kernels", 0, multiprocessors),
    Figure("lines outside policy that name a card", 0, cards),
    Figure("circles of files inside rooms", 0, lambda: len(circles())),
    Figure(f"files of over {LONGEST_FILE} lines", 0, lambda: len(long_files())),
    Figure("lines of ptxgen and executor", 62_000, source_lines),
    Figure("names that several classes have", 0, same_names),
    Figure("lines of golden PTX", 25_000, golden_lines),
    Figure("words of Markdown", 40_000, lambda: words(".")),
    Figure("words of docs/performance.md", 3_000, lambda: words("docs/performance.md")),
    Figure("lines that are not formatted", 60, skipped_formatting),
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def main(as_json: bool) -> None:
    """Print each figure and its goal."""
    found: list[tuple[Figure, int]] = [(figure, figure.count()) for figure in FIGURES]
    if as_json:
        rows: dict[str, Any] = {figure.what: {"is": number, "goal": figure.goal} for figure, number in found}
        Console().print_json(data=rows)
        return
    table = Table("figure", "is", "goal")
    for figure, number in found:
        table.add_row(figure.what, f"{number:,}", f"{figure.goal:,}", style="" if number <= figure.goal else "yellow")
    Console().print(table)


if __name__ == "__main__":
    main()
