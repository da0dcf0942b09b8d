"""The kind of each token of a vocabulary, and which tokens steer a model: what its file says, corrected where files are
known to be wrong or silent. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from executor.text.ends import END_TEXTS, FILL_TEXTS

_BRACKETED: Final = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
_PIPED: Final = (("<|", "|>"), ("<\uff5c", "\uff5c>"))

_FIRST: Final = frozenset("<[_\u2581")
"""What the text of a token begins with that may be a control token by its looks."""


class TokenKind(IntEnum):
    """The values of tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


STEERING: Final = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})
SILENT: Final = STEERING | {TokenKind.UNUSED}
"""Kinds that are no part of the text that people read."""


@dataclass(frozen=True)
class Marks:
    """What else a file says of its tokens. named: ids that a key names, such as that of EOS; ends: ids that end a generation;
    written: texts that its chat templates write in brackets; made: whether words become a token of this text."""

    named: frozenset[int]
    ends: frozenset[int]
    written: frozenset[str]
    made: Callable[[str], bool]


def corrected(tokens: Sequence[str], kinds: Iterable[TokenKind], marks: Marks) -> tuple[list[TokenKind], frozenset[int]]:
    """The kinds, and the ids of tokens that ordinary text never becomes.

    Files call some control tokens normal, or state no kinds at all. A normal token is a control token if its text is one that
    is known or looks like <|this|>, or if a key names it and words do not become it or it stands in brackets; BOS is a comma
    in some files. One that a template writes in brackets, and that words do not become, is a user-defined token that steers.
    """
    corrected_kinds = list(kinds)
    control: set[int] = set()
    for index, (text, kind) in enumerate(zip(tokens, corrected_kinds, strict=True)):
        if kind in STEERING:
            control.add(index)
        elif kind is TokenKind.USER_DEFINED:
            if index in marks.ends or text in marks.written or looks_like_control(text):
                control.add(index)
        elif kind is not TokenKind.NORMAL or (text[:1] not in _FIRST and index not in marks.named):
            continue
        elif (right := _right_kind(index, text, marks)) is not None:
            corrected_kinds[index] = right
            control.add(index)
    return corrected_kinds, frozenset(control)


def _right_kind(index: int, text: str, marks: Marks) -> TokenKind | None:
    """What a token that its file calls normal is instead, if anything."""
    if looks_like_control(text) or (text in END_TEXTS and index in marks.ends):
        return TokenKind.CONTROL
    if text in FILL_TEXTS and not marks.made(text):
        return TokenKind.CONTROL
    if index in marks.named and len(text) > 1 and (_BRACKETED.fullmatch(text) or not marks.made(text)):
        return TokenKind.CONTROL
    if text in marks.written and not marks.made(text):
        return TokenKind.USER_DEFINED
    return None


def bracketed(template: str) -> frozenset[str]:
    """What a chat template writes in brackets, <start_of_turn> or [INST]: such a token steers, whatever its file calls it."""
    return frozenset(_BRACKETED.findall(template))


def looks_like_control(text: str) -> bool:
    """Whether a token is written as control tokens are, <|so|>: files call some of them user-defined, by mistake."""
    return len(text) > 4 and (text[:2], text[-2:]) in _PIPED


def is_merged(text: str, tokens: Collection[str]) -> bool:
    """Whether characters can become this text by unions of two neighbours, each of which is a token."""
    reached: Mapping[int, set[int]] = {start: {start + 1} for start in range(len(text))}
    for size in range(2, len(text) + 1):
        for start in range(len(text) - size + 1):
            end = start + size
            if text[start:end] in tokens and any(end in reached[cut] for cut in reached[start] if cut < end):
                reached[start].add(end)
    return len(text) in reached[0]
