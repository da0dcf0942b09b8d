"""`ptxgen bundle`, and `--bundle` of the commands that run a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as Q

from tests.cli.invoke import facts, invoke, python, refused
from tests.synthetic import write_model

EMULATOR = ("--device", "emulator")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    return write_model(path, types=Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)


@pytest.fixture(scope="module")
def folder(model: Path) -> Path:
    result = invoke("ptxgen", "bundle", model, "--target", "sm_90", "--cubin", "--context", "32", "-o", model.parent / "bundle")
    assert (result.exit_code, result.output) == (0, "")
    return model.parent / "bundle"


def test_a_bundle_has_text_and_machine_code_of_every_kernel(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["target"], manifest["numbers"]["context"], manifest["batches"]) == ("sm_90", 32, {})
    for kernel in manifest["kernels"].values():
        assert ".target sm_90" in (folder / kernel["ptx"]["path"]).read_text()
        assert (folder / kernel["cubin"]["path"]).read_bytes()[:4] == b"\x7fELF"


def test_text_generated_from_a_bundle_is_the_text_generated_without(model: Path, folder: Path) -> None:
    words = ("generate", model, "-p", "the", "-n", "4", *EMULATOR)
    plain, bundled = facts("ptxrun", *words), facts("ptxrun", *words, "--bundle", folder)
    assert bundled["token_ids"] == plain["token_ids"]
    assert (bundled["kernels"]["emissions"], plain["kernels"]["emissions"] > 0) == (0, True)


def test_a_kernel_that_the_bundle_lacks_is_named(model: Path, folder: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", types=Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=128, context=64)
    said = refused("ptxrun", "generate", other, "-p", "the", "--bundle", folder, *EMULATOR)
    assert said.startswith(f"{folder}: has no kernel mwv_f32_gemv(k=64, n=128, num_warps=4")
    assert "; it has mwv_f32_gemv(k=64, n=64" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--batch", "4,x"), "--batch '4,x' is not numbers of sequences"),
        (("--batch", "0"), "--batch '0' is not numbers of sequences"),
        (("--batch", "1,100000"), "100000"),
        (("--target", "sm_70"), "unknown target 'sm_70'"),
        (("--target", "sm_89", "--gpu", "l4"), "leave one of the two out"),
        (("--context", "65"), "context must be 1 to 64"),
    ],
)
def test_what_is_not_possible_is_said_and_nothing_is_written(
    model: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in refused("ptxgen", "bundle", model, *words, "-o", tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_elses_stays(model: Path, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert "is not a bundle" in refused("ptxgen", "bundle", model, "-o", tmp_path)
    assert "is not a bundle" in refused("ptxrun", "generate", model, "-p", "the", "--bundle", tmp_path, *EMULATOR)


def test_ptxgen_knows_the_command_without_importing_executor() -> None:
    code = "import ptxgen.commands.cli, sys; print('executor' in sys.modules)"
    assert python(code).stdout == "False\n"
    assert "bundle" in invoke("ptxgen", "--help").stdout


@pytest.mark.slow
def test_a_fast_bundle_runs_at_its_precision_and_at_no_other(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=16)
    folder = tmp_path / "bundle"
    assert invoke("ptxgen", "bundle", model, "--precision", "fast", "-o", folder).exit_code == 0
    words = ("generate", model, "-p", "the", "-n", "2", *EMULATOR)
    plain, bundled = facts("ptxrun", *words, "--precision", "fast"), facts("ptxrun", *words, "--bundle", folder)
    assert bundled["token_ids"] == plain["token_ids"]
    assert (bundled["precision"], bundled["kernels"]["emissions"]) == ("fast", 0)
    said = refused("ptxrun", *words, "--bundle", folder, "--precision", "accurate")
    assert said == f"{folder} was written with --precision fast; leave out --precision"
