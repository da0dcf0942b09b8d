"""Fetches models from the Hugging Face hub into the folder of models. Which files a name means is model_name.py's business.

The listing, tokens, proxies and being offline are huggingface_hub's. The transfer, in its session, is ours, because one of its
own that was cut off starts again from the beginning: here a file grows under the name of its checksum, is checked as it comes,
and takes its place when the whole model is there. What the hub says is a stranger's word: sizes, checksums and paths are
checked before anything is written.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from executor.base.errors import FetchError, shown
from executor.base.progress import Progress
from executor.gguf.hub_errors import BrokenOff, hub_errors
from executor.gguf.model_folder import ModelFolder, cannot_keep, locked
from executor.gguf.model_name import HubName, is_inside, models_among, only_one
from executor.gguf.partial_file import PartialFile, is_whole
from ptxgen import __version__

TIMEOUT: Final = 30.0  # seconds without a byte
RETRIES: Final = 5
"""How often in a row a transfer may break off without a byte."""
PAUSE: Final = 1.0  # seconds before the next try

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository, as the hub states it. path: in the repository."""

    path: str
    nbytes: int
    sha256: str


@dataclass(frozen=True)
class Listing:
    """The model that a name means, as the hub has it now. commit: what the name's revision stands for."""

    commit: str
    files: tuple[RemoteFile, ...]


def fetch_from_hub(name: HubName, folder: ModelFolder, progress: Progress | None = None) -> Path:
    """The (first) file of a model as the hub has it now, fetched unless it is there with the same bytes.

    Processes that ask at once fetch once. A transfer that broke off goes on where it stopped, the next time. A model that is
    there stays until all files of the new one have come and are right. Raises FetchError: no such model or several, no
    permission, no network, no room, a wrong checksum.
    """
    report = progress or (lambda stage, done, total: None)
    listing = _ask(name, folder)
    try:
        place = folder.make(*name.folder.split("/"))
        with locked(place):
            _fetch(name, listing, folder, report)
    except OSError as error:
        raise cannot_keep(error, str(name), folder.root) from error
    return place / listing.files[0].path


def _fetch(name: HubName, listing: Listing, folder: ModelFolder, report: Progress) -> None:
    """Only one process at a time is here, for one repository."""
    steps = name.folder.split("/")
    place = folder.make(*steps)
    total = sum(file.nbytes for file in listing.files)
    new: list[RemoteFile] = []
    checked = 0
    for file in listing.files:
        if not is_whole(place / file.path, file.nbytes, file.sha256):
            new.append(file)
        checked += file.nbytes
        report("check", checked, total)
    waiting = {file: place / f".{file.sha256}.part" for file in new}
    _require_room(name, place, sum(max(0, file.nbytes - _size(path)) for file, path in waiting.items()))

    def come(before: int, count: int) -> None:
        report("download", before + count, total)

    done = total - sum(file.nbytes for file in new)
    for file, path in waiting.items():
        log.info("fetching %s of %s, %d bytes", file.path, name, file.nbytes)
        _download(name, listing.commit, file, path, partial(come, done))
        done += file.nbytes
    targets = {file: folder.make(*steps, *file.path.split("/")[:-1]) / file.path.rpartition("/")[2] for file in new}
    for target in targets.values():
        target.unlink(missing_ok=True)  # first all, so that no set of parts is ever half old and half new
    for file, target in targets.items():
        os.replace(waiting[file], target)


def _download(name: HubName, commit: str, file: RemoteFile, path: Path, report: Callable[[int], None]) -> None:
    """Let the file grow until it is whole. What came stays if it breaks off; a file with another checksum does not."""
    with PartialFile(path, file.nbytes) as part:
        failures = 0
        while part.size < file.nbytes:
            before = part.size
            try:
                with hub_errors(name, lambda: f"{part.size} of {file.nbytes} bytes of {file.path} have come, and stay"):
                    _receive(name, commit, file, part, report)
            except BrokenOff:
                failures = 0 if part.size > before else failures + 1
                if failures > RETRIES:
                    raise
                log.info("%s broke off at %d bytes; trying again", file.path, part.size)
                time.sleep(PAUSE)
        sha256 = part.sha256
    if sha256 != file.sha256:
        path.unlink()
        raise FetchError(
            f"{name}: {file.path} has the sha256 {sha256}, and the hub states {file.sha256}; it was removed, so that the next "
            "time it is fetched anew"
        )


def _receive(name: HubName, commit: str, file: RemoteFile, part: PartialFile, report: Callable[[int], None]) -> None:
    """One transfer, from where the file ends."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    headers = build_hf_headers(library_name="ptxgen", library_version=__version__)
    headers["Accept-Encoding"] = "identity"
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
    url = hf_hub_url(name.repository, file.path, revision=commit)
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response:
        hf_raise_for_status(response)
        if part.size and response.status_code != 206:  # all of it comes
            part.restart()
        for chunk in response.iter_bytes():  # as they come: of a chunk of a chosen size, a part would be lost
            if part.size + len(chunk) > file.nbytes:
                part.restart()
                raise FetchError(f"{name}: more bytes of {file.path} come than the {file.nbytes} that the hub states")
            part.add(chunk)
            report(part.size)
    if part.size < file.nbytes:
        raise BrokenOff(f"{name}: {file.path} ended after {part.size} of {file.nbytes} bytes, which stay; try again")


def _ask(name: HubName, folder: ModelFolder) -> Listing:
    """What the hub says of the model that a name means."""
    from huggingface_hub import HfApi

    with hub_errors(name, lambda: f"the model is not in {folder.root}"):
        info = HfApi(library_name="ptxgen", library_version=__version__).model_info(
            name.repository, revision=name.revision, files_metadata=True, timeout=TIMEOUT
        )
    commit, siblings = str(info.sha), {str(file.rfilename): file for file in info.siblings or ()}
    if re.fullmatch(r"[0-9a-f]{40}", commit) is None:
        raise FetchError(f"{name}: the hub states the commit {shown(commit)}, which is none")
    model = only_one(name, models_among(siblings), f"the repository {name.repository}")
    if model.missing:
        raise FetchError(f"{name}: the repository lacks {', '.join(map(shown, model.missing))}, a part of this model")
    files = tuple(_remote(name, path, siblings[path]) for path in model.files)
    if len({file.sha256 for file in files}) < len(files):
        raise FetchError(f"{name}: the hub states one sha256 for several parts, which no model has")
    return Listing(commit, files)


def _remote(name: HubName, path: str, stated: Any) -> RemoteFile:
    """A file as the hub states it. FetchError for a path that might lead elsewhere, and for one without size and checksum."""
    if not is_inside(path):
        raise FetchError(f"{name}: the hub lists {shown(path)}, which is no plain path of a file")
    lfs = stated.lfs
    sha256, nbytes = (None, None) if lfs is None else (lfs.sha256, lfs.size)
    if not (isinstance(sha256, str) and re.fullmatch(r"[0-9a-f]{64}", sha256) and isinstance(nbytes, int) and nbytes > 0):
        raise FetchError(f"{name}: the hub states no size and sha256 of {path}, so it could not be checked")
    return RemoteFile(path, nbytes, sha256)


def _require_room(name: HubName, place: Path, nbytes: int) -> None:
    free = shutil.disk_usage(place).free
    if nbytes > free:
        raise FetchError(f"{name}: {nbytes} bytes are to come, and {place} has room for {free}; name another --model-dir")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
