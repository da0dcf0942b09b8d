"""`--devices`: a model on several devices by commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.invoke import facts, invoke, refused
from tests.synthetic import Q, write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return write_model(
        path, types=Q.F16, layers=1, hidden=64, heads=2, kv_heads=2, ff=64, vocab=64, context=64, tokenizer="none"
    )  # fmt: skip


def test_logits_have_the_bits_of_one_device(path: Path, tmp_path: Path) -> None:
    found = []
    for name, devices in (("one", ("--device", "emulator")), ("two", ("--devices", "emulator,emulator"))):
        output = tmp_path / f"{name}.npz"
        assert invoke("ptxrun", "logits", path, "--tokens", "1,2,3", "-o", output, *devices).exit_code == 0
        found.append(np.load(output)["logits"])
    assert np.array_equal(*found)


def test_what_is_measured_says_how_many_share_the_model(path: Path) -> None:
    words = ("bench", path, "--prompt", "2", "--tokens", "1", "--rounds", "1", "--batch-depth", "1")
    told = facts("ptxrun", *words, "--devices", "emulator, emulator")
    assert told["ranks"] == 2
    assert told["machine"]["devices"] == ["emulator (sm_90)"] * 2


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (("--devices", "emulator,emulator,emulator"), "3 devices cannot share this model equally"),
        (("--devices", "0,0"), "devices names cuda:0 twice"),
        (("--devices", "emulator,emulator", "--device", "emulator"), "device is for one device"),
        (("--devices", "all"), "unknown device 'all'"),
    ],
)
def test_what_cannot_be_shared_is_refused(path: Path, devices: tuple[str, ...], said: str) -> None:
    assert said in refused("ptxrun", "generate", path, "-p", "x", *devices)
