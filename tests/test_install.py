"""What a plain install takes: bytes on disk with all that it requires, and the modules and seconds of an import."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.budget import loops
from tests.cli.invoke import python
from tests.paths import ROOT

MOST_BYTES = 500_000_000
REQUIRED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
FRONT = "from executor import CudaExecutor, Grammar, LanguageModel, Sampler, Scheduler, load_model"
IMPORTS = {
    "import ptxgen": (0.010, set()),
    "import executor": (0.004, set()),
    "import ptxgen.commands.cli": (0.07, {"click"}),
    "import executor.commands.cli": (0.11, {"click", "platformdirs"}),
    FRONT: (0.84, {"gguf", "numpy", "platformdirs", "yaml"}),
}
"""By statement: the seconds of a processor that it takes on the machine for development, where `loop` of tests/budget.py takes
SECONDS_OF_LOOP, and the packages of others that it may import."""
SECONDS_OF_LOOP = 0.024
SLOW = 2.0
TRIES = 5


def plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def sizes(requirements: Sequence[str], find: Callable[[str], Distribution] = distribution) -> dict[str, int]:
    """Bytes of the installed files of each distribution that these requirements need, and those of them, and so on; compiled
    modules included as far as the installer made them."""
    found: dict[str, int] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        name, extras = plain_name(one.name), frozenset(one.extras)
        if (name, extras) in asked:
            continue
        asked.add((name, extras))
        installed = find(one.name)
        paths = [Path(str(file.locate())) for file in installed.files or ()]
        found[name] = sum(path.stat().st_size for path in paths if path.is_file())
        for needed in map(Requirement, installed.requires or ()):
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append(needed)
    return found


def test_what_the_plain_install_requires_stays_under_500_mb() -> None:
    found = sizes(REQUIRED)
    assert {plain_name(Requirement(one).name) for one in REQUIRED} < set(found)
    assert min(found.values()) > 0
    assert sum(found.values()) < MOST_BYTES, dict(sorted(found.items(), key=lambda one: -one[1])[:5])


def test_what_is_required_is_counted_once_with_what_it_requires(tmp_path: Path) -> None:
    needs = {"A": ["b.c[x]", "d; extra == 'y'"], "b_c": ["e; extra == 'x'", "f; python_version < '3'", "a"], "e": []}
    for number, (name, required) in enumerate(needs.items()):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *(f"Requires-Dist: {one}" for one in required)]
        (folder / "METADATA").write_text("\n".join(lines))
        (tmp_path / f"{name}.py").write_text("x" * 10**number)
        (folder / "RECORD").write_text(f"{name}.py,,\n{name}-gone.py,,\n")

    def find(name: str) -> Distribution:
        (one,) = (each for each in Distribution.discover(path=[str(tmp_path)]) if plain_name(each.name) == plain_name(name))
        return one

    assert sizes(["a"], find) == {"a": 1, "b-c": 10, "e": 100}


def test_what_is_required_of_others_is_there() -> None:
    with pytest.raises(ModuleNotFoundError):
        sizes(["no-such-distribution-of-anybody"])


@pytest.mark.parametrize("statement", IMPORTS)
def test_an_import_takes_no_more_than_it_did(statement: str) -> None:
    seconds, packages = IMPORTS[statement]
    code = (
        "import sys, time\nbefore, start = set(sys.modules), time.process_time()\n"
        f"{statement}\n"
        "taken, names = time.process_time() - start, {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(taken, *names - set(sys.stdlib_module_names) - {'ptxgen', 'executor'})"
    )
    least = sys.float_info.max
    for _ in range(TRIES):
        taken, *names = python(code).stdout.split()
        assert {name for name in names if "cython" not in name} <= packages  # of a package that Cython has compiled
        least = min(least, float(taken))
        if least < seconds * SLOW * max(1.0, loops(3) / SECONDS_OF_LOOP):
            return
    raise AssertionError(f"{statement} took {least:.3f} s of a processor, {least / seconds:.1f} times what it did")
