"""Drafts without a model: what followed the last few tokens the last time they stood in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from executor.base.arguments import whole

MAX_DRAFT: Final = 16
"""Tokens that one step verifies, beside the one that is certain."""


class PromptLookup:
    """Remembers where each run of `shortest` to `longest` tokens of one text ended last. Some microseconds a token."""

    def __init__(self, shortest: int = 2, longest: int = 4) -> None:
        self.shortest = whole("shortest", shortest, 1)
        self.longest = whole("longest", longest, self.shortest)
        self._after: dict[tuple[int, ...], int] = {}
        self._seen = 0  # tokens whose runs are remembered

    def propose(self, tokens: Sequence[int], most: int = MAX_DRAFT) -> list[int]:
        """Up to `most` tokens that may follow. tokens: all of the text, which continues that of the call before. The longest
        run at its end that stood there before counts, where it stood last; a repetition up to the end goes on repeating."""
        for end in range(max(1, self._seen), len(tokens)):
            for length in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(tokens[end - length : end])] = end
        self._seen = len(tokens)
        for length in range(min(self.longest, len(tokens)), self.shortest - 1, -1):
            start = self._after.get(tuple(tokens[len(tokens) - length :]))
            if start is not None:
                return _continued(tokens, start, most)
        return []


def _continued(tokens: Sequence[int], start: int, most: int) -> list[int]:
    period = len(tokens) - start
    return [tokens[start + i % period] for i in range(most)]
