"""No block of a page is there for its looks: each is run, compared with a file, or says why not; and what it calls exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.cli.invoke import invoke
from tests.docs.pages import FILE, PAGES, Block, blocks, name
from tests.paths import ROOT

EXCERPT = re.compile(r"^From `([\w./-]+)`:$")
NOT_RUN = re.compile(r"^<!-- not run: \S.* -->$")
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


def calls(text: str, prompt: str = "") -> Iterator[list[str]]:
    """The words of each call of a command, in the lines of a block that start with the prompt and up to what a shell does with
    it."""
    for line in text.replace("\\\n", " ").splitlines():
        if not line.startswith(prompt):
            continue
        words: list[str] = []
        for word in (*lexed(line.removeprefix(prompt)), ";"):
            if word[0] not in "|&;<>()":
                words.append(word)
                continue
            while words and "=" in words[0]:
                del words[0]
            if words and PROGRAM.match(words[0]):
                yield words
            words = []


def lexed(line: str) -> list[str]:
    """A line as a shell splits it; nothing for what is no line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return []


def fault(words: list[str]) -> str:
    """What is wrong with a call: a command or an option that is not there; nothing if it is right."""
    match = PROGRAM.match(words[0])
    assert match is not None
    program, name = match[1], next(iter(words[1:]), "")
    if name.startswith("-") or not name:
        return ""
    options = known(program, name)
    if not options:
        return f"{program} has no {name}"
    given = (word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word))
    return ", ".join(f"{program} {name} has no {option}" for option in given if option not in options)


@cache
def known(program: str, command: str) -> frozenset[str]:
    """The options that a command's help names; none if there is no such command."""
    result = invoke(program, command, "--help")
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][\w-]*", result.stdout)) if result.exit_code == 0 else frozenset()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    found = [
        (block.line, fault(words))
        for block in blocks(page)
        if block.language != "python"
        for words in calls(block.text, "$ " if block.language == "console" else "")
    ]
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
    assert [fault(words) for words in calls(text, "$ " if text.startswith("$") else "")] == said


def test_a_block_that_nothing_runs_is_found() -> None:
    block = Block(ROOT / "docs" / "emulator.md", "python", "run()\n", 1, "It runs:")
    assert not is_accounted_for(block)
    assert not is_accounted_for(Block(block.page, "python", "not in that file\n", 1, "From `ptxgen/kernels/gemv/basic.py`:"))
    assert not is_accounted_for(Block(block.page, "sh", "ls\n", 1, "<!-- run by tests/no_such_test.py -->"))
