"""Options that every test may use, the cache folder that many share, and the split into essential and slow tests
(essential.py)."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import settings

from executor.launch import modules
from ptxgen.emulator.machine import Module
from ptxgen.toolchain.module import emit
from tests import essential
from tests.hub_server import hub as hub  # a fixture for all
from tests.paths import ROOT

STARTED = time.monotonic()

# A shell that wants no bytecode beside its sources gets none there. If it were kept nowhere, each worker, and each of the many
# commands that tests start, would compile all sources anew: up to a second of a processor for each, ten for a worker's tests.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

NEVER_ESSENTIAL = pytest.StashKey[list[str]]()
"""The files that were collected and have no essential test."""
TAKEN = "processor seconds"
BEGAN = pytest.StashKey[float]()
"""Processor seconds of the process before the test."""
GONE = pytest.StashKey[list[str]]()
"""The tests of slow.txt that are not there, where all were collected."""
SECONDS: dict[str, float] = {}
"""By id, what the tests that ran took of the processors."""

written = lru_cache(maxsize=128)(emit)
"""Texts, written once for all models of a worker; that a type gives the same bytes again is a check of each kernel."""

# How long an example takes is the machine's business: under load any of them is slow. All else stays as Hypothesis has it.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew instead of comparing with them")
    parser.addoption("--record-slow", action="store_true", help="write tests/slow.txt anew for the tests that run")
    parser.addoption("--seconds-by-file", action="store_true", help="say which files took most of the processors")
    parser.addoption("--record-isa", metavar="DIR", help="keep what the GPU gives for every instruction in DIR")
    parser.addoption("--record-models", metavar="DIR", help="with -m gpu: write hashes of model logits to this folder")
    parser.addoption("--fuzz-seconds", type=float, metavar="S", help="how long each fuzzer begins cases")
    parser.addoption("--fuzz-seed", type=int, default=8, metavar="N", help="what the fuzzers' cases are chosen by")
    parser.addoption("--fuzz-case", type=int, metavar="N", help="run this one case of a fuzzer, as its failure says")


@pytest.fixture(scope="session")
def kernels(pytestconfig: pytest.Config) -> Path:
    """Compiled kernels of modules that load the same ones, for all workers of a run and for the runs after it: it takes minutes
    to compile them once for each. What is kept is named by the text, the emulator's sources and the host."""
    assert pytestconfig.cache is not None
    return pytestconfig.cache.mkdir("kernels")


@pytest.fixture(scope="module")
def quick_kernels() -> Iterator[None]:
    """For modules whose tests launch each kernel a few times: it is compiled in half the time, to slower code. That optimised
    code computes the same is shown for each kernel of the catalogue by its golden outputs, and for devices, launches and
    interrupted models by tests without this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Module, "quickly", True)
        patch.setattr(modules, "emit", written)
        yield


@pytest.fixture
def shared_kernels(kernels: Path, quick_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """For modules whose tests do not look at what is compiled and when (`pytestmark = usefixtures("shared_kernels")`)."""
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(kernels))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    without_gpu = [item for item in items if item.get_closest_marker("gpu") is None]
    for item in without_gpu:
        if essential.is_slow(item):
            item.add_marker(pytest.mark.slow)
    config.stash[NEVER_ESSENTIAL] = essential.files_without_essential(without_gpu)
    everything = config.args == config.getini("testpaths")
    config.stash[GONE] = sorted(essential.recorded() - {item.nodeid for item in items}) if everything else []


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end. Looking through it for garbage again and again took a tenth of the
    processors: texts and programs are many small objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BEGAN] = essential.processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the test has taken so far goes with its report, to the process that writes slow.txt."""
    report = yield
    report.user_properties.append((TAKEN, essential.processor_seconds() - item.stash[BEGAN]))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    SECONDS.update(
        (report.nodeid, value) for name, value in report.user_properties if name == TAKEN and isinstance(value, float)
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.option.record_slow and not hasattr(session.config, "workerinput"):
        essential.record(SECONDS)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How long the README's test command took, of the time that it may take; and which files took most, if asked for."""
    for line in essential.by_file(SECONDS) if config.option.seconds_by_file else ():
        terminalreporter.write_line(line)
    if config.option.markexpr in config.getini("addopts") and config.args == config.getini("testpaths"):
        seconds = time.monotonic() - STARTED
        over = seconds > essential.BUDGET
        terminalreporter.write_line(
            f"essential tests: {seconds:.0f} s of a budget of {essential.BUDGET} s", red=over, green=not over
        )
