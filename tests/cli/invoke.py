"""Runs the commands inside the test process, and in a process of their own. No test."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from executor.commands.cli import main as ptxrun_main
from ptxgen.commands.cli import main as ptxgen_main

COMMANDS = {"ptxgen": ptxgen_main, "ptxrun": ptxrun_main}


def invoke(program: str, *words: object, stdin: str | bytes | None = None) -> Result:
    """The command's result; an exception that is not the package's own is raised here."""
    return CliRunner().invoke(COMMANDS[program], [str(word) for word in words], input=stdin, catch_exceptions=False)


def facts(program: str, *words: object, exit_code: int = 0) -> Any:
    """What the command says as JSON."""
    result = invoke(program, *words, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def refused(program: str, *words: object, stdin: str | bytes | None = None) -> str:
    """The one line that a bad input gets: on stderr, after the program's name, with exit code 2 and nothing on stdout."""
    result = invoke(program, *words, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith(f"{program}: ")
    return result.stderr.removeprefix(f"{program}: ").rstrip("\n")


def python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that runs this code."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False, **options)
