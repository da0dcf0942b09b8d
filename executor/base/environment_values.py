"""What the texts of environment variables mean. Each function raises ValueError for a text that is not allowed, and
ArgumentError, which is one, where it can say why."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from ptxgen.gpus.gpu import Gpu

PRECISIONS: Final = ("accurate", "fast")
PEER: Final = "peer"
NCCL: Final = "nccl"
GATHERINGS: Final = (PEER, NCCL)
MOST_DIGITS: Final = 18
"""Of a whole number, which Python then reads at once."""


def is_off(text: str) -> bool:
    """Whether a text switches a thing off."""
    return text.lower() in ("0", "false")


def is_on(text: str) -> bool:
    """Whether a text switches a thing on."""
    return text.lower() in ("1", "true")


def number(text: str, most: float = math.inf) -> int:
    """A whole number up to `most`, in digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) <= most):
        raise ValueError
    return int(text)


def on(text: str) -> bool:
    """True, for the texts that switch a thing on."""
    if not is_on(text):
        raise ValueError
    return True


def precision(text: str) -> str:
    """One of PRECISIONS."""
    if text not in PRECISIONS:
        raise ValueError
    return text


def variant(text: str) -> str:
    """As parse_variant takes it."""
    parse_variant(text)
    return text


def known_gpu(text: str) -> Gpu:
    """As find_gpu takes it."""
    from ptxgen.gpus.gpu import find_gpu  # late, so that the commands start quickly

    return find_gpu(text)


def gathering(text: str) -> str | int:
    """One of GATHERINGS, or a number of bytes."""
    return text if text in GATHERINGS else number(text)


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~user, an unknown user
        raise ArgumentError(str(error)) from None


def folder(text: str) -> Path:
    """One that is there, or may be made."""
    path = _path(text)
    if os.path.exists(path) and not os.path.isdir(path):
        raise ArgumentError("it is no folder")
    return path


def file(text: str) -> Path:
    """One that is there, or may be written."""
    path = _path(text)
    if os.path.isdir(path):
        raise ArgumentError("it is a folder")
    return path


def key(text: str) -> str:
    """As is_key."""
    if not is_key(text):
        raise ValueError
    return text


def is_key(text: str) -> bool:
    """Whether a text can be the key of a header."""
    return text.isascii() and text.isprintable() and " " not in text


def parse_variant(text: str) -> tuple[str, dict[str, int | bool]]:
    """Name and parameters of `NAME` or `NAME:parameter=value,...`. ArgumentError if a value is no number, true or false."""
    name, colon, rest = text.partition(":")
    parameters: dict[str, int | bool] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        truth = {"true": True, "false": False}.get(value.lower())
        if not (key.isidentifier() and equals) or (truth is None and not (value.isascii() and value.isdigit())):
            raise ArgumentError(f"{part!r} is not parameter=value with a whole number, true or false")
        parameters[key] = int(value) if truth is None else truth
    return name.strip(), parameters
