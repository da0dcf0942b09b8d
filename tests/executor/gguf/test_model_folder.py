"""The folder of models: what names mean in it, what is listed, what is removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executor.base.errors import FetchError
from executor.gguf.locate import local_model
from executor.gguf.model_folder import ModelFolder
from executor.gguf.model_name import HubName, ModelFiles, matching, models_among
from ptxgen.errors import ArgumentError


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    for name in (
        "alone.Q4_1.gguf", "o/r/m-Q4_K_M.gguf", "o/r/m-UD-Q4_K_M.gguf", "o/r/m-Q4_0.gguf", "o/r/m-Q4_0-v2.gguf",
        "o/r/BF16/m-BF16-00001-of-00002.gguf", "o/r/BF16/m-BF16-00002-of-00002.gguf", "o/r@v1/m-Q4_0.gguf",
        "o/r/m-Q8_0-00001-of-00002.gguf", "o/r/mmproj-F16.gguf", "o/r/notes.txt", "o/r/fetch.lock", ".hidden/x.gguf",
    ):  # fmt: skip
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
    return ModelFolder(tmp_path / "models")


def test_what_is_listed_can_be_said(folder: ModelFolder) -> None:
    (folder.root / "gone.gguf").symlink_to(folder.root / "nowhere")
    os.mkfifo(folder.root / "pipe.gguf")
    rows = [(model.name, model.quantisation, model.nbytes, model.missing) for model in folder.models()]
    assert rows == [
        ("alone.Q4_1.gguf", "Q4_1", 5, 0),
        ("hf://o/r:BF16", "BF16", 10, 0),
        ("hf://o/r/m-Q4_0-v2.gguf", "Q4_0", 5, 0),
        ("hf://o/r/m-Q4_0.gguf", "Q4_0", 5, 0),
        ("hf://o/r:Q4_K_M", "Q4_K_M", 5, 0),
        ("hf://o/r:Q8_0", "Q8_0", 5, 1),
        ("hf://o/r:UD-Q4_K_M", "UD-Q4_K_M", 5, 0),
        ("hf://o/r@v1:Q4_0", "Q4_0", 5, 0),
    ]
    for model in folder.models():
        if not model.missing:
            assert local_model(model.name, folder.root) == model.paths[0]


def test_several_here_are_not_guessed_between(folder: ModelFolder) -> None:
    with pytest.raises(FetchError, match=r"hf://o/r:Q4_0: several models in .*/o/r match; name one of m-Q4_0-v2.gguf, m-Q4"):
        local_model("hf://o/r:Q4_0", folder.root)


def test_removal_takes_all_parts_and_leaves_no_empty_folder(folder: ModelFolder) -> None:
    models = {model.name: model for model in folder.models()}
    folder.remove(models["hf://o/r:BF16"])
    assert not (folder.root / "o" / "r" / "BF16").exists()
    waiting = folder.root / "o" / "r@v1" / f".{'ab' * 32}.part"
    waiting.write_bytes(b"1")
    folder.remove(models["hf://o/r@v1:Q4_0"])
    assert not waiting.parent.exists()
    assert (folder.root / "o" / "r" / "m-Q4_0.gguf").exists()
    folder.remove(models["alone.Q4_1.gguf"])
    assert folder.root.is_dir()
    assert "alone.Q4_1.gguf" not in {model.name for model in folder.models()}


def test_a_path_is_taken_as_it_is_before_it_is_looked_up(folder: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.root.parent)
    assert local_model("alone.Q4_1.gguf", folder.root) == folder.root / "alone.Q4_1.gguf"
    monkeypatch.setenv("PTXGEN_MODEL_DIR", str(folder.root))
    assert local_model("o/r/m-Q4_0.gguf") == folder.root / "o" / "r" / "m-Q4_0.gguf"
    Path("alone.Q4_1.gguf").write_bytes(b"mine")
    assert local_model("alone.Q4_1.gguf") == Path("alone.Q4_1.gguf")
    assert local_model(Path("nothing.gguf")) == Path("nothing.gguf")
    (folder.root.parent / "out.gguf").write_bytes(b"1")
    monkeypatch.chdir(folder.root)
    monkeypatch.setenv("PTXGEN_MODEL_DIR", str(folder.root / "o"))
    for name in ("../../out.gguf", str(folder.root / "none.gguf"), ""):
        assert local_model(name) == Path(name)


def test_without_a_cache_or_a_folder_a_name_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "0")
    with pytest.raises(ArgumentError, match="set PTXGEN_CACHE_DIR or PTXGEN_MODEL_DIR to a folder, or give --model-dir"):
        local_model("hf://o/r:Q4_0")
    assert local_model("nothing.gguf") == Path("nothing.gguf")
    with pytest.raises(ArgumentError, match="the model is 5; allowed: the path of a GGUF file, or a name such as hf://"):
        local_model(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "quantisation"),
    [
        ("Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("m-IQ4_XS-00001-of-00002.gguf", "IQ4_XS"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-NVFP4.gguf", "NVFP4"),
        ("m-UD-IQ3_XXS.gguf", "UD-IQ3_XXS"),
        ("m.BF16.gguf", "BF16"),
        ("ggml-model_f16.gguf", "F16"),
        ("m-UD-Q2_K_XL.gguf", "UD-Q2_K_XL"),
        ("m.gguf", ""),
    ],
)
def test_the_quantisation_is_what_the_name_says(file: str, quantisation: str) -> None:
    assert ModelFiles((file,)).quantisation == quantisation


def test_a_quantisation_is_a_whole_word() -> None:
    models = models_among(["m-Q4_K_M.gguf", "m-IQ4_XS.gguf", "m-Q4_0_4_4.gguf", "m-BF16.gguf", "m-UD-Q4_K_XL.gguf"])

    def found(quantisation: str) -> list[str]:
        return [model.files[0] for model in matching(HubName("o/r", quantisation=quantisation), models)]

    assert (found("Q4_K"), found("Q4_XS"), found("Q4_0"), found("F16")) == ([], [], [], [])
    assert found("Q4_K_XL") == found("UD-Q4_K_XL") == ["m-UD-Q4_K_XL.gguf"]
    assert found("bf16") == ["m-BF16.gguf"]
    assert os.sep not in "".join(found("Q4_K_M"))
