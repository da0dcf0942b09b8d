"""The options of commands whose answers must have a form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from ptxgen.commands.options import FILE, Command
from ptxgen.errors import ArgumentError
from ptxgen.files import read_text

if TYPE_CHECKING:
    from executor.text.grammar import Grammar

FORMS: Final = ("json_schema", "grammar", "regex")
MOST_BYTES: Final = 1 << 24
"""Of a file that says the form."""


def grammar_options(command: Command) -> Command:
    """Decorator: an option for each of FORMS, None where it is not given."""
    for option in (
        click.option("--regex", metavar="PATTERN", help="The answer is text that this regular expression matches as a whole."),
        click.option("--grammar", type=FILE, metavar="FILE", help="The answer is text of a Lark grammar (llguidance's)."),
        click.option("--json-schema", type=FILE, metavar="FILE", help="The answer is JSON that conforms to this schema."),
    ):
        command = option(command)
    return command


def grammar_of(options: dict[str, Any]) -> Grammar | None:
    """By the one of FORMS that was given, taken out of the options of a command."""
    given = {name: value for name in FORMS if (value := options.pop(name)) is not None}
    if not given:
        return None
    if len(given) > 1:
        first, second, *_ = (f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{first} does not go with {second}: an answer has one form")
    from executor.text.grammar import Grammar

    (name, value), *_ = given.items()
    if name == "regex":
        return Grammar.regex(value)
    text = read_text(value, MOST_BYTES)
    try:
        return Grammar.json_schema(text) if name == "json_schema" else Grammar.lark(text)
    except ArgumentError as error:
        raise ArgumentError(f"{value}: {error}") from error
