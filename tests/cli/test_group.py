"""How the commands start and end: exit codes, interrupts, closed pipes, what an import costs."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ptxgen.commands.group import CommandGroup, command_group
from ptxgen.errors import PtxGenError
from tests.cli.invoke import COMMANDS, invoke, python


def failing(error: BaseException) -> CommandGroup:
    group = command_group("tool", "A tool.")

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


def test_an_interrupt_that_python_makes_another_error_of_ends_with_130() -> None:
    """Python 3.11 raises RuntimeError from what `__set_name__` raises, which runs for each field of a dataclass."""
    raised: type[BaseException] = KeyboardInterrupt

    class Field:
        def __set_name__(self, owner: type, name: str) -> None:
            raise raised

    group = command_group("tool", "A tool.")

    @group.command("define")
    def define_command() -> None:
        type("Owner", (), {"field": Field()})

    result = CliRunner().invoke(group, ["define"])
    assert (result.exit_code, result.output.strip()) == (130, "")
    raised = ValueError
    with pytest.raises((RuntimeError, ValueError)):
        CliRunner().invoke(group, ["define"], catch_exceptions=False)


def test_a_package_that_raises_an_interrupt_of_its_own_is_bad_input() -> None:
    error = PtxGenError("strange: KeyboardInterrupt")
    error.__cause__ = KeyboardInterrupt()
    assert CliRunner().invoke(failing(error), ["fail"]).exit_code == 2


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
        "from ptxgen.commands.group import command_group\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may have it ignored\n"
        "group = command_group('tool', '')\n"
        "@group.command('wait')\n"
        "def wait():\n"
        "    click.echo('ready')\n"
        "    time.sleep(200)\n"
        "group(['wait'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said.strip()) == (130, "")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_closed_pipe_is_quiet(at_once: bool) -> None:
    code = (
        "import time, click\n"
        "from ptxgen.commands.group import command_group\n"
        "group = command_group('tool', '')\n"
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
    assert process.wait(120) == 141


def test_importing_ptxgen_is_quick_and_imports_nothing_heavy() -> None:
    imported = python(
        "import sys, time\nbegan = time.process_time()\nimport ptxgen\n"
        "heavy = {'cuda', 'llvmlite', 'tokenizers', 'numpy', 'jinja2', 'rich', 'gguf'} & set(sys.modules)\n"
        "print(time.process_time() - began, *heavy)"
    )
    seconds, *heavy = imported.stdout.split()
    assert heavy == []
    assert float(seconds) < 0.9  # three times what is aimed at, for slow machines


def test_the_commands_start_without_numpy_or_cuda() -> None:
    heavy = "{'cuda', 'llvmlite', 'tokenizers', 'numpy'}"
    code = f"import ptxgen.commands.cli, executor.commands.cli, sys; print(sorted({heavy} & set(sys.modules)))"
    assert python(code).stdout == "[]\n"


def test_importing_executor_needs_no_driver() -> None:
    result = python("import executor, executor.device, sys; print('cuda.bindings.driver' in sys.modules)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "False\n", "")


def test_the_package_knows_its_version() -> None:
    assert invoke("ptxgen", "--version").stdout.startswith("ptxgen, version ")


def started(program: str, words: str) -> subprocess.CompletedProcess[str]:
    """The command as its entry point starts it, by a shell that may put its streams elsewhere."""
    code = f"import sys; sys.argv[0] = {program!r}; import ptxgen.commands.start as start; start.{program}()"
    line = f"{sys.executable} -c {shlex.quote(code)} {words}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("program", "words"), [("ptxgen", "--help"), ("ptxgen", "list"), ("ptxgen", "list --json"), ("ptxrun", "--version")]
)
def test_a_stdout_that_cannot_be_written_is_said_in_a_sentence(program: str, words: str) -> None:
    for redirected, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        result = started(program, f"{words} {redirected}")
        assert (result.returncode, result.stderr) == (2, f"{program}: stdout cannot be written: {why}\n")
    result = started(program, f"{words} > >(exec <&-)")  # nobody reads
    assert (result.returncode, result.stderr) == (141, "")


def test_no_file_is_opened_in_the_place_of_a_closed_stdout(tmp_path: Path) -> None:
    path = tmp_path / "norm.ptx"
    result = started("ptxgen", f"emit rmsnorm --set hidden=64 -o {path} <&- >&- 2>&-")
    assert result.returncode == 0
    assert path.read_text().startswith("//")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["norm.json", "norm.ptx"]


def test_an_error_of_another_file_is_not_taken_for_one_of_stdout() -> None:
    with pytest.raises(OSError, match="disk"):
        CliRunner().invoke(failing(OSError(errno.ENOSPC, "the disk is full")), ["fail"], catch_exceptions=False)


def test_codes_that_a_terminal_obeys_are_spelt() -> None:
    result = CliRunner().invoke(failing(PtxGenError("a \x1b[2J b \ud800 \u00e9\nc")), ["fail"])
    assert result.stderr == "tool: a \\x1b[2J b \\ud800 \u00e9\nc\n"


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_modules_are_imported_says_nothing_and_ends_with_130(ignored: bool, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "print('ready', flush=True)\n"
        "try:\n"
        f"    time.sleep({2 if ignored else 200})\n"
        "except BaseException as error:\n"  # as modules do that import something optional
        "    raise ImportError('cannot import a part') from error\n"
        "main = lambda: print('ran')\n"
    )
    action = "SIG_IGN" if ignored else "default_int_handler"
    code = f"import signal; signal.signal(2, signal.{action}); from ptxgen.commands import start; start._start('slow')"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=120)
    assert (process.returncode, rest, said) == ((0, "ran\n", "") if ignored else (130, "", ""))


LONG = "[ctypes.CDLL(None).pthread_mutex_lock(mutex) for _ in range(2)]"
"""A call of C that never ends, and lets other threads run meanwhile, as an assembler's does."""


