"""The folder of models: where a model is kept, which there are, and their end. Fetches nothing, and opens none.

What comes from the hub lies in `ORG/REPO/`, under the paths that it has there; other files may lie anywhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from executor.base.environment import settings
from executor.base.errors import FetchError
from executor.gguf.model_name import HubName, ModelFiles, matching, models_among, only_one
from ptxgen.errors import ArgumentError
from ptxgen.files import private_folder

LOCK: Final = "fetch.lock"
WAITING: Final = re.compile(r"\.[0-9a-f]{64}\.part")
"""Files that have not come whole, by the checksum that they will have."""


@dataclass(frozen=True)
class StoredModel:
    """A model in the folder. name: what a command takes for it; nbytes: of all files; missing: parts that are not there."""

    name: str
    quantisation: str
    nbytes: int
    paths: tuple[Path, ...]
    missing: int


@dataclass(frozen=True)
class ModelFolder:
    """A folder of models. is_cache: it is `models` in the cache folder, which must be the user's alone."""

    root: Path
    is_cache: bool = False

    @classmethod
    def at(cls, folder: Path | None = None) -> ModelFolder:
        """That folder; else the one that the environment names; else the one in the cache. ArgumentError if the cache is
        switched off."""
        if folder is not None:
            return cls(folder)
        now = settings()
        if now.model_dir is not None:
            return cls(now.model_dir)
        if now.cache_dir is None:
            raise ArgumentError(
                "the cache is switched off, so a fetched model cannot be kept; set PTXGEN_CACHE_DIR or PTXGEN_MODEL_DIR to a "
                "folder, or give --model-dir"
            )
        return cls(now.cache_dir / "models", is_cache=True)

    def make(self, *names: str) -> Path:
        """The folder `root/names...`, made if it is not there. OSError if it cannot be made, is not below the root, or, in the
        cache, if others may write to it."""
        if self.is_cache:
            return private_folder(self.root.parent, self.root.name, *names)
        folder = self.root.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        if not folder.resolve().is_relative_to(self.root.resolve()):
            raise PermissionError(errno.EACCES, "a symbolic link leads out of the folder of models", str(folder))
        return folder

    def find(self, name: HubName) -> Path | None:
        """The (first) file of the only model here that a name means, if it is whole. FetchError if several match, or the folder
        is not to be trusted."""
        folder = self.root / name.folder
        models = [model for model in models_among(_files(folder)) if not model.missing]
        if not matching(name, models):
            return None
        self.require_trusted(*name.folder.split("/"))
        return folder / only_one(name, models, str(folder)).files[0]

    def find_file(self, path: str) -> Path | None:
        """The file `root/path`, if there is one, and the path does not lead out of the root."""
        steps = Path(path).parts
        if not steps or Path(path).is_absolute() or ".." in steps or not (self.root / path).is_file():
            return None
        self.require_trusted(*steps[:-1])
        return self.root / path

    def models(self) -> list[StoredModel]:
        """All models, by name."""
        found = models_among(_files(self.root))
        folders: dict[str, list[ModelFiles]] = {}
        for model in found:
            folders.setdefault(_repository(model), []).append(model)
        return [self._stored(model, folders[_repository(model)]) for model in found]

    def remove(self, model: StoredModel) -> None:
        """Delete the files of a model, what had not come whole beside them, and folders that are empty then. OSError, with the
        file, if one stays."""
        for path in model.paths:
            path.unlink()
        folder = self.root / _repository_folder(self.root, model.paths[0])
        left = [path for path in folder.rglob("*") if not path.is_dir()]
        if folder != self.root and all(path.name == LOCK or WAITING.fullmatch(path.name) for path in left):
            for path in left:
                path.unlink()
        for parent in model.paths[0].parents:
            if parent == self.root or any(parent.iterdir()):
                break
            parent.rmdir()

    def require_trusted(self, *names: str) -> None:
        """FetchError if the folder `root/names...`, which is there, may not be read from."""
        try:
            self.make(*names)
        except OSError as error:
            raise cannot_keep(error, "models", self.root) from error

    def _stored(self, model: ModelFiles, beside: list[ModelFiles]) -> StoredModel:
        name = model.files[0]
        if folder := _repository(model):
            repository, _, revision = folder.partition("@")
            inside = [ModelFiles(tuple(file.removeprefix(f"{folder}/") for file in other.files)) for other in beside]
            file = name.removeprefix(f"{folder}/")
            short = HubName(repository, revision or None, quantisation=model.quantisation or None)
            unique = len(matching(short, inside)) == 1
            name = str(short if unique else HubName(repository, revision or None, file=file))
        paths = tuple(self.root / file for file in model.files)
        return StoredModel(name, model.quantisation, sum(path.stat().st_size for path in paths), paths, len(model.missing))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system takes back from a process that dies. Its file is never followed if it is a link,
    and nothing is ever written to it."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def cannot_keep(error: OSError, what: str, folder: Path) -> FetchError:
    """What to say where the system refuses a file or folder."""
    return FetchError(f"cannot keep {what} in {error.filename or folder}: {error.strerror or error}")


def _files(folder: Path) -> list[str]:
    """The paths of all regular files below a folder, but for what is hidden; no link to a folder is followed."""
    paths = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        seen = (os.path.join(parent, name) for name in names if not name.startswith("."))
        paths += [os.path.relpath(path, folder) for path in seen if os.path.isfile(path)]
    return paths


def _repository(model: ModelFiles) -> str:
    """ORG/REPO, with its revision, if the file lies where those of the hub lie; else nothing."""
    steps = model.files[0].split("/")
    if len(steps) < 3:
        return ""
    try:
        HubName.parse(f"hf://{steps[0]}/{steps[1]}")
    except ArgumentError:
        return ""
    return f"{steps[0]}/{steps[1]}"


def _repository_folder(root: Path, path: Path) -> Path:
    steps = path.relative_to(root).parts
    return Path(*steps[:2]) if len(steps) > 2 else Path()
