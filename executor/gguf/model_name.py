"""What a model on the Hugging Face hub is called, and which files of a list a name means. Knows no folder and no network.

    hf://ORG/REPO:QUANTISATION      the file (or files) with that quantisation in its name, as Q4_K_M
    hf://ORG/REPO/PATH/FILE.gguf    this file; of a model in several files any of them
    hf://ORG/REPO                   the only model there is
    hf://ORG/REPO@REVISION...       a branch, a tag or a commit

The names of files are a stranger's: what is no plain path within a folder is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from executor.base.errors import FetchError, shown
from executor.gguf.parts import PartName, stem_of
from ptxgen.errors import ArgumentError

PREFIX: Final = "hf://"
ALLOWED: Final = "hf://ORG/REPO:QUANTISATION (as Q4_K_M) or hf://ORG/REPO/FILE.gguf, with @REVISION after REPO if need be"
MOST_SHOWN: Final = 40
"""Files that an error lists."""

_WORD: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME: Final = re.compile(
    rf"hf://(?P<repository>{_WORD}/{_WORD})(@(?P<revision>{_WORD}))?((:(?P<quantisation>{_WORD}))|/(?P<file>.+))?", re.DOTALL
)
_QUANTISATION: Final = re.compile(
    r"(?<![A-Za-z0-9])(UD-)?(I?Q[1-9]_\w+|TQ[12]_0|(MX|NV)FP4(_MOE)?|BF16|F16|F32)(?![A-Za-z0-9_])", re.IGNORECASE
)
_NO_LANGUAGE_MODEL: Final = re.compile(r"mmproj|imatrix", re.IGNORECASE)
"""In the names of files that come with a model: of its eyes, and of how it was quantised."""


@dataclass(frozen=True)
class HubName:
    """A model on the hub. repository: `ORG/REPO`; file: a path in it; at most one of file and quantisation is there."""

    repository: str
    revision: str | None = None
    quantisation: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """What a text that begins with `hf://` means. ArgumentError if it is not as ALLOWED says."""
        found = _NAME.fullmatch(text)
        if found is None or not (found["file"] is None or (is_inside(found["file"]) and _is_gguf(found["file"]))):
            raise ArgumentError(f"{shown(text)} is no name of a model; allowed: {ALLOWED}")
        return cls(found["repository"], found["revision"], found["quantisation"], found["file"])

    @property
    def folder(self) -> str:
        """Where its files lie in a folder of models: two steps deep, apart for each revision that is asked for."""
        return self.repository + ("" if self.revision is None else f"@{self.revision}")

    def __str__(self) -> str:
        end = f":{self.quantisation}" if self.quantisation else f"/{self.file}" if self.file else ""
        return f"{PREFIX}{self.folder}{end}"


@dataclass(frozen=True)
class ModelFiles:
    """The files that are one model, paths within a folder in the order of the parts. missing: the parts that are not there."""

    files: tuple[str, ...]
    missing: tuple[str, ...] = field(default=())

    @property
    def quantisation(self) -> str:
        """As its name says it; nothing if it does not."""
        found = list(_QUANTISATION.finditer(stem_of(self.files[0])))
        return found[-1].group().upper() if found else ""

    def has(self, quantisation: str) -> bool:
        """Whether its name has this word."""
        word = rf"(?<![A-Za-z0-9]){re.escape(quantisation)}(?![A-Za-z0-9_])"
        return re.search(word, stem_of(self.files[0]), re.IGNORECASE) is not None


def is_inside(path: str) -> bool:
    """Whether a path of the hub leads to a file below the folder that it is in: no step up, from the root or to what is hidden,
    and nothing that a terminal or another system takes for something else."""
    steps = path.split("/")
    return path.isprintable() and "\\" not in path and all(step and not step.startswith(".") for step in steps)


def models_among(paths: Iterable[str]) -> list[ModelFiles]:
    """The models that these files are, by name."""
    groups: dict[str, set[str]] = {}
    for path in paths:
        if _is_gguf(path) and _NO_LANGUAGE_MODEL.search(path.rpartition("/")[2]) is None:
            part = PartName.parse(path)
            groups.setdefault(path if part is None else part.all[0], set()).add(path)
    models = []
    for first in sorted(groups):
        part, there = PartName.parse(first), groups[first]
        every = [first] if part is None else part.all
        models.append(
            ModelFiles(tuple(name for name in every if name in there), tuple(name for name in every if name not in there))
        )
    return models


def matching(name: HubName, models: Sequence[ModelFiles]) -> list[ModelFiles]:
    """Those of the models that a name can mean."""
    if name.file is not None:
        return [model for model in models if name.file in model.files]
    if name.quantisation is None:
        return list(models)
    asked = name.quantisation.upper()
    return [model for model in models if model.quantisation == asked] or [model for model in models if model.has(asked)]


def only_one(name: HubName, models: Sequence[ModelFiles], where: str) -> ModelFiles:
    """The model that a name means. FetchError, with all that there are, if none or several match."""
    found = matching(name, models)
    if len(found) == 1:
        return found[0]
    listed = found or models
    files = [model.files[0] for model in listed[:MOST_SHOWN]] + ["..."] * (len(listed) > MOST_SHOWN)
    if not listed:
        raise FetchError(f"{name}: there is no GGUF model in {where}")
    if found:
        raise FetchError(f"{name}: several models in {where} match; name one of {', '.join(map(shown, files))}")
    raise FetchError(f"{name}: no model in {where} matches; there are {', '.join(map(shown, files))}")


def _is_gguf(path: str) -> bool:
    return path.lower().endswith(".gguf")
