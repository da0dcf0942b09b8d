"""Text from strangers as text: what a terminal would obey, or Python cannot print, is spelt."""

from __future__ import annotations


def spelt(text: str) -> str:
    """The text with every letter that is no mark on paper (escape codes, carriage returns, lone surrogates, marks that turn the
    direction of writing) as Python writes it in a string; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def told(error: BaseException) -> str:
    """The type of an error and what it says, also where it cannot say it."""
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException as another:  # a stranger's __str__ may do anything
        return f"{kind} (whose message cannot be had: {type(another).__name__})"
    return f"{kind}: {message}" if message else kind
