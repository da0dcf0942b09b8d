"""Where the file of a model is, whatever it was called by: a path, a file in the folder of models, or a name on the hub."""

from __future__ import annotations

import os
from pathlib import Path

from executor.base.arguments import described
from executor.base.environment import settings
from executor.base.progress import Progress
from executor.gguf.hub import fetch_from_hub
from executor.gguf.model_folder import ModelFolder
from executor.gguf.model_name import PREFIX, HubName
from ptxgen.errors import ArgumentError


def local_model(model: str | os.PathLike[str], folder: Path | None = None, progress: Progress | None = None) -> Path:
    """The file of a model on this machine, the first one of several.

    model: the path of a file; a path within the folder of models, where no such file is; or a name that begins with `hf://`
    (executor/gguf/model_name.py). What such a name means in the folder is taken as it is there, without a look at the network,
    and fetched only if it is not there. folder: of models (default: PTXGEN_MODEL_DIR, else `models` in the cache folder).
    Raises FetchError, and ArgumentError for a name that is none. Whether the file is a model is not looked at.
    """
    if not isinstance(model, str | os.PathLike):
        raise ArgumentError(
            f"the model is {described(model)}; allowed: the path of a GGUF file, or a name such as hf://ORG/REPO:Q4_K_M"
        )
    if isinstance(model, str) and model.startswith(PREFIX):
        name, place = HubName.parse(model), ModelFolder.at(folder)
        return place.find(name) or fetch_from_hub(name, place, progress)
    path = Path(model)
    if path.exists() or (folder is None and settings().model_dir is None and settings().cache_dir is None):
        return path
    return ModelFolder.at(folder).find_file(os.fspath(model)) or path
