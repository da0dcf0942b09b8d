"""Kernels of other packages: a broken one is set aside with the line that is wrong, and all others work."""

from __future__ import annotations

import itertools
import signal
import textwrap
from collections.abc import Callable
from dataclasses import MISSING
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ptxgen import plugins
from ptxgen.errors import ArgumentError
from ptxgen.kernels import registry
from tests.cli.invoke import facts, invoke, python

_numbers = itertools.count()

GOOD = """
from dataclasses import dataclass
from ptxgen.kernels.activation.elementwise import AddInPlace
from ptxgen.kernels.registry import register

@register
@dataclass(frozen=True)
class Mine(AddInPlace):
    '''x += delta, my way.'''
    name = "my_add"
"""

VARIANTS = GOOD.replace("@register", "@register(style=['a', 'b'])") + "    style: str = 'a'\n"
SHAPED = GOOD.replace('name = "my_add"', "width: int = 4\n    @property\n    def name(self): return f'my_add{self.width}'")

SEVERAL = (
    GOOD.replace("@register", "@register(m=[None, GIVEN], gain=[Given(2)])").replace(
        "import register", "import GIVEN, Given, register"
    )
    + """
    gain: int | None = None
    @property
    def name(self): return 'my_add' if self.m is None else 'my_adds'
"""
)

ODD = """
class Odd:
    def __repr__(self):
        raise ValueError("no")
"""

UNPRINTABLE = """class Own(BaseException):
    def __str__(self):
        raise SystemExit
raise Own"""

INTERRUPTED_NAMING = """import signal
class Field:
    def __set_name__(self, owner, name): signal.raise_signal(signal.SIGINT)
class Owner:
    field = Field()
"""

Load = Callable[[str], None]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads a module with this source as a package's entry point would be; the registry is as before afterwards."""
    monkeypatch.setattr(registry, "_entries", dict(registry.entries()))
    monkeypatch.setattr(registry, "_broken", [])
    monkeypatch.syspath_prepend(tmp_path)

    def loaded(source: str, attribute: str = "") -> None:
        module = f"strange_kernels_{next(_numbers)}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        registry.load(EntryPoint("strange", f"{module}{attribute}", registry.GROUP))

    return loaded


def test_a_kernel_of_another_package_is_found_and_listed(load: Load) -> None:
    load(GOOD)
    assert registry.broken() == ()
    assert registry.find("my_add").summary == "x += delta, my way."
    assert "my_add" in {entry["name"] for entry in facts("ptxgen", "list")}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name' ({file}:1)"),
        ("x = 1\nx.foo", "AttributeError: 'int' object has no attribute 'foo' ({file}:2)"),
        ("x = (", "SyntaxError: '(' was never closed ({name}, line 1)"),
        ("import sys\nsys.exit(3)", "SystemExit: 3 ({file}:2)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt ({file}:1)"),
        ("raise GeneratorExit('no')", "GeneratorExit: no ({file}:1)"),
        ("class Own(BaseException): pass\nraise Own", "Own ({file}:2)"),
        (UNPRINTABLE, "Own (whose message cannot be had: SystemExit) ({file}:4)"),
        ("raise ValueError('\x1b[2Jgone\x9b\u202e')", r"ValueError: \x1b[2Jgone\x9b\u202e ({file}:1)"),
        (GOOD.replace("my_add", "my\x1b[2J"), "cannot be the name of a PTX entry"),
        (ODD + GOOD + "    n: int\n    odd: object = Odd()\n", "ValueError: no ({file}"),
        ("pass", "it registers no kernel; decorate a KernelType with @register"),
        (GOOD.replace("my_add", "gather_rows"), "is taken by ptxgen.kernels.token.gather_rows.GatherRows ({file}:6)"),
        (GOOD + GOOD.replace("my_add", "silu"), "kernel name 'silu' is taken"),
        (VARIANTS, "kernel name 'my_add' is taken by {module}.Mine with style='a' ({file}"),
        (SHAPED, "Mine: to register one name, `name` must not depend on `width`, a field that register does not fix"),
        (GOOD.replace('name = "my_add"', "name = 5"), "Mine: `name` must be a str, got 5"),
        (GOOD.replace("@dataclass(frozen=True)\n", ""), "Mine is not a dataclass yet; write @dataclass(frozen=True)"),
        (GOOD.replace("(AddInPlace)", ""), "not a subclass of ptxgen.dsl.kernel_type.KernelType"),
        (
            GOOD.replace("kernels.activation.elementwise import ", "dsl.kernel_type import KernelType as "),
            "Mine does not say cases, emit, inputs, launch, reference, signature, tolerance, work",
        ),
    ],
)  # fmt: skip
def test_a_broken_package_is_set_aside_with_the_reason(load: Load, tmp_path: Path, source: str, said: str) -> None:
    before = registry.entries()
    load(source)
    (fault,) = registry.broken()
    (file,) = tmp_path.glob("strange*.py")
    assert said.format(file=file, name=file.name, module=file.stem) in fault.reason
    assert registry.entries() == before


