"""Text for messages: of values, of errors, and of strangers, whose text is kept from being obeyed by a terminal."""

from __future__ import annotations

from collections.abc import Iterable


def printable(text: str) -> str:
    """The text with every letter that is no mark on paper (escape codes, carriage returns, lone surrogates, marks that turn the
    direction of writing) as Python writes it in a string; line breaks stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text)


def excerpt(text: str, most: int = 160) -> str:
    """The beginning of a text, in one line of printable letters: at most so many of its characters."""
    return printable(text[:most]).replace("\n", "\\n") + ("..." if len(text) > most else "")


def literal(value: object) -> str:
    """A value as Python writes it; a NumPy scalar as the number that it holds, not as `np.float64(1.0)`."""
    return repr(value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value)


def error_text(error: BaseException) -> str:
    """The type and the message of an error, even of one whose message cannot be had."""
    kind = type(error).__name__
    try:
        message = str(error)
    except BaseException as another:  # a stranger's __str__ may do anything
        return f"{kind} (whose message cannot be had: {type(another).__name__})"
    return f"{kind}: {message}" if message else kind


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The hint for a name that nothing has: names that are spelt much like it, or else `otherwise`."""
    import difflib  # late: most runs have no such error

    near = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {', '.join(near)}?" if near else otherwise
