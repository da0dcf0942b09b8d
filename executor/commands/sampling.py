"""The options of commands that choose tokens, and the sampler that they make."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from ptxgen.commands.options import Command

if TYPE_CHECKING:
    from executor.model.sampling import Sampler

NEUTRAL: Final = {"temperature": 1.0}
"""What an option is when others are given but not this one: the model's own distribution. All others are off by themselves."""

_OPTIONS: Final[Mapping[str, Callable[[Command], Command]]] = {
    "temperature": click.option("--temperature", type=float, metavar="T", help="Divides the logits; 0 is greedy."),
    "top_k": click.option("--top-k", type=int, metavar="K", help="Draw from the K likeliest tokens; 0 is all."),
    "top_p": click.option(
        "--top-p", type=float, metavar="P", help="Draw from the likeliest tokens whose probabilities add up to P."
    ),
    "min_p": click.option(
        "--min-p", type=float, metavar="P", help="Draw from tokens with at least P times the largest probability."
    ),
    "typical_p": click.option(
        "--typical-p", type=float, metavar="P", help="Draw from the most typical tokens whose probabilities add up to P."
    ),
    "repetition_penalty": click.option(
        "--repetition-penalty", type=float, metavar="R", help="Divides positive logits of tokens that were there; 1 is off."
    ),
    "presence_penalty": click.option(
        "--presence-penalty", type=float, metavar="X", help="Taken from the logits of tokens that the answer has."
    ),
    "frequency_penalty": click.option(
        "--frequency-penalty", type=float, metavar="X", help="The same for each time that it has them."
    ),
    "seed": click.option(
        "--seed", type=int, metavar="S", help="The same seed draws the same tokens (default: a new one each time)."
    ),
}
SAMPLING: Final = tuple(_OPTIONS)
"""The settings of a sampler."""


def sampling_options(command: Command) -> Command:
    """Decorator: an option for each of SAMPLING, None where it is not given."""
    for option in reversed(list(_OPTIONS.values())):
        command = option(command)
    return command


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, taken out of the options of a command."""
    return {name: value for name in SAMPLING if (value := options.pop(name)) is not None}


def sampler_of(given: Mapping[str, Any]) -> Sampler:
    """By the settings that were given; greedy if there are none, or none that draws."""
    from executor.model.sampling import Sampler

    penalties = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
    if given.keys() <= penalties:
        return Sampler(**given)
    return Sampler(**{**NEUTRAL, "seed": secrets.randbits(32), **given})


def facts_of(sampler: Sampler) -> dict[str, Any]:
    """All settings of a sampler."""
    return {name: getattr(sampler if hasattr(sampler, name) else sampler.adjustments, name) for name in SAMPLING}
