"""The options that several subcommands of `ptxgen` and `ptxrun` have, each with its words in one place. No subcommand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ptxgen.commands.completion import complete_gpus, complete_settings, complete_targets
from ptxgen.errors import ArgumentError
from ptxgen.target import ALL, Target

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Command = TypeVar("Command", bound=Callable[..., Any])
Options = TypeVar("Options", bound="DataclassInstance")

FILE: Final = click.Path(path_type=Path)
TARGETS: Final = f"{', '.join(map(str, ALL))}, sm_90a, ..."

set_option = click.option(
    "settings",
    "--set",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the shape; see `ptxgen list`.",
    shell_complete=complete_settings,
)


def target_option(default: str) -> Callable[[Command], Command]:
    """Decorator: the option --target, as `target_name`, None where it is not given; `default` says what counts then."""
    help = f"GPU target (default: {default}): {TARGETS}"
    return click.option("target_name", "--target", help=help, shell_complete=complete_targets)


def gpu_option(help: str = "A GPU, whose target counts: l4, rtx4090, ...", **options: Any) -> Callable[[Command], Command]:
    """Decorator: the option --gpu, as `gpu_name`, None where it is not given."""
    return click.option("gpu_name", "--gpu", metavar="GPU", help=help, shell_complete=complete_gpus, **options)


def parse_target(name: str | None, gpu_name: str | None = None) -> Target | None:
    """The target of this name, or of the GPU of that name, None of none. ArgumentError lists the known ones."""
    from ptxgen.gpus.gpu import find_gpu

    if name is not None and gpu_name is not None:
        raise ArgumentError(f"--target names {name}, and --gpu {gpu_name}; leave one of the two out")
    if gpu_name is not None:
        return find_gpu(gpu_name).target
    return None if name is None else Target.parse(name)


def json_option(help: str = "The same facts as JSON.") -> Callable[[Command], Command]:
    """Decorator: the flag --json, as `as_json`."""
    return click.option("as_json", "--json", is_flag=True, help=help)


def options_as(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """The options of a command that a dataclass has fields of, as that dataclass."""
    return kind(**{field.name: given[field.name] for field in fields(kind)})


def whole_numbers(option: str, text: str, what: str, example: str, low: float = -inf) -> list[int]:
    """The numbers of an option such as `1,4,8`. ArgumentError, with `what` they are and an example, for anything else."""
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < low:
        raise ArgumentError(f"{option} {text[:80]!r} is not {what} separated by commas, such as {example}")
    return numbers
