"""How the commands start and end: exit codes, interrupts, closed pipes, what an import costs."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner

from ptxgen.commands.front import Front, front
from ptxgen.errors import PtxGenError
from tests.cli.invoke import COMMANDS, invoke, python


def failing(error: BaseException) -> Front:
    group = front("tool", "A tool.")

    @group.command("fail")
    def fail_command() -> None:
        raise error

    return group


def test_an_error_of_the_package_is_one_line_with_exit_code_2() -> None:
    result = CliRunner().invoke(failing(PtxGenError("model.gguf: is empty")), ["fail"])
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "tool: model.gguf: is empty\n")


def test_any_other_exception_keeps_its_traceback() -> None:
    with pytest.raises(KeyError, match="bug"):
        CliRunner().invoke(failing(KeyError("bug")), ["fail"], catch_exceptions=False)


def test_an_interrupt_ends_with_130() -> None:
    assert CliRunner().invoke(failing(KeyboardInterrupt()), ["fail"]).exit_code == 130


@pytest.mark.parametrize("program", COMMANDS)
def test_an_unknown_subcommand_or_option_is_a_usage_error(program: str) -> None:
    assert invoke(program, "nonsense").exit_code == 2
    assert invoke(program, "--nonsense").exit_code == 2


@pytest.mark.parametrize(
    ("program", "name"),
    [(program, name) for program, group in COMMANDS.items() for name in group.list_commands(click.Context(group))],
)
def test_every_subcommand_shows_an_example_of_itself(program: str, name: str) -> None:
    result = invoke(program, name, "--help")
    assert result.exit_code == 0
    assert f"  {program} {name}" in result.stdout.split("Example", 1)[1]


def test_ctrl_c_in_a_running_command_says_nothing_and_ends_with_130() -> None:
    code = (
        "import signal, time, click\n"
        "from ptxgen.commands.front import front\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may have it ignored\n"
        "group = front('tool', '')\n"
        "@group.command('wait')\n"
        "def wait():\n"
        "    click.echo('ready')\n"
        "    time.sleep(30)\n"
        "group(['wait'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said.strip()) == (130, "")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_closed_pipe_is_quiet(at_once: bool) -> None:
    code = (
        "import time, click\n"
        "from ptxgen.commands.front import front\n"
        "group = front('tool', '')\n"
        "@group.command('talk')\n"
        "def talk():\n"
        f"    for i in range({100_000 if at_once else 1}):\n"
        "        print('word')\n"
        "    time.sleep(0.5)\n"
        "group(['talk'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(20) == 141


def test_importing_ptxgen_is_quick_and_imports_nothing_heavy() -> None:
    start = time.perf_counter()
    bare = python("pass")
    base = time.perf_counter() - start
    heavy = "{'cuda', 'llvmlite', 'tokenizers', 'numpy', 'jinja2', 'rich', 'gguf'}"
    start = time.perf_counter()
    imported = python(f"import ptxgen, sys; print(sorted({heavy} & set(sys.modules)))")
    seconds = time.perf_counter() - start - base
    assert bare.returncode == 0
    assert imported.stdout == "[]\n"
    assert seconds < 0.3


def test_the_commands_start_without_numpy_or_cuda() -> None:
    code = "import ptxgen.cli, executor.cli, sys; print(sorted({'cuda', 'llvmlite', 'tokenizers', 'numpy'} & set(sys.modules)))"
    assert python(code).stdout == "[]\n"


def test_importing_executor_needs_no_driver() -> None:
    result = python("import executor, executor.device, sys; print('cuda.bindings.driver' in sys.modules)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "False\n", "")


def test_the_package_knows_its_version() -> None:
    assert invoke("ptxgen", "--version").stdout.startswith("ptxgen, version ")
