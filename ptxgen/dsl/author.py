"""Whose line is running: finds the author's frame among those of the builder."""

from __future__ import annotations

import linecache
import sys
from functools import lru_cache
from types import FrameType

from ptxgen.errors import Location

# Frames of these modules are the builder's own; the first one outside is the author's.
_OWN = frozenset(
    f"ptxgen.dsl.{name}"
    for name in (
        "author", "core", "builder", "value", "refusals", "mistakes", "flow", "passes", "memory", "cooperation", "warpgroup",
        "resolve", "mathlib", "printing",
    )
) | {"contextlib"}  # fmt: skip


def author_frame() -> FrameType:
    """The first frame that is not the builder's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _OWN:
        frame = frame.f_back
    return frame


def author_line() -> Location:
    """The author's line that is running now."""
    frame = sys._getframe(1)  # not author_frame(): every instruction comes here
    while frame.f_back is not None and frame.f_globals.get("__name__") in _OWN:
        frame = frame.f_back
    return _location(str(frame.f_globals.get("__name__", "?")), frame.f_code.co_filename, frame.f_lineno)


def location(frame: FrameType, line: int) -> Location:
    """A line of the frame's file."""
    return _location(str(frame.f_globals.get("__name__", "?")), frame.f_code.co_filename, line)


@lru_cache(maxsize=1 << 14)
def _location(module: str, path: str, line: int) -> Location:
    file = module.replace(".", "/") + ".py"  # the same on every machine, unlike the path
    return Location(file, line, linecache.getline(path, line).strip())
