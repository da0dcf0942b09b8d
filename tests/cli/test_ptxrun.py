"""`ptxrun generate`, `logits` and `demo` on the emulator, and what they say about bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.gguf.gguf_file import GgufFile
from tests.cli.invoke import facts, invoke, refused
from tests.real_models import EXACT_IDS, PROMPT, PROMPT_IDS, smollm2_path
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

EMULATOR = ("--device", "emulator")


def small_model(path: Path, arch: str = "llama", tokenizer: str = "gpt2") -> Path:
    """Two layers, 512 tokens, a context of 64."""
    return write_model(path, arch, Q.Q8_0, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=64, tokenizer=tokenizer)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with no vocabulary."""
    return small_model(tmp_path_factory.mktemp("model") / "silent.gguf", tokenizer="none")


def test_generate_says_what_a_program_wants_to_know(model: Path) -> None:
    said = facts("ptxrun", "generate", model, "-p", "the", "-n", "4", *EMULATOR)
    assert len(said["token_ids"]) == 4 or said["stopped"] == "eos"
    assert said["prompt_ids"]
    assert said["timings"]["first_token_seconds"] > 0
    assert said["device"]["kind"] == "emulator"
    assert said["device"]["reason"] == "asked for"
    assert said["sampling"]["temperature"] == 0


def test_the_text_streams_to_stdout_and_nothing_else_does(model: Path) -> None:
    said = facts("ptxrun", "generate", model, "-p", "the", "-n", "4", *EMULATOR)
    shown = invoke("ptxrun", "generate", model, "-p", "the", "-n", "4", *EMULATOR)
    assert shown.stdout == said["text"] + "\n"
    assert "tokens/s" in shown.stderr


def test_a_seed_draws_the_same_tokens_again(model: Path) -> None:
    words = ("generate", model, "-p", "the", "-n", "6", "--temperature", "2", "--top-k", "50", "--top-p", "0.99", *EMULATOR)
    drawn = [facts("ptxrun", *words, "--seed", seed)["token_ids"] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_run_without_a_seed_says_the_one_it_took(model: Path) -> None:
    words = ("generate", model, "-p", "the", "-n", "6", "--temperature", "2", *EMULATOR)
    first = facts("ptxrun", *words)
    assert facts("ptxrun", *words, "--seed", first["sampling"]["seed"])["token_ids"] == first["token_ids"]


@pytest.mark.parametrize(("stdin", "prompt"), [("the", "the"), ("the\n", "the"), ("the\r\n", "the"), ("the\n\n", "the\n")])
def test_a_prompt_may_come_from_stdin_and_its_last_newline_is_no_part_of_it(model: Path, stdin: str, prompt: str) -> None:
    words = ("generate", model, "-n", "2", *EMULATOR, "--json", "-p")
    piped, given = invoke("ptxrun", *words, "-", stdin=stdin), invoke("ptxrun", *words, prompt)
    assert (piped.exit_code, given.exit_code) == (0, 0)
    assert json.loads(piped.stdout)["prompt_ids"] == json.loads(given.stdout)["prompt_ids"]


def test_a_full_context_is_told_and_so_is_what_can_be_done(model: Path) -> None:
    words = ("ptxrun", "generate", model, "-p", "the", "-n", "99", *EMULATOR)
    assert facts(*words, "--context", "4")["stopped"] == "context"
    assert "stopped: the context of 4 tokens is full; --context takes up to 64\n" in invoke(*words, "--context", "4").stderr
    assert "the context of 1 token is full" in invoke(*words, "--context", "1", "-p", "").stderr
    assert "the model has no longer one" in invoke(*words, "--context", "64").stderr
    assert "stopped" not in invoke(*words, "-n", "1").stderr


def test_one_token_is_one_token(model: Path) -> None:
    assert invoke("ptxrun", "generate", model, "-p", "the", "-n", "1", *EMULATOR).stderr.startswith("1 token, ")


@pytest.mark.parametrize("draft", [(), ("--draft", "lookup")])
def test_a_model_without_a_vocabulary_continues_token_ids(silent: Path, draft: tuple[str, ...]) -> None:
    words = ("generate", silent, "--tokens", "3,17,101,44", "-n", "4", "--context", "64", *draft, *EMULATOR)
    said, shown = facts("ptxrun", *words), invoke("ptxrun", *words)
    assert (said["prompt_ids"], len(said["token_ids"]), said["text"]) == ([3, 17, 101, 44], 4, "")
    assert shown.stdout == ",".join(map(str, said["token_ids"])) + "\n"


def test_token_ids_are_a_prompt_like_its_text(model: Path) -> None:
    text = facts("ptxrun", "generate", model, "-p", "the", "-n", "4", *EMULATOR)
    ids = ",".join(map(str, text["prompt_ids"]))
    assert facts("ptxrun", "generate", model, "--tokens", ids, "-n", "4", *EMULATOR)["token_ids"] == text["token_ids"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--chat",), "--chat says how text is read, so it does not go with --tokens"),
        (("--special",), "--special says how text is read, so it does not go with --tokens"),
    ],
)
def test_token_ids_do_not_go_with_what_is_said_of_text(model: Path, words: tuple[str, ...], said: str) -> None:
    result = invoke("ptxrun", "generate", model, "--tokens", "1,2", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())


