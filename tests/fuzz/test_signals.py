"""Ctrl-C at any moment: a command ends with 130 and has nothing to say, and a model that was interrupted decodes afterwards as
if it had not been."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.device.emulated import EmulatedDevice
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from tests.fuzz.cases import Cases
from tests.fuzz.children import survives
from tests.synthetic import write_model

SECONDS = 120
MEMORY = 2 << 30
PROMPT = (1, 2, 3)
COMMAND = "from ptxgen.commands.start import ptxrun; print('begun', flush=True); ptxrun()"
ENDS = (0, 130, -signal.SIGINT)
"""Exit codes: it was done before, it was interrupted, or it was already past where Python heeds signals."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose launches are long enough to be spread over threads, and in short enough."""
    path = tmp_path_factory.mktemp("signals") / "m.gguf"
    return write_model(path, "llama", Q.Q4_K, layers=2, hidden=256, heads=4, kv_heads=2, ff=1024, context=64)


def interrupted(action: Callable[[], object], after: float, every: float) -> bool:
    """Whether KeyboardInterrupt ended the action: one is raised in it after so many seconds, and, until it is left, again at
    this interval."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not run.__code__:
            frame = frame.f_back
        if frame is not None:
            raise KeyboardInterrupt

    def run() -> None:
        action()

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after, every)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def test_a_model_that_is_interrupted_again_and_again_decodes_as_before(model: Path, cases: Cases) -> None:
    with EmulatedDevice(workers=3) as device, LanguageModel.load(model, device) as loaded:

        def generate() -> list[int]:
            return loaded.generate(PROMPT, max_tokens=12, sampler=Sampler(), stop_tokens=()).tokens

        expected = generate()
        started = time.perf_counter()
        assert generate() == expected
        seconds = time.perf_counter() - started
        for rng in cases:

            def case(rng: random.Random = rng) -> None:
                for _ in range(10):
                    interrupted(generate, rng.uniform(1e-4, seconds), rng.choice((0, 0, 1e-3)))
                    if rng.random() < 0.3:
                        assert generate() == expected
                assert generate() == expected

            said = survives(case, SECONDS, MEMORY)
            assert not said, said


MOST_SECONDS = 2.0
"""That a command may take to end after Ctrl-C."""

DONE = r"(\d+ tokens, .* tokens/s, first after .*)?"
"""What stands on stderr: nothing, or that all was generated before the signal came."""


def test_ptxrun_generate_ends_two_seconds_after_ctrl_c_and_says_nothing(model: Path, cases: Cases, tmp_path: Path) -> None:
    """In a cold start: nothing that was compiled before is there. A case that is late is tried again: a machine may stand
    still for as long."""
    for rng in cases:
        begun = rng.getstate()
        seconds = [ended_after(model, rng, tmp_path / f"{cases.last}")]
        if seconds[0] > MOST_SECONDS:
            rng.setstate(begun)
            seconds.append(ended_after(model, rng, tmp_path / f"{cases.last}-again"))
        assert min(seconds) < MOST_SECONDS, seconds


def ended_after(model: Path, rng: random.Random, cache: Path) -> float:
    """How many seconds after Ctrl-C `ptxrun generate` ends that compiles into an empty cache."""
    words = [sys.executable, "-c", COMMAND, "generate", str(model), "-p", "a b", "--max-tokens", "40", "--device", "emulator"]
    environment = os.environ | {"PTXGEN_CACHE_DIR": str(cache)}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(rng.uniform(0.05, 10))
    started = time.monotonic()
    for _ in range(rng.choice((1, 1, 3))):
        process.send_signal(signal.SIGINT)
        time.sleep(rng.choice((0, 0.001, 0.05)))
    _, said = process.communicate(timeout=240)
    seconds = time.monotonic() - started
    assert process.returncode in ENDS, said
    assert re.fullmatch(DONE, said.strip()), said
    return seconds
