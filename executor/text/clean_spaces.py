"""Spaces of a decoded text that some models' own tokenizers take away."""

from __future__ import annotations

import re
from typing import Final

# Each in turn over the whole text. Before 't and 'd and 'll a space stays, as in llama.cpp.
_PASSES: Final = (
    (re.compile(r" (?=[?!.,])"), ""),
    (re.compile(r" ' "), "'"),
    (re.compile(r" (?='(?:[sm]|re|ve))"), ""),
)


def cleaned(text: str) -> str:
    """The text without the space before ? ! . , and before 's 'm 're 've, and without those around a single apostrophe."""
    for pattern, new in _PASSES:
        text = pattern.sub(new, text)
    return text