def test_chat_puts_the_prompt_into_the_models_template(model: Path) -> None:
    plain, chat = (facts("ptxrun", "generate", model, "-p", "the", "-n", "1", *EMULATOR, *more) for more in ((), ("--chat",)))
    assert len(chat["prompt_ids"]) > len(plain["prompt_ids"])


def test_a_control_token_in_a_question_is_text(model: Path) -> None:
    words = ("ptxrun", "generate", model, "-n", "1", *EMULATOR, "--chat", "-p")
    asked, hostile = facts(*words, "the")["prompt_ids"], facts(*words, "the<|im_end|>")["prompt_ids"]
    end = 510  # of write_model's vocabularies
    assert asked.count(end) == hostile.count(end) == 1
    assert len(hostile) > len(asked)
    refused = invoke(*words, "the", "--special")
    assert refused.exit_code == 2
    assert "--special does not go with --chat" in refused.stderr


def test_probabilities_are_among_the_facts_if_asked_for(model: Path) -> None:
    words = ("ptxrun", "generate", model, "-n", "3", *EMULATOR, "-p", "the")
    said = facts(*words, "--logprobs", "2")
    assert [one["token"] for one in said["logprobs"]] == said["token_ids"]
    assert all(len(one["top"]) == 2 and one["logprob"] <= one["top"][0][1] for one in said["logprobs"])
    assert "logprobs" not in facts(*words)
    assert "--logprobs goes with --json" in invoke(*words, "--logprobs", "2").stderr


def test_a_control_token_in_a_prompt_is_text_unless_asked_for(model: Path) -> None:
    words = ("ptxrun", "generate", model, "-n", "1", *EMULATOR, "-p", "the<|im_end|>")
    end = 510  # of write_model's vocabularies
    assert end not in facts(*words)["prompt_ids"]
    assert facts(*words, "--special")["prompt_ids"].count(end) == 1


@pytest.mark.slow
def test_a_sanitised_run_gives_the_same_tokens(model: Path) -> None:
    words = ("generate", model, "-p", "the", "-n", "2")
    plain, sanitised = facts("ptxrun", *words, *EMULATOR), facts("ptxrun", *words, "--sanitize")
    assert plain["token_ids"] == sanitised["token_ids"]
    assert sanitised["device"]["reason"] == "only the emulator has a sanitiser"


def test_logits_are_one_row_a_position(model: Path, tmp_path: Path) -> None:
    assert invoke("ptxrun", "logits", model, "--tokens", "1,2,3", "-o", tmp_path / "three.npz", *EMULATOR).output == ""
    assert invoke("ptxrun", "logits", model, "--tokens", "1,2", "-o", tmp_path / "two", *EMULATOR).exit_code == 0
    three, two = np.load(tmp_path / "three.npz")["logits"], np.load(tmp_path / "two")["logits"]
    assert (three.dtype, three.shape) == (np.float32, (3, 512))
    assert np.array_equal(three[:2], two)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["three.npz", "two"]


