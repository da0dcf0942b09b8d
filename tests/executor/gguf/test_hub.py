"""Fetching from the hub, by huggingface_hub itself from a server that plays the hub: what comes, what is kept, what is said."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from executor.base.errors import FetchError
from executor.gguf import hub as fetching
from executor.gguf.locate import local_model
from executor.gguf.model_folder import ModelFolder
from executor.gguf.model_name import HubName
from ptxgen.errors import ArgumentError
from tests.hub_server import COMMIT, TOKEN, Hub, Repository

A = bytes(range(256)) * 10_000
B = A[::-1] + b"b"
PARTS = {f"Q8_0/m-Q8_0-0000{number}-of-00003.gguf": A[number:] for number in (1, 2, 3)}


@pytest.fixture
def folder(tmp_path: Path, hub: Hub) -> Path:
    """Of models. The hub has a repository org/repo."""
    files = {"README.md": b"#", "m-Q4_K_M.gguf": A, "m-Q4_0.gguf": B, "mmproj-Q4_0.gguf": b"p", **PARTS}
    hub.repositories["org/repo"] = Repository(files)
    return tmp_path / "models"


def files_in(folder: Path) -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in folder.rglob("*") if path.is_file() and path.name != "fetch.lock")


def test_a_model_is_fetched_once_and_then_found_without_the_network(hub: Hub, folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    path = local_model("hf://org/repo:Q4_K_M", folder, lambda *report: seen.append(report))
    assert path == folder / "org" / "repo" / "m-Q4_K_M.gguf"
    assert path.read_bytes() == A
    assert seen[-1] == ("download", len(A), len(A))
    assert files_in(folder) == ["org/repo/m-Q4_K_M.gguf"]
    asked = len(hub.requests)
    for name in ("hf://org/repo:Q4_K_M", "hf://org/repo:q4_k_m", "hf://org/repo/m-Q4_K_M.gguf", "hf://org/repo"):
        assert local_model(name, folder) == path
    assert len(hub.requests) == asked


def test_the_parts_of_a_model_come_together(hub: Hub, folder: Path) -> None:
    first = local_model("hf://org/repo:Q8_0", folder)
    assert first == folder / "org" / "repo" / "Q8_0" / "m-Q8_0-00001-of-00003.gguf"
    assert {name: (folder / "org" / "repo" / name).read_bytes() for name in PARTS} == PARTS
    first.with_name("m-Q8_0-00002-of-00003.gguf").unlink()
    del hub.requests[:]
    assert local_model("hf://org/repo/Q8_0/m-Q8_0-00003-of-00003.gguf", folder) == first
    assert hub.transfers == [("m-Q8_0-00002-of-00003.gguf", None)]


def test_a_transfer_that_breaks_off_goes_on_where_it_stopped(hub: Hub, folder: Path) -> None:
    hub.breaks = [1_000_000, 500_000]
    assert local_model("hf://org/repo:Q4_0", folder).read_bytes() == B
    assert hub.transfers == [("m-Q4_0.gguf", at) for at in (None, "bytes=1000000-", "bytes=1500000-")]


def test_a_fetch_that_ended_is_resumed_by_the_next_one(hub: Hub, folder: Path) -> None:
    hub.breaks = [700_000] + [0] * (fetching.RETRIES + 1)
    with pytest.raises(FetchError, match=f"700000 of {len(A)} bytes of m-Q4_K_M.gguf have come, and stay"):
        local_model("hf://org/repo:Q4_K_M", folder)
    (part,) = files_in(folder)
    assert part.endswith(".part")
    assert hub.breaks == []
    del hub.requests[:]
    assert local_model("hf://org/repo:Q4_K_M", folder).read_bytes() == A
    assert hub.transfers == [("m-Q4_K_M.gguf", "bytes=700000-")]
    assert files_in(folder) == ["org/repo/m-Q4_K_M.gguf"]


def test_ctrl_c_loses_nothing_that_has_come(hub: Hub, folder: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "download":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local_model("hf://org/repo:Q4_K_M", folder, interrupt)
    (part,) = files_in(folder)
    come = (folder / part).stat().st_size
    assert 0 < come < len(A)
    local_model("hf://org/repo:Q4_K_M", folder)
    assert hub.transfers[-1] == ("m-Q4_K_M.gguf", f"bytes={come}-")


def test_a_server_that_sends_all_again_is_followed_and_one_that_never_gets_further_is_given_up(hub: Hub, folder: Path) -> None:
    hub.ignores_ranges = True
    hub.breaks = [1_000_000]
    assert local_model("hf://org/repo:Q4_0", folder).read_bytes() == B
    hub.breaks = [1_000_000] * (fetching.RETRIES + 2)
    with pytest.raises(FetchError, match=f"1000000 of {len(A)} bytes"):
        local_model("hf://org/repo:Q4_K_M", folder)


def test_another_checksum_is_an_error_and_the_file_does_not_stay(hub: Hub, folder: Path) -> None:
    hub.repositories["org/repo"].states["m-Q4_K_M.gguf"] = {"lfs": {"sha256": "ab" * 32, "size": len(A), "pointerSize": 1}}
    with pytest.raises(FetchError, match=f"has the sha256 .*, and the hub states {'ab' * 32}; it was removed"):
        local_model("hf://org/repo:Q4_K_M", folder)
    assert files_in(folder) == []


def test_what_was_damaged_on_the_way_is_noticed_after_a_resume(hub: Hub, folder: Path) -> None:
    hub.breaks = [700_000] + [0] * (fetching.RETRIES + 1)
    with pytest.raises(FetchError):
        local_model("hf://org/repo:Q4_K_M", folder)
    (part,) = files_in(folder)
    (folder / part).write_bytes(b"\0" * 700_000)
    with pytest.raises(FetchError, match="it was removed"):
        local_model("hf://org/repo:Q4_K_M", folder)
    assert local_model("hf://org/repo:Q4_K_M", folder).read_bytes() == A


def test_more_bytes_than_stated_are_not_taken(hub: Hub, folder: Path) -> None:
    stated = {"lfs": {"sha256": "ab" * 32, "size": 1000, "pointerSize": 1}}
    hub.repositories["org/repo"].states["m-Q4_K_M.gguf"] = stated
    with pytest.raises(FetchError, match=r"more bytes of m-Q4_K_M.gguf come than the 1000 that the hub states"):
        local_model("hf://org/repo:Q4_K_M", folder)
    assert sum((folder / path).stat().st_size for path in files_in(folder)) == 0


def test_an_update_leaves_the_old_model_until_the_new_one_is_whole(hub: Hub, folder: Path) -> None:
    name, place = HubName.parse("hf://org/repo:Q8_0"), ModelFolder(folder)
    old = {path: content[:-1] for path, content in PARTS.items()}
    hub.repositories["org/repo"].files |= old
    first = fetching.fetch_from_hub(name, place)
    hub.repositories["org/repo"].files |= PARTS
    hub.breaks = [len(A), 5000] + [0] * (fetching.RETRIES + 1)
    with pytest.raises(FetchError, match="5000 of"):
        fetching.fetch_from_hub(name, place)
    here = folder / "org" / "repo"
    assert {path: (here / path).read_bytes() for path in old} == old
    assert fetching.fetch_from_hub(name, place) == first
    assert {path: (here / path).read_bytes() for path in PARTS} == PARTS
    assert len(files_in(folder)) == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "hf://org/repo:Q5_K_M",
            "no model in the repository org/repo matches; there are Q8_0/m-Q8_0-00001-of-00003.gguf, m-Q4_0",
        ),
        ("hf://org/repo", "several models .* match; name one of Q8_0/m-Q8_0-00001-of-00003.gguf, m-Q4_0.gguf, m-Q4_K_M.gguf$"),
        ("hf://org/repo/other.gguf", "no model in the repository org/repo matches; there are "),
        (
            "hf://org/nothing:Q4_0",
            "has no repository org/nothing that you may read; for a private one log in by `hf",
        ),
        ("hf://org/repo@other:Q4_0", "the repository has no branch, tag or commit other"),
    ],
)
def test_what_there_is_not_is_said_with_what_there_is(hub: Hub, folder: Path, name: str, said: str) -> None:
    with pytest.raises(FetchError, match=said) as caught:
        local_model(name, folder)
    assert str(caught.value).startswith(name)
    assert files_in(folder) == []


def test_a_repository_without_models_and_one_without_all_parts_are_refused(hub: Hub, folder: Path) -> None:
    hub.repositories["org/none"] = Repository({"model.safetensors": b"x"})
    with pytest.raises(FetchError, match="there is no GGUF model in the repository org/none"):
        local_model("hf://org/none", folder)
    hub.repositories["org/part"] = Repository({"m-Q8_0-00001-of-00002.gguf": b"x"})
    hub.repositories["org/same"] = Repository({f"m-Q8_0-0000{number}-of-00002.gguf": b"x" for number in (1, 2)})
    with pytest.raises(FetchError, match="one sha256 for several parts"):
        local_model("hf://org/same", folder)
    with pytest.raises(FetchError, match=r"the repository lacks m-Q8_0-00002-of-00002.gguf, a part of this model"):
        local_model("hf://org/part", folder)


def test_a_gated_model_needs_a_token_which_goes_to_the_hub_alone_and_is_never_told(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.repositories["org/repo"].gated = True
    with pytest.raises(FetchError, match=r"the repository is gated: accept its terms at .*/org/repo, then log in by"):
        local_model("hf://org/repo:Q4_0", folder)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.breaks = [1000]
    with caplog.at_level(logging.DEBUG):
        assert local_model("hf://org/repo:Q4_0", folder).read_bytes() == B
    assert {one["authorization"] for one in hub.requests if one["host"] == "elsewhere"} == {None}
    assert hub.requests[-2]["authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in caplog.text


def test_a_name_means_the_commit_that_was_listed_and_revisions_lie_apart(hub: Hub, folder: Path) -> None:
    path = local_model(f"hf://org/repo@{COMMIT}:Q4_0", folder)
    assert path.parent == folder / "org" / f"repo@{COMMIT}"
    assert any(one["path"] == f"/org/repo/resolve/{COMMIT}/m-Q4_0.gguf" for one in hub.requests)
    local_model("hf://org/repo:Q4_0", folder)
    assert len(files_in(folder)) == 2


def test_offline_it_is_said_what_is_missing_and_how_to_get_it(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FetchError) as caught:
        local_model("hf://org/repo:Q4_0", folder)
    said = str(caught.value)
    assert f"HF_HUB_OFFLINE is set, and the model is not in {folder}" in said
    assert "ptxrun models fetch hf://org/repo:Q4_0 --model-dir DIR" in said
    assert "copy DIR/org/repo to this machine" in said
    assert hub.requests == []


def test_a_hub_that_is_not_there_or_not_well_is_said(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.status = 503
    with pytest.raises(FetchError, match=f"the hub answers 503 Service Unavailable; the model is not in {folder}"):
        local_model("hf://org/repo:Q4_0", folder)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(FetchError, match=r"connection to http://127.0.0.1:1 fails \(ConnectError\); the model is not in"):
        local_model("hf://org/repo:Q4_0", folder)


@pytest.mark.parametrize(
    "path", ["../../out.gguf", "/out.gguf", "a/../../../out.gguf", "..\\out.gguf", ".hidden/out.gguf", "a\x1b[2J.gguf"]
)
def test_no_path_of_the_hub_leads_out_of_the_folder(hub: Hub, folder: Path, path: str) -> None:
    hub.repositories["org/repo"] = Repository({path: A})
    with pytest.raises(FetchError, match="which is no plain path of a file") as caught:
        local_model("hf://org/repo", folder)
    assert str(caught.value).isprintable()
    assert not list(folder.parent.rglob("*out.gguf"))
    assert hub.transfers == []


@pytest.mark.parametrize(
    "lfs",
    [None, {"sha256": "../../out", "size": 5, "pointerSize": 1}, {"sha256": "ab" * 32, "size": -5, "pointerSize": 1}],
    ids=["none", "a path", "a size"],
)
def test_a_file_without_a_stated_size_and_checksum_is_not_fetched(hub: Hub, folder: Path, lfs: dict[str, Any] | None) -> None:
    hub.repositories["org/repo"].states["m-Q4_0.gguf"] = {"lfs": lfs}
    with pytest.raises(FetchError, match=r"states no size and sha256 of m-Q4_0.gguf"):
        local_model("hf://org/repo:Q4_0", folder)


def test_a_link_that_leads_out_of_the_folder_is_not_followed(hub: Hub, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.mkdir()
    (folder / "org").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FetchError, match="a symbolic link leads out of the folder of models"):
        local_model("hf://org/repo:Q4_0", folder)
    (folder / "org").unlink()
    here = folder / "org" / "repo"
    here.mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    (here / f".{hashlib.sha256(B).hexdigest()}.part").symlink_to(tmp_path / "precious")
    with pytest.raises(FetchError, match="Too many levels of symbolic links"):
        local_model("hf://org/repo:Q4_0", folder)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_disk_without_room_is_told_before_anything_comes(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(FetchError, match=f"{len(B)} bytes are to come, and .* has room for 1000; name another --model-dir"):
        local_model("hf://org/repo:Q4_0", folder)
    assert hub.transfers == []


def test_several_that_ask_at_once_fetch_once(hub: Hub, folder: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        paths = list(pool.map(lambda _: local_model("hf://org/repo:Q4_0", folder), range(3)))
    assert len(set(paths)) == 1
    assert hub.transfers == [("m-Q4_0.gguf", None)]


def test_in_the_cache_a_folder_that_others_may_write_to_is_not_used(hub: Hub, folder: Path) -> None:
    path = local_model("hf://org/repo:Q4_0")
    assert path.is_relative_to(os.environ["PTXGEN_CACHE_DIR"])
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o777)
    with pytest.raises(FetchError, match=r"others may write to it \(mode 0777\)"):
        local_model("hf://org/repo:Q4_0")
    path.parent.chmod(0o700)
    assert local_model("hf://org/repo:Q4_0") == path


@pytest.mark.parametrize(
    "name",
    [
        "hf://",
        "hf://repo",
        "hf://org/repo:",
        "hf://org/repo/m.bin",
        "hf://org/../x.gguf",
        "hf://org/repo/../../x.gguf",
        "hf://o/r@../x.gguf",
    ],
)
def test_what_is_no_name_is_refused_with_what_is_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is no name of a model; allowed: hf://ORG/REPO:QUANTISATION"):
        local_model(name, tmp_path)
