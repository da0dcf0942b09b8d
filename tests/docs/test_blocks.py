"""No block of a page is there for its looks: each is run, compared with a file, or says why not; and what it calls exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.invoke import COMMANDS
from tests.docs.pages import FILE, PAGES, Block, blocks, name
from tests.paths import ROOT

EXCERPT = re.compile(r"^From `([\w./-]+)`:$")
NOT_RUN = re.compile(r"^<!-- not run: \w.* -->$")
RUN_BY = re.compile(r"^<!-- run by (tests/[\w./-]+) -->$")
PROGRAM = re.compile(r"(?:\S*/)?(ptxgen|ptxrun)$")


def is_accounted_for(block: Block) -> bool:
    """Whether something shows that the block is right, or the page says why nothing does. Text is no code."""
    if block.language in ("text", "console") or ">>> " in block.text or NOT_RUN.match(block.above):
        return True
    if run_by := RUN_BY.match(block.above):
        return (ROOT / run_by[1]).exists()
    if excerpt := EXCERPT.match(block.above):
        return block.text in (ROOT / excerpt[1]).read_text()
    if file := FILE.match(block.above):
        written = any(other.language == "console" for other in blocks(block.page))  # and run: test_commands.py
        return written or ((ROOT / file[1]).is_file() and block.text == (ROOT / file[1]).read_text())
    return False


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_compared_or_says_why_not(page: Path) -> None:
    faults = [f"{name(page)}:{block.line}" for block in blocks(page) if not is_accounted_for(block)]
    assert not faults


def calls(text: str) -> Iterator[list[str]]:
    """The words of each call of a command in a block, up to what a shell does with it."""
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"\|\|?|&&|;", line.removeprefix("$ ")):
            words = (
                list(shlex.shlex(part, posix=True, punctuation_chars="<>()"))
                if part.count("'") % 2 == part.count('"') % 2 == 0
                else []
            )
            at = next((i for i, word in enumerate(words) if PROGRAM.match(word)), None)
            if at is not None and all("=" in word or word == "exec" for word in words[:at]):
                yield words[at:]


def fault(words: list[str]) -> str:
    """What is wrong with a call: a command or an option that is not there; nothing if it is right."""
    match = PROGRAM.match(words[0])
    assert match is not None
    group = COMMANDS[match[1]]
    if len(words) == 1 or words[1].startswith("-"):
        return ""
    command = group.get_command(click.Context(group), words[1])
    if command is None:
        return f"{match[1]} has no {words[1]}"
    known = {
        "--help",
        "-h",
        *(option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)),
    }
    given = (word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word))
    return ", ".join(f"{match[1]} {words[1]} has no {option}" for option in given if option not in known)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    found = [(block.line, fault(words)) for block in blocks(page) if block.language != "python" for words in calls(block.text)]
    assert [f"{name(page)}, block at {line}: {said}" for line, said in found if said] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ptxgen emits rmsnorm", ["ptxgen has no emits"]),
        ("$ A=1 .venv/bin/ptxgen emit rmsnorm --sett hidden=5 | head", ["ptxgen emit has no --sett"]),
        ("ptxrun generate m.gguf -p 'x | y' \\\n  --temprature 1 # why", ["ptxrun generate has no --temprature"]),
        ("ptxgen emit rmsnorm --set hidden=5 -o a.ptx && ptxgen list", ["", ""]),
        ("# ptxgen is a program", []),
    ],
)
def test_a_call_of_what_is_not_there_is_found(text: str, said: list[str]) -> None:
    assert [fault(words) for words in calls(text)] == said


def test_a_block_that_nothing_runs_is_found() -> None:
    block = Block(ROOT / "docs" / "emulator.md", "python", "run()\n", 1, "It runs:")
    assert not is_accounted_for(block)
    assert not is_accounted_for(Block(block.page, "python", "not in that file\n", 1, "From `ptxgen/kernels/gemv/basic.py`:"))
    assert not is_accounted_for(Block(block.page, "sh", "ls\n", 1, "<!-- run by tests/no_such_test.py -->"))
