"""Subcommands of other packages, found by entry point: a good one works, a broken one is named and harms no other."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from ptxgen.commands.group import CommandGroup, command_group

STRANGER = "strangers_commands"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> CommandGroup:
    """A tool with the command `own`, and three from outside."""

    @click.command("hello")
    def hello() -> None:
        click.echo("hello")

    module = ModuleType(STRANGER)
    module.__dict__.update(hello=hello, number=5)
    monkeypatch.setitem(__import__("sys").modules, STRANGER, module)
    found = [
        EntryPoint("hello", f"{STRANGER}:hello", "tool.commands"),
        EntryPoint("number", f"{STRANGER}:number", "tool.commands"),
        EntryPoint("absent", "no_such_module:command", "tool.commands"),
        EntryPoint("own", f"{STRANGER}:hello", "tool.commands"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [p for p in found if p.group == group])
    made = command_group("tool", "A tool.", plugins="tool.commands")
    made.add_command(click.Command("own", callback=lambda: click.echo("own")))
    return made


def test_a_command_from_outside_runs(group: CommandGroup) -> None:
    assert CliRunner().invoke(group, ["hello"]).output == "hello\n"


def test_a_name_of_our_own_is_not_taken_away(group: CommandGroup) -> None:
    assert CliRunner().invoke(group, ["own"]).output == "own\n"


def test_a_broken_command_is_named_with_its_reason(group: CommandGroup) -> None:
    absent = CliRunner().invoke(group, ["absent", "--option", "word"])
    assert absent.exit_code == 2
    assert absent.stderr == (
        "tool: the command absent of no_such_module:command cannot be used: "
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )
    assert "it is a int, not a click command" in CliRunner().invoke(group, ["number"]).stderr


def test_the_help_lists_all_of_them(group: CommandGroup) -> None:
    lines = CliRunner().invoke(group, ["--help"]).stdout.split("Commands:")[1].splitlines()
    assert [line.split()[0] for line in lines if line] == ["absent", "hello", "number", "own"]


def test_an_unknown_name_is_still_a_usage_error(group: CommandGroup) -> None:
    assert "No such command 'nonsense'" in CliRunner().invoke(group, ["nonsense"]).stderr
