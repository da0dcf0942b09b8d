"""The first quarter of an hour with the project, but for the install: the demo, a conversation, a first kernel. What of it is
the machine's time is far less than that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks, name
from tests.docs.shell import run_page
from tests.essential import processor_seconds
from tests.paths import ROOT
from tests.real_models import smollm2_path
from tests.synthetic import Q, write_model

QUARTER_OF_AN_HOUR = 900.0
MACHINE_SHARE = 0.2
"""Of it; the rest is for the reader."""


@pytest.mark.slow
def test_a_newcomer_waits_for_three_minutes_at_most(tmp_path: Path, environment: dict[str, str]) -> None:
    smollm2_path()  # the download is part of the install here
    del environment["PTXGEN_CACHE_DIR"]  # where the model is, as the user has it
    write_model(tmp_path / "model.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)
    taken: dict[str, float] = {}

    def timed(what: str, command: str) -> str:
        before = processor_seconds()
        words = ["bash", "-c", command]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600)
        taken[what] = processor_seconds() - before
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "first token" in timed("demo", 'ptxrun demo --prompt "Hi" --max-tokens 2')
    assert timed("chat", "printf 'Hello\n' | ptxrun chat model.gguf -n 4").strip()
    before = processor_seconds()
    run_page(ROOT / "docs" / "tutorials" / "first-kernel.md", tmp_path, environment)
    taken["first kernel"] = processor_seconds() - before
    print({what: f"{seconds:.1f} s" for what, seconds in taken.items()}, file=sys.stderr)
    assert sum(taken.values()) < MACHINE_SHARE * QUARTER_OF_AN_HOUR, taken


def test_getting_started_shows_the_commands_that_are_timed() -> None:
    page = ROOT / "docs" / "getting-started.md"
    shown = "".join(block.text for block in blocks(page) if block.language == "sh")
    assert 'ptxrun demo --prompt "Hi" --max-tokens' in shown, name(page)
    assert "ptxrun chat model.gguf" in shown
