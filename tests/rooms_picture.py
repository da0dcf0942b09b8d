"""Draws docs/rooms.svg from the code: a box a room with the sentence that its package says of itself, an arrow where one room
imports another and no other path leads there. `python -m tests.rooms_picture` writes it; tests/test_rooms.py compares."""

from __future__ import annotations

import ast
import textwrap
from html import escape
from typing import Final

from tests.rooms import ARROWS, ROOT

PICTURE: Final = ROOT / "docs" / "rooms.svg"

WIDTH, HEIGHT = 236, 64  # of a box
STEP_X, STEP_Y = 252, 96  # from box to box
CHARACTERS, LINES = 40, 3  # of the sentence in a box

STYLE = """
svg { font-family: sans-serif; background: #ffffff; }
rect { rx: 5; stroke-width: 1.2; }
.ptxgen rect { fill: #e8f1fb; stroke: #2f6db3; }
.executor rect { fill: #fdf0e2; stroke: #b96a1b; }
.name { font-size: 13px; font-weight: bold; }
.sentence { font-size: 10px; fill: #333333; }
path { stroke: #777777; fill: none; }
"""


def layers() -> dict[str, int]:
    """By room, how many rooms the longest way from it down leads through."""
    depth: dict[str, int] = {}
    for room, below in ARROWS.items():
        depth[room] = 1 + max((depth[name] for name in below), default=-1)
    return depth


def reduced() -> dict[str, list[str]]:
    """The arrows without those that others imply: what is left leads to the same rooms."""
    reached: dict[str, set[str]] = {}
    for room, below in ARROWS.items():
        reached[room] = set(below).union(*(reached[name] for name in below))
    return {
        room: [name for name in below if not any(name in reached[other] for other in below)] for room, below in ARROWS.items()
    }


def sentence(room: str) -> str:
    """What a room's package says of itself, up to the first full stop."""
    tree = ast.parse((ROOT / room.replace(".", "/") / "__init__.py").read_text())
    text = " ".join((ast.get_docstring(tree) or "").split())
    return text.split(". ")[0].rstrip(".")


def places() -> dict[str, tuple[float, float]]:
    """The left upper corner of each room's box: a row a layer, ptxgen from the left, executor from the right."""
    depth = layers()
    rows: dict[int, list[str]] = {}
    for room, row in depth.items():
        rows.setdefault(row, []).append(room)
    columns = max(map(len, rows.values()))
    corners: dict[str, tuple[float, float]] = {}
    for row, rooms in rows.items():
        left = [room for room in rooms if room.startswith("ptxgen")]
        right = [room for room in rooms if room not in left]
        y = 20 + (max(rows) - row) * STEP_Y
        for column, room in [*enumerate(left), *((columns - len(right) + i, room) for i, room in enumerate(right))]:
            corners[room] = (20 + column * STEP_X, y)
    return corners


def draw() -> str:
    """The picture as SVG."""
    corners = places()
    width = max(x for x, _ in corners.values()) + WIDTH + 20
    height = max(y for _, y in corners.values()) + HEIGHT + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>The rooms of ptxgen and executor: an arrow leads from a room to the one that it imports</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" style="fill:#777777;stroke:none"/></marker></defs>',
    ]
    for room, below in reduced().items():
        for name in below:
            (x0, y0), (x1, y1) = corners[room], corners[name]
            start, end = (x0 + WIDTH / 2, y0 + HEIGHT), (x1 + WIDTH / 2, y1)
            bend = min(60.0, (end[1] - start[1]) / 2)
            parts.append(
                f'<path d="M{start[0]:g},{start[1]:g} C{start[0]:g},{start[1] + bend:g} {end[0]:g},{end[1] - bend:g} '
                f'{end[0]:g},{end[1]:g}" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in corners.items():
        parts.append(f'<g class="{room.partition(".")[0]}"><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}"/>')
        parts.append(f'<text class="name" x="{x + 8}" y="{y + 16}">{room.replace(".", "/")}</text>')
        lines = textwrap.wrap(sentence(room), CHARACTERS, max_lines=LINES, placeholder=" ...")
        for i, line in enumerate(lines):
            parts.append(f'<text class="sentence" x="{x + 8}" y="{y + 30 + 13 * i}">{escape(line)}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw())
