"""`ptxrun export-tokenizer`: the four files, what it says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend

from executor.gguf.gguf_file import GgufFile
from executor.text.chat import chat_ids, render
from executor.text.tokenizer import Tokenizer
from tests.cli.invoke import facts, invoke, refused
from tests.synthetic import Q, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return write_model(path, types=Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64, arch="qwen2")


def test_the_folder_has_what_engines_read(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    said = facts("ptxrun", "export-tokenizer", model, folder)
    names = ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"]
    assert (said["folder"], said["files"], said["tokens"], said["chats"]) == (str(folder), names, 512, True)
    assert min(said["compared"]["texts"], said["compared"]["ids"]) > 512
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    tokenizer = Tokenizer.from_gguf(GgufFile.open(model))
    text = "<|im_start|>user\nthe other<|im_end|>"
    assert Backend.from_file(str(folder / "tokenizer.json")).encode(text).ids == tokenizer.encode(text)
    words, config, ends = (json.loads((folder / name).read_text()) for name in names[1:])
    assert words["chat_template"] == tokenizer.chat_template
    assert (words["eos_token"], words["add_bos_token"]) == ("<|im_end|>", False)
    assert (config["architectures"], config["model_type"]) == (["Qwen2ForCausalLM"], "qwen2")
    assert (config["max_position_embeddings"], config["num_key_value_heads"], config["vocab_size"]) == (64, 1, 512)
    assert ends == {"bos_token_id": tokenizer.bos_id, "eos_token_id": sorted(tokenizer.eos_ids)}


def test_a_template_that_leaves_bos_out_gets_it_where_the_model_wants_it(tmp_path: Path) -> None:
    """Who renders the template makes ids of its text alone; they are those of our own conversations."""
    plain = write_model(tmp_path / "m.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32)
    told = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    own = write_model(
        tmp_path / "own.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32,
        metadata={"tokenizer.chat_template": told},
    )  # fmt: skip
    messages = [{"role": "user", "content": "the other"}]
    for model in (plain, own):
        folder = tmp_path / model.stem
        facts("ptxrun", "export-tokenizer", model, folder)
        tokenizer = Tokenizer.from_gguf(GgufFile.open(model))
        words = json.loads((folder / "tokenizer_config.json").read_text())
        text = render(words["chat_template"], messages, bos_token=words["bos_token"])
        backend = Backend.from_file(str(folder / "tokenizer.json"))
        assert backend.encode(text, add_special_tokens=False).ids == chat_ids(tokenizer, messages)
    assert words["chat_template"] == told


@pytest.mark.slow
def test_templates_with_names_keep_them(tmp_path: Path) -> None:
    metadata = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b", "tokenizer.ggml.add_bos_token": False}
    named = write_model(tmp_path / "m.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, metadata=metadata)
    facts("ptxrun", "export-tokenizer", named, tmp_path / "folder")
    words = json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())
    assert words["chat_template"] == [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]


def test_a_second_time_replaces_the_files_and_says_one_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("old")
    said = invoke("ptxrun", "export-tokenizer", model, tmp_path).stdout
    assert said.startswith(f"{tmp_path}: 512 tokens; ")
    assert said.count("\n") == 1
    assert json.loads((tmp_path / "config.json").read_text())["hidden_size"] == 64


def test_what_cannot_be_written_is_refused_and_leaves_no_file(model: Path, tmp_path: Path) -> None:
    bare = write_model(
        tmp_path / "bare.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, tokenizer="none",
        metadata={"llama.vocab_size": 512},
    )  # fmt: skip
    assert "has no vocabulary" in refused("ptxrun", "export-tokenizer", bare, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert "cannot be made" in refused("ptxrun", "export-tokenizer", model, bare)
    assert "ptxrun export-tokenizer model.gguf model-tokenizer" in invoke("ptxrun", "export-tokenizer", "--help").stdout