@pytest.mark.parametrize(
    "work",
    [LONG, f"with ThreadPoolExecutor() as pool: pool.submit(lambda: {LONG}).result()", f"atexit.register(lambda: {LONG})"],
    ids=["in a call", "that waits for a thread", "at its end"],
)
def test_a_command_has_two_seconds_to_end_after_ctrl_c_whatever_it_does(work: str) -> None:
    code = (
        "import atexit, ctypes, os, signal, sys, time, types\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "mutex = ctypes.create_string_buffer(64)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may have it ignored\n"
        "from ptxgen.commands.group import command_group\n"
        "group = command_group('tool', '')\n"
        "@group.command('work')\n"
        "def work():\n"
        "    os.write(1, b'ready\\n')\n"
        f"    {work}\n"
        "    time.sleep(200)\n"
        "sys.modules['tool'] = types.SimpleNamespace(main=lambda: group(['work']))\n"
        "from ptxgen.commands import start\n"
        "start._start('tool')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    try:
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, said.strip()) == (130, "")
    assert time.monotonic() - started < 2


def test_a_second_ctrl_c_says_nothing_either() -> None:
    code = (
        "import os, signal, sys, time, types\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # who starts the tests may have it ignored\n"
        "def wait():\n"
        "    try:\n"
        "        os.write(1, b'ready\\n')\n"
        "        time.sleep(200)\n"
        "    finally:\n"
        "        os.write(1, b'tidying\\n')\n"
        "        time.sleep(200)\n"
        "from ptxgen.commands.group import command_group\n"
        "group = command_group('tool', '')\n"
        "group.command('wait')(wait)\n"
        "sys.modules['tool'] = types.SimpleNamespace(main=lambda: group(['wait']))\n"
        "from ptxgen.commands import start\n"
        "start._start('tool')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for said in ("ready\n", "tidying\n"):
        assert process.stdout.readline() == said
        process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (130, "")
