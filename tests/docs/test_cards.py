"""docs/performance.md says by what each known GPU is shown to run models, as results and tests have it."""

from __future__ import annotations

from ptxgen.gpus.gpu import GPUS
from tests.docs.cards import BLOCK, PAGE, page, shown


def test_the_committed_table_is_current() -> None:
    text = PAGE.read_text()
    assert len(BLOCK.findall(text)) == 1
    assert page(text) == text, "run python -m tests.docs.cards"


def test_every_known_gpu_is_shown_by_something() -> None:
    assert all(shown(gpu) for gpu in GPUS.values())
    assert shown(GPUS["h200"]).startswith("M")
