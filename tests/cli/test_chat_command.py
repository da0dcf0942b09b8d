"""`ptxrun chat`: a conversation by lines of a pipe, and by a terminal, where Ctrl-C ends an answer and not the session."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoke import facts, invoke, refused
from tests.executor.model.test_answers import TEMPLATE
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

EMULATOR = ("--device", "emulator")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        tmp_path_factory.mktemp("model") / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96,
        context=4096, metadata={"tokenizer.chat_template": TEMPLATE},
    )  # fmt: skip


def chat(model: Path, *words: object, stdin: str) -> tuple[str, str]:
    """What is answered to lines, and what is said about it."""
    result = invoke("ptxrun", "chat", model, *EMULATOR, *words, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def saved(path: Path) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = json.loads(path.read_text())["messages"]
    return messages


def test_each_line_is_answered_and_knows_what_was_said(model: Path, tmp_path: Path) -> None:
    words = ("-n", 6, "--system", "be brief")
    said, about = chat(model, *words, stdin=f"hello\n\nmore\n/save {tmp_path / 'c.json'}\n")
    messages = saved(tmp_path / "c.json")
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert said == f"{messages[2]['content']}\n{messages[4]['content']}\n"
    assert about.count("(ended by: --max-tokens)") == 2
    assert "4 messages" in about
    first, _ = chat(model, *words, stdin="hello\n/exit\nmore\n")
    assert first == f"{messages[2]['content']}\n"
    alone, _ = chat(model, *words, stdin="more\n")
    assert alone != f"{messages[4]['content']}\n"
    anew, _ = chat(model, *words, stdin="hello\n/clear\nmore\n")
    assert anew == first + alone


def test_a_file_may_say_the_first_thing_and_a_stop_string_end_it(model: Path, tmp_path: Path) -> None:
    prompt = tmp_path / "p.txt"
    prompt.write_text("hello\n")
    whole, _ = chat(model, "-n", 12, "--prompt-file", prompt, stdin="")
    assert whole == chat(model, "-n", 12, stdin="hello\n")[0]
    stop = whole[3:5]
    cut, about = chat(model, "-n", 12, "--stop", stop, stdin="hello\n")
    assert cut == whole[: whole.index(stop)] + "\n"
    assert "(ended by: a stop string)" in about


def test_an_answer_has_the_form_that_it_must_have(model: Path, tmp_path: Path) -> None:
    said, about = chat(model, "--regex", "[0-9]{4}", stdin="hello\nmore\n")
    assert re.fullmatch(r"([0-9]{4}\n){2}", said)
    assert "ended by" not in about
    schema = tmp_path / "s.json"
    schema.write_text('{"enum": [17, "red"]}')
    words = ("ptxrun", "generate", model, *EMULATOR, "-p", "the", "--json-schema", schema)
    assert facts(*words)["text"] in ("17", '"red"')
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    lines = invoke("ptxrun", "generate", model, *EMULATOR, "--prompts", prompts, "--regex", "yes|no", "--json").stdout
    assert {json.loads(line)["text"] for line in lines.splitlines()} <= {"yes", "no"}
    schema.write_text("{")
    assert "the schema is no JSON" in refused(*words)
    both = invoke("ptxrun", "chat", model, *EMULATOR, "--regex", "a", "--grammar", schema, stdin="")
    assert (both.exit_code, "an answer has one form" in both.stderr) == (2, True)


@pytest.mark.slow
def test_how_likely_the_tokens_of_each_answer_were_is_said_after_it(model: Path) -> None:
    said, about = chat(model, "-n", 3, "--logprobs", 2, stdin="hello\nmore\n")
    assert said == chat(model, "-n", 3, stdin="hello\nmore\n")[0]
    lines = [line for line in about.splitlines() if " %  " in line]
    assert len(lines) == 6
    for line in lines:
        found = re.fullmatch(r" *(\S+) %  (b?'.*?') +(b?'.*?') (\S+), (b?'.*?') (\S+)", line)
        assert found is not None, line
        assert found.group(2, 1) == found.group(3, 4)  # the greedy choice is the likeliest
        assert 100 >= float(found[4]) >= float(found[6]) > 0
    tokens = [ast.literal_eval(re.split(r" %  | {2,}", line.strip())[1]) for line in lines[:3]]
    told = b"".join(token if isinstance(token, bytes) else token.encode() for token in tokens)
    assert told.decode(errors="replace") == said.splitlines()[0]


def test_a_full_context_is_said(model: Path) -> None:
    said, about = chat(model, "--context", 64, "--regex", "a{1000}", stdin="hello\n")  # more than the context has room for
    assert set(said) == {"a", "\n"}
    assert "(ended by: the context is full; /clear begins anew)" in about


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        ((), "/clea\n", "there is no command /clea; allowed: /clear, /save, /help, /exit"),
        ((), "/save\n", "/save needs the name of a file"),
        ((), "/save {there}\n", "cannot be written: File exists"),
        (("--prompt-file", "{empty}"), "", "is empty; allowed: what is to be said first"),
        (("--prompt-file", "{pipe}"), "", "pipe: cannot be read: it is not a regular file"),
        (("--json-schema", "{pipe}"), "", "pipe: cannot be read: it is not a regular file"),
        (("--repetition-penalty", "0"), "", "repetition_penalty is 0.0; allowed: above 0"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    model: Path, tmp_path: Path, words: tuple[str, ...], stdin: str, said: str
) -> None:  # fmt: skip
    (tmp_path / "there").write_text("x")
    (tmp_path / "empty").write_text("\n")
    os.mkfifo(tmp_path / "pipe")
    places = {name: tmp_path / name for name in ("there", "empty", "pipe")}
    given = [word.format(**places) for word in words]
    assert said in refused("ptxrun", "chat", model, *EMULATOR, *given, stdin=stdin.format(**places))
    assert (tmp_path / "there").read_text() == "x"


def test_a_model_without_a_template_says_so_before_anything_is_typed(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64}
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, tokenizer="none", **shape)
    assert "has no chat template" in refused("ptxrun", "chat", path, *EMULATOR, stdin="")


class Terminal:
    """A process in a terminal of its own, from which Ctrl-C comes: the first one that the leader of a session opens."""

    def __init__(self, *words: object) -> None:
        self.terminal, end = pty.openpty()
        heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # what started us may ignore it
        command = [sys.executable, "-c", f"{heed}; from ptxgen.commands.start import ptxrun; ptxrun()", *map(str, words)]
        shell = ["/bin/sh", "-c", 'name=$1; shift; exec "$@" <"$name" >"$name" 2>&1', "sh", os.ttyname(end)]
        self.process = subprocess.Popen([*shell, *command], start_new_session=True)
        self.seen = ""
        self.wait_for("> ")
        os.close(end)

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def wait_for(self, text: str, since: int = 0, seconds: float = 60) -> int:
        """Until the terminal has shown a text after some place; where that ends."""
        deadline = time.monotonic() + seconds
        while text not in self.seen[since:]:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen[since:]!r}"
            if select.select([self.terminal], [], [], 0.2)[0]:
                self.seen += os.read(self.terminal, 4096).decode(errors="replace")
        return self.seen.index(text, since) + len(text)


def test_ctrl_c_ends_an_answer_and_not_the_session(model: Path) -> None:
    terminal = Terminal("chat", model, *EMULATOR, "--context", 4000)
    try:
        at = len(terminal.seen)
        for _ in range(2):  # the second one would end any other command
            terminal.type("hello\r")
            at = terminal.wait_for("hello", at)
            terminal.wait_for("\n", at)
            time.sleep(1.0)
            terminal.type("\x03")
            at = terminal.wait_for("(ended by: Ctrl-C)", at)
            at = terminal.wait_for("> ", at)
        time.sleep(0.5)  # Python forgets a signal until the next key if it comes just before it waits for one
        terminal.type("\x03")  # where nothing is answered: a new line
        at = terminal.wait_for("> ", at)
        terminal.type("/nothing\r")
        at = terminal.wait_for("there is no command /nothing", at)
        terminal.type("/exit\r")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.process.kill()
        os.close(terminal.terminal)


@pytest.mark.slow
def test_a_template_is_named_where_there_are_several(model: Path) -> None:
    refused = invoke("ptxrun", "chat", model, *EMULATOR, "--template", "nosuch", stdin="x\n")
    assert refused.exit_code == 2
    assert "there is no chat template nosuch; allowed: default" in refused.stderr
    assert chat(model, "-n", 2, "--template", "default", stdin="x\n") == chat(model, "-n", 2, stdin="x\n")
