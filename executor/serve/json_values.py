"""Where a JSON object or list ends, in a text that comes in pieces."""

from __future__ import annotations

import re
from typing import Final

_OUTSIDE: Final = re.compile(r"[\s:,\w+.-]*(.)?", re.DOTALL)
_INSIDE: Final = re.compile(r'[^"\\\x00-\x1f]*(.)?', re.DOTALL)
UNFINISHED: Final = -1
NO_VALUE: Final = -2


class ValueEnd:
    """Looks for the end of the value that begins at `start`, with a bracket. It reads brackets and strings; whether all else is
    JSON is for a parser to say."""

    def __init__(self, start: int) -> None:
        self._at = start
        self._depth = 0
        self._string = False

    def find(self, text: str) -> int:
        """Where the value ends in a text, which begins with what was given before. UNFINISHED for one that goes on, NO_VALUE
        for a character that cannot stand in one."""
        while True:
            match = (_INSIDE if self._string else _OUTSIDE).match(text, self._at)
            assert match is not None
            found = match[1]
            if found is None:
                self._at = match.end()
                return UNFINISHED
            self._at = match.end()
            if self._string and found == "\\":
                if self._at == len(text):
                    self._at -= 1
                    return UNFINISHED
                self._at += 1
            elif found == '"':
                self._string = not self._string
            elif self._string or found not in "{}[]":
                return NO_VALUE
            else:
                self._depth += 1 if found in "{[" else -1
                if self._depth == 0:
                    return self._at
