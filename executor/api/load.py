"""A model by one call: `executor.load_model`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from executor.api.executor import CudaExecutor
from executor.base.arguments import one_of
from executor.base.environment import PRECISIONS
from executor.gguf.locate import local_model

if TYPE_CHECKING:
    from executor.base.progress import Progress
    from executor.choice.choice import GpuProfile
    from executor.model.generation import LanguageModel


def load_model(
    path: str | Path,
    device: str = "auto",
    *,
    context: int | None = None,
    precision: str | None = None,
    profile: GpuProfile | None = None,
    bundle: str | Path | None = None,
    model_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """A GGUF model, ready to answer, on a device of its own, which closes with it.

    path: of a file, of a split model its first one, or a name on the Hugging Face hub such as `hf://ORG/REPO:Q4_K_M`, which is
    fetched unless it is in the folder of models (docs/models.md; FetchError if it cannot be had). device: auto (a GPU if there
    is one), cuda, cuda:N or emulator; context: most tokens of a sequence (default: the model's own limit, at most 4096);
    precision: accurate or fast (default: the profile's); profile: which kernels are used; bundle: a folder that `ptxgen bundle`
    wrote, from which all kernels come; model_dir: the folder of models (default: PTXGEN_MODEL_DIR, else `models` in the cache
    folder); progress: called with what is done of what. Errors as those of CudaExecutor and LanguageModel.load. For several
    models on one device there is CudaExecutor.load_model."""
    path = local_model(path, None if model_dir is None else Path(model_dir), progress)
    executor = CudaExecutor(device, bundle=bundle, profile=profile)
    try:
        if precision is not None:
            executor.profile = replace(executor.profile, precision=one_of("precision", precision, PRECISIONS))
        loaded = executor.load_model(path, context=context, progress=progress)
    except BaseException:
        executor.close()
        raise
    loaded.on_close(executor.close)
    return loaded