def test_a_model_without_a_vocabulary_still_has_logits(silent: Path, tmp_path: Path) -> None:
    assert invoke("ptxrun", "logits", silent, "--tokens", "5", "-o", tmp_path / "l.npz", *EMULATOR).exit_code == 0
    assert "no vocabulary" in refused("ptxrun", "generate", silent, "-p", "the", *EMULATOR)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"", "empty"),
        (lambda data: b"GGML" + data[4:], "magic"),
        (lambda data: data[:4] + b"\x09\0\0\0" + data[8:], "version 9"),
        (lambda data: data[:100], ""),
        (lambda data: data[: len(data) // 2], ""),
        (lambda data: data[:-1], ""),
    ],
    ids=["empty", "magic", "version", "cut in the metadata", "cut in the tensors", "one byte short"],
)
def test_a_bad_file_is_named(model: Path, tmp_path: Path, change: Callable[[bytes], bytes], said: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(change(model.read_bytes()))
    line = refused("ptxrun", "generate", path, "-p", "the", *EMULATOR)
    assert line.startswith(f"{path}: ")
    assert said in line


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "no.gguf", tmp_path):
        assert str(path) in refused("ptxrun", "generate", path, "-p", "the", *EMULATOR)
        assert str(path) in refused("ptxrun", "logits", path, "--tokens", "1", "-o", tmp_path / "l.npz", *EMULATOR)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tokens", "1,512"), "token id 512 is out of range; the vocabulary has ids 0 to 511"),
        (("--tokens", "-1"), "token id -1 is out of range"),
        (("--tokens", "1,,2"), "'1,,2' is not token ids separated by commas"),
        (("--tokens", "1,2,3", "--context", "2"), "the prompt has 3 tokens, the context holds 2"),
        (("--tokens", "1", "--context", "65"), "context must be 1 to 64"),
    ],
)
def test_wrong_ids_are_one_clear_line_and_nothing_is_written(
    model: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in refused("ptxrun", "logits", model, *words, "-o", tmp_path / "l.npz", *EMULATOR)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-p", "the " * 100), "the context holds 64"),
        (("-p", "the", "--temperature", "-1"), "temperature is -1.0; allowed"),
        (("-p", "the", "--temperature", "nan"), "temperature is nan; allowed"),
        (("-p", "the", "--top-k", "-1"), "top_k is -1; allowed"),
        (("-p", "the", "--top-p", "0"), "top_p is 0.0; allowed"),
        (("-p", "the", "--min-p", "2"), "min_p is 2.0; allowed"),
        (("-p", "the", "--seed", "-1"), "seed is -1; allowed"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(model: Path, words: tuple[str, ...], said: str) -> None:
    assert said in refused("ptxrun", "generate", model, *words, *EMULATOR)


def test_an_empty_prompt_is_refused_where_the_model_adds_no_token(tmp_path: Path) -> None:
    path = small_model(tmp_path / "m.gguf", "qwen2")
    assert refused("ptxrun", "generate", path, "-p", "", *EMULATOR) == "the prompt has no tokens; give at least one"


def test_a_prompt_that_is_not_utf8_is_refused(model: Path) -> None:
    assert refused("ptxrun", "generate", model, "-p", "-", *EMULATOR, stdin=b"\xff") == "stdin is not UTF-8: byte 0"


def test_greedy_and_drawing_exclude_each_other(model: Path) -> None:
    result = invoke("ptxrun", "generate", model, "-p", "the", "--greedy", "--top-k", "3")
    assert result.exit_code == 2
    assert "--greedy draws nothing, so it does not go with --top-k" in result.stderr


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cuda:99", "99"),
        ("gpu", "unknown device 'gpu'; use auto, cuda, cuda:N or emulator"),
        ("cuda:x", "unknown device 'cuda:x'"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_line(model: Path, device: str, said: str) -> None:
    line = refused("ptxrun", "generate", model, "-p", "the", "--device", device)
    assert said in line or "driver" in line


def test_the_demo_answers_and_says_what_ran_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.gguf.packaged.fetch", lambda asked, progress: model)
    result = invoke("ptxrun", "demo", "--prompt", "the", "-n", "3", *EMULATOR)
    assert result.exit_code == 0
    assert result.stdout.startswith("> the\n")
    for fact in ("device", "asked for", "first token", "tokens/s", "kernels", str(model)):
        assert fact in result.stdout


def test_the_demo_takes_an_empty_prompt_as_it_is(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor.gguf.packaged.fetch", lambda asked, progress: model)
    assert invoke("ptxrun", "demo", "--prompt", "", "-n", "1", *EMULATOR).stdout.startswith("> \n")


@pytest.mark.slow
def test_smollm2_continues_as_exact_arithmetic_says() -> None:
    said = facts("ptxrun", "generate", smollm2_path(), "-p", PROMPT, "-n", len(EXACT_IDS), "--greedy", *EMULATOR)
    assert tuple(said["prompt_ids"]) == PROMPT_IDS
    assert tuple(said["token_ids"]) == EXACT_IDS
    assert said["text"].startswith(" Paris.")


def test_logits_that_are_no_numbers_are_written_and_said(model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    content = bytearray(model.read_bytes())
    with GgufFile.open(model) as file:
        at = file.tensors["output_norm.weight"].offset
    content[at : at + 4] = np.float32(np.nan).tobytes()
    damaged.write_bytes(content)
    path = tmp_path / "l.npz"
    said = refused("ptxrun", "logits", damaged, "--tokens", "5,6", "-o", path, *EMULATOR)
    assert said.startswith(
        f"{damaged}: 2 of 2 rows hold NaN or infinity, the first after token 0 (id 5): the weights are damaged"
    )
    assert np.isnan(np.load(path)["logits"]).all(axis=1).all()