def test_a_class_has_a_name_for_kernels_with_a_field_and_one_for_those_without(load: Load) -> None:
    load(SEVERAL)
    alone, rows = registry.find("my_add"), registry.find("my_adds")
    assert alone.parameters == {"n": MISSING, "gain": 2}
    assert rows.parameters == {"n": MISSING, "m": MISSING, "gain": 2}
    assert str(alone.make(n=3)) == "my_add(n=3, gain=2)"
    assert str(rows.make(n=3, m=1, gain=5)) == "my_adds(n=3, m=1, gain=5)"
    with pytest.raises(ArgumentError, match="my_add has no parameter 'm'"):
        alone.make(n=3, m=2)
    with pytest.raises(ArgumentError, match="my_adds needs m"):
        rows.make(n=3)
    with pytest.raises(ArgumentError, match="my_adds: m must not be None"):
        rows.make(n=3, m=None)


def test_sample_shapes_of_a_name_are_those_that_are_called_so() -> None:
    for name in ("rmsnorm", "batched_rmsnorm", "rmsnorm_digits", "batched_rmsnorm_halves"):
        kernels = list(registry.find(name).cases())
        assert kernels
        assert {kernel.name for kernel in kernels} == {name}


def test_list_shows_what_is_broken_and_still_lists_the_rest(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    load("1 / 0")
    load(GOOD)
    piped = invoke("ptxgen", "list")
    assert "my_add" in [line.split("\t")[0] for line in piped.stdout.splitlines()]
    assert "ZeroDivisionError" not in piped.stdout
    assert piped.stderr.startswith("strange of ")
    assert "does not load: ZeroDivisionError: division by zero" in piped.stderr
    monkeypatch.setattr("ptxgen.commands.console.in_terminal", lambda: True)
    table = " ".join(invoke("ptxgen", "list").stdout.split())
    assert "broken" in table
    assert "ZeroDivisionError: division by zero" in table
    assert "my_add" in table
    (broken,) = (entry for entry in facts("ptxgen", "list") if "reason" in entry)
    assert broken["name"] == "strange"


def test_a_name_that_a_broken_package_should_have_says_why_it_is_not_there(load: Load) -> None:
    load("1 / 0")
    with pytest.raises(ArgumentError, match=r"no kernel is called 'my_add'.*\n  not loaded: entry point strange.*ZeroDivision"):
        registry.find("my_add")


def test_a_strangers_kernel_that_is_imported_first_cannot_take_one_of_our_names() -> None:
    done = python(
        "import sys, types\n"
        "from ptxgen.kernels import registry\n"
        f"try:\n    exec({GOOD.replace('my_add', 'gather_rows')!r}, {{'__name__': 'stranger'}})\n"
        "except ValueError as error:\n    print(error)\n"
        "print(registry.find('gather_rows').type.__module__)\n"
    )
    assert done.stdout.splitlines() == [
        "kernel name 'gather_rows' is taken by ptxgen.kernels.token.gather_rows.GatherRows",
        "ptxgen.kernels.token.gather_rows",
    ], done.stderr


def test_conform_reports_a_line_a_check_and_fails_with_the_reason(load: Load) -> None:
    load(GOOD)
    shown = invoke("ptxgen", "conform", "my_add")
    assert shown.exit_code == 0, shown.output
    assert "passed  my_add(n=1)  emulator" in shown.stdout
    load(GOOD.replace("my_add", "my_bad_add") + "\n    def emit(self, k):\n        k.f32(1.0) + k.tid.x\n")
    shown = invoke("ptxgen", "conform", "my_bad_add")
    assert shown.exit_code == 1
    assert "FAILED  my_bad_add(n=1)  text" in shown.stdout
    assert "f32(1.0) + k.tid.x" in shown.stdout
    assert any(not one["passed"] for one in facts("ptxgen", "conform", "my_bad_add", exit_code=1))


def test_what_a_package_prints_when_it_is_imported_is_in_no_output(load: Load, capfd: pytest.CaptureFixture[str]) -> None:
    load("import sys\nprint('hello')\nprint('hello', file=sys.stderr)\n" + GOOD)
    assert registry.find("my_add")
    assert capfd.readouterr() == ("", "")


def test_a_package_that_asks_for_all_kernels_while_it_is_imported_gets_those_that_are_there(load: Load) -> None:
    load("from ptxgen.kernels.registry import entries\nassert 'rmsnorm' in entries()\n" + GOOD)
    assert registry.broken() == ()


def test_a_package_that_takes_long_to_import_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugins, "SLOW", 0.01)
    load("import time\ntime.sleep(0.05)\n" + GOOD)
    assert "entry point strange of unknown package took 0 s to import" in caplog.text


def test_ctrl_c_while_a_package_is_imported_is_not_the_packages_fault(load: Load) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        load("import signal, time\nsignal.raise_signal(signal.SIGINT)\ntime.sleep(5)\n" + GOOD)
    with pytest.raises(KeyboardInterrupt):  # RuntimeError in Python 3.11
        load(INTERRUPTED_NAMING + GOOD)
    assert registry.broken() == ()
    load("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + GOOD)
    assert signal.getsignal(signal.SIGINT) is before
    signal.signal(signal.SIGINT, before)
