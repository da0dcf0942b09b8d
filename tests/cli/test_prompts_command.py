"""`ptxrun generate` with many prompts, and with drafts, on the emulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.commands.prompts import KEYS, read_prompts
from executor.model.sampling import Sampler
from ptxgen.errors import ArgumentError
from tests.cli.invoke import facts, invoke, refused
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

EMULATOR = ("--device", "emulator")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_model(folder / "m.gguf", types=Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)


def written(folder: Path, *lines: Mapping[str, object] | str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def sampler(own: Mapping[str, Any]) -> Sampler:
    return Sampler(**own)


def test_a_line_says_what_the_options_do_not() -> None:
    content = b'{"prompt": "a"}\n\n{"prompt": "b", "id": "x", "max_tokens": 2, "stop": "end", "temperature": 0.5, "seed": 3}\n'
    plain, own = read_prompts("p.jsonl", content, 9, sampler)
    assert (plain.line, plain.id, plain.text, plain.max_tokens, plain.stop) == (1, 1, "a", 9, ())
    assert (own.line, own.id, own.text, own.max_tokens, own.stop) == (3, "x", "b", 2, ("end",))
    assert (own.sampler.temperature, own.sampler.seed) == (0.5, 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"p.jsonl:2: not JSON \(.*\); allowed: an object a line, with the keys prompt, id,"),
        ("\xff", "p.jsonl:2: not JSON"),
        ("[" * 100_000, "p.jsonl:2: not JSON"),
        ('"hello"', "p.jsonl:2: 'hello'; allowed: an object with the keys"),
        ('{"promt": "a"}', f"p.jsonl:2: there is no key promt; allowed: {', '.join(KEYS)}"),
        ("{}", "p.jsonl:2: prompt is missing; allowed: text"),
        ('{"prompt": 5}', "p.jsonl:2: prompt is 5; allowed: text"),
        ('{"prompt": "a", "max_tokens": 0}', "p.jsonl:2: max_tokens is 0; allowed: a whole number"),
        ('{"prompt": "a", "max_tokens": true}', "p.jsonl:2: max_tokens is True"),
        ('{"prompt": "a", "temperature": -1}', "p.jsonl:2: temperature is -1; allowed"),
        ('{"prompt": "a", "temperature": NaN}', "p.jsonl:2: temperature is nan; allowed"),
        ('{"prompt": "a", "stop": ""}', "p.jsonl:2: stop is .*; allowed: text of at least one character"),
        ('{"prompt": "a", "stop": [1]}', r"p.jsonl:2: stop is \[1\]; allowed"),
        ('{"prompt": "a", "id": 1.5}', "p.jsonl:2: id is 1.5; allowed: text or a whole number"),
        ('{"prompt": "a", "id": 1}', "p.jsonl:2: the id 1 is that of line 1, too; each needs its own"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_allowed(line: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        read_prompts("p.jsonl", b'{"prompt": "a"}\n' + line.encode("latin-1") + b"\n", 1, sampler)


def test_a_file_without_prompts_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r'p.jsonl has no prompts; a line of it is such as \{"prompt": "Hello"'):
        read_prompts("p.jsonl", b"\n \n", 1, sampler)


def answers(*words: object) -> dict[Any, dict[str, Any]]:
    """By id, what `generate --json` prints."""
    result = invoke("ptxrun", "generate", *words, *EMULATOR, "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return {line["id"]: line for line in lines}


def test_each_prompt_is_answered_as_if_it_were_alone(model: Path, tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "the", "id": "first"},
        {"prompt": "on the", "max_tokens": 2},
        {"prompt": "a", "temperature": 2, "seed": 7},
    )
    said = answers(model, "--prompts", path, "-n", "5")
    assert set(said) == {"first", 2, 3}
    alone = facts("ptxrun", "generate", model, "-p", "the", "-n", "5", *EMULATOR)
    assert said["first"]["text"] == alone["text"]
    assert said["first"]["token_ids"] == alone["token_ids"]
    assert said["first"]["usage"]["prompt_tokens"] == len(alone["prompt_ids"])
    assert (len(said[2]["token_ids"]), said[2]["stopped"], said[2]["line"]) == (2, "length", 2)
    drawn = facts("ptxrun", "generate", model, "-p", "a", "-n", "5", "--temperature", "2", "--seed", "7", *EMULATOR)
    assert said[3]["token_ids"] == drawn["token_ids"]
    assert (said[3]["seed"], said["first"]["seed"]) == (7, None)


def test_answers_are_printed_as_they_finish_with_their_ids(model: Path, tmp_path: Path) -> None:
    path = written(
        tmp_path, {"prompt": "the", "id": "long", "max_tokens": 4}, {"prompt": "the", "id": "short", "max_tokens": 1}
    )
    result = invoke("ptxrun", "generate", model, "--prompts", path, *EMULATOR)
    assert result.exit_code == 0, result.output
    assert result.stdout.index("short: 1 token, stopped: length") < result.stdout.index("long: 4 tokens, stopped: length")
    assert result.stderr.startswith("2 prompts, 5 tokens, ")


def test_drafts_leave_greedy_text_as_it_is(model: Path, tmp_path: Path) -> None:
    words = ("ptxrun", "generate", model, "-p", "the the the the", "-n", "8", *EMULATOR)
    plain, drafted = facts(*words), facts(*words, "--draft", "lookup")
    assert drafted["token_ids"] == plain["token_ids"]
    assert (drafted["text"], drafted["stopped"]) == (plain["text"], plain["stopped"])
    assert drafted["drafted_tokens"] > 0
    shown = invoke(*words, "--draft", "lookup")
    assert shown.stdout == plain["text"] + "\n"
    assert "drafts: " in shown.stderr
    (several,) = answers(
        model, "--prompts", written(tmp_path, {"prompt": "the the the the"}), "-n", "8", "--draft", "lookup"
    ).values()
    assert several["token_ids"] == plain["token_ids"]


@pytest.mark.parametrize("words", [("--seed", "1"), ("--temperature", "0.5"), ("--top-k", "3")])
def test_drafts_are_for_greedy_text_only(model: Path, words: tuple[str, ...]) -> None:
    said = refused("ptxrun", "generate", model, "-p", "the", "--draft", "lookup", *words, *EMULATOR)
    assert said.startswith("--draft lookup is for greedy text, which it leaves as it is; leave out ")


@pytest.mark.parametrize(
    ("line", "words", "said"),
    [
        ({"prompt": "a", "temperature": 1}, ("--draft", "lookup"), "prompts.jsonl:1: --draft lookup is for greedy text"),
        ({"prompt": "a", "top_k": 1}, ("--greedy",), "prompts.jsonl:1: --greedy draws nothing, so it does not go with top_k"),
        ({"prompt": "the " * 100}, (), "prompts.jsonl:1: the prompt has "),
        ({"prompt": "a"}, ("--context", "8"), "the context is 8 tokens; for several prompts or drafts at least 32"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_anything_is(
    model: Path, tmp_path: Path, line: Mapping[str, object], words: tuple[str, ...], said: str
) -> None:
    assert said in refused("ptxrun", "generate", model, "--prompts", written(tmp_path, line), *words, *EMULATOR)


def test_prompt_and_prompts_exclude_each_other(model: Path, tmp_path: Path) -> None:
    for words in ((), ("-p", "a", "--prompts", written(tmp_path, {"prompt": "a"})), ("-p", "a", "--tokens", "1")):
        result = invoke("ptxrun", "generate", model, *words)
        assert result.exit_code == 2
        assert "give --prompt, --prompts or --tokens, one of them" in result.stderr


def test_a_file_that_is_not_there_is_named(model: Path, tmp_path: Path) -> None:
    said = refused("ptxrun", "generate", model, "--prompts", tmp_path / "no.jsonl", *EMULATOR)
    assert said == f"{tmp_path / 'no.jsonl'}: cannot be read: No such file or directory"
