"""Models by name in the commands: fetched from a hub on this machine, listed, removed; and what docs/models.md shows."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import executor
from tests.cli.invoke import facts, invoke, refused
from tests.docs.pages import blocks
from tests.hub_server import TOKEN, Hub, Repository
from tests.paths import ROOT
from tests.synthetic import Q, write_model

PAGE = ROOT / "docs" / "models.md"
NAME = "hf://acme/tiny-GGUF:Q8_0"
EMULATOR = ("--device", "emulator")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Of a model."""
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    write_model(path, types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)
    return path.read_bytes()


@pytest.fixture
def folder(hub: Hub, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of models, empty, and where the test is; the hub has a model."""
    hub.repositories["acme/tiny-GGUF"] = Repository({"README.md": b"#", "tiny-Q8_0.gguf": content, "tiny-F16.gguf": content})
    hub.repositories["acme/split"] = Repository({f"s-Q8_0-0000{n}-of-00002.gguf": content[n:] for n in (1, 2)})
    monkeypatch.setenv("PTXGEN_MODEL_DIR", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


def test_a_model_by_name_is_fetched_used_and_used_again(hub: Hub, folder: Path) -> None:
    said = facts("ptxrun", "explain", NAME, *EMULATOR)
    assert said["model"] == str(folder / "acme" / "tiny-GGUF" / "tiny-Q8_0.gguf")
    assert len(hub.transfers) == 1
    for name in (NAME, "acme/tiny-GGUF/tiny-Q8_0.gguf"):
        assert facts("ptxrun", "explain", name, "--model-dir", folder, *EMULATOR) == said
    assert len(hub.transfers) == 1


def test_the_list_says_what_is_here_and_what_is_removed_is_gone(hub: Hub, folder: Path) -> None:
    empty = invoke("ptxrun", "models")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", f"there are no models in {folder}\n")
    assert facts("ptxrun", "models") == {"folder": str(folder), "models": []}
    path = folder / "acme" / "tiny-GGUF" / "tiny-Q8_0.gguf"
    assert invoke("ptxrun", "models", "fetch", NAME).stdout == f"{path}\n"
    row = {"name": NAME, "quantisation": "Q8_0", "bytes": path.stat().st_size, "files": [str(path)], "missing_parts": 0}
    assert facts("ptxrun", "models", "fetch", NAME) == row
    assert len(hub.transfers) == 1
    split = facts("ptxrun", "models", "fetch", "hf://acme/split")
    Path(split["files"][1]).unlink()
    assert facts("ptxrun", "models")["models"][0]["missing_parts"] == 1
    table = invoke("ptxrun", "models").stdout
    assert NAME in table
    assert "(1 of 2 parts are missing)" in " ".join(table.split())
    assert refused("ptxrun", "models", "remove", "other").endswith(f"there are: hf://acme/split:Q8_0, {NAME}")
    for name in (NAME, "hf://acme/split:Q8_0"):
        assert "removed " in invoke("ptxrun", "models", "remove", name).stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("generate", NAME, "-p", "x", "--greedy", "--top-k", "3"),
        ("generate", NAME, "-p", "x", "--json-schema", "none.json"),
        ("chat", NAME, "--prompt-file", "none.txt"),
        ("logits", NAME, "--tokens", "a", "-o", "l.npz"),
        ("bench", NAME, "--prompt", "a"),
        ("explain", NAME, "--device", "gpu"),
        ("explain", NAME, "--device", "emulator", "--gpu", "l4"),
        ("explain", NAME, "--gpu", "rtx1"),
    ],
)
def test_nothing_is_fetched_before_what_else_was_asked_is_right(hub: Hub, folder: Path, words: tuple[str, ...]) -> None:
    assert invoke("ptxrun", *words).exit_code == 2
    assert hub.requests == []


def test_a_folder_may_be_named_for_once(hub: Hub, folder: Path, tmp_path: Path) -> None:
    invoke("ptxrun", "models", "fetch", NAME, "--model-dir", "other")
    assert not folder.exists()
    assert [one["name"] for one in facts("ptxrun", "models", "--model-dir", tmp_path / "other")["models"]] == [NAME]
    assert "options go after fetch" in invoke("ptxrun", "models", "--model-dir", "x", "fetch", NAME).stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "hf://acme/tiny-GGUF:Q4_0",
            "no model in the repository acme/tiny-GGUF matches; there are tiny-F16.gguf, tiny-Q8_0.gguf",
        ),
        ("hf://acme/tiny-GGUF", "several models in the repository acme/tiny-GGUF match; name one of tiny-F16.gguf, tiny-Q8_0"),
        ("hf://acme", "is no name of a model; allowed: hf://ORG/REPO:QUANTISATION"),
        ("acme/none.gguf", "there is no such file"),
    ],
)
def test_what_cannot_be_had_is_one_line(folder: Path, name: str, said: str) -> None:
    for command in (("generate", name, "-p", "x"), ("chat", name), ("logits", name, "--tokens", "1", "-o", "l.npz")):
        line = refused("ptxrun", *command, *EMULATOR)
        assert line.startswith(f"{name}: ") or said.startswith("is no name")
        assert said in line


@pytest.mark.slow
def test_python_takes_names_too(folder: Path, tmp_path: Path) -> None:
    with executor.load_model(NAME, "emulator", model_dir=tmp_path / "mine") as model:
        ids = model.generate("the", max_tokens=2).tokens
    assert (tmp_path / "mine" / "acme" / "tiny-GGUF" / "tiny-Q8_0.gguf").exists()
    with executor.CudaExecutor("emulator") as device:
        assert device.load_model(NAME).generate("the", max_tokens=2).tokens == ids
    assert (folder / "acme").exists()
    with pytest.raises(executor.FetchError, match=r"there are tiny-F16.gguf, tiny-Q8_0.gguf"):
        executor.load_model("hf://acme/tiny-GGUF:Q2_K")


@pytest.mark.slow
def test_what_the_page_shows_works(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    big = write_model(
        tmp_path / "big.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64, tensors_a_file=4
    )
    assert big.name == "big-00001-of-00003.gguf"
    shell = "".join(block.text for block in blocks(PAGE) if not block.language)
    commands = [shlex.split(line, comments=True) for line in shell.splitlines()]
    assert len(commands) == 11
    for program, *words in commands:
        result = invoke(program, *words, stdin="hello\n")
        assert result.exit_code == 0, (words, result.output)
    (source,) = (block.text for block in blocks(PAGE) if block.language == "python")
    exec(compile(source, PAGE.name, "exec"), {})
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_a_process_of_its_own_resumes_says_no_token_and_works_offline(hub: Hub, folder: Path, content: bytes) -> None:
    """With the environment alone, as users have it."""
    hub.repositories["acme/tiny-GGUF"].gated = True
    hub.breaks = [5000, 0]
    said = run(hub, "-v", "models", "fetch", NAME, HF_TOKEN=TOKEN)
    assert said.returncode == 0, said.stderr
    assert hub.transfers == [("tiny-Q8_0.gguf", at) for at in (None, "bytes=5000-", "bytes=5000-")]
    assert "fetching tiny-Q8_0.gguf" in said.stderr
    assert TOKEN not in said.stdout + said.stderr
    assert "\r" not in said.stderr  # no bar, since it is no terminal
    offline = run(hub, "logits", NAME, "--tokens", "1", "-o", "l.npz", *EMULATOR, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stderr) == (0, "")
    missing = run(hub, "models", "fetch", "hf://acme/tiny-GGUF:F16", HF_HUB_OFFLINE="1")
    assert missing.returncode == 2
    assert "HF_HUB_OFFLINE is set, and the model is not in" in missing.stderr


def run(hub: Hub, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    names = {"HF_ENDPOINT": hub.url, "HF_HOME": os.getcwd(), "PTXGEN_CACHE_DIR": os.path.join(os.getcwd(), "cache")}
    command = [sys.executable, "-c", "from ptxgen.commands.start import ptxrun; ptxrun()", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env=os.environ | names | environment
    )
