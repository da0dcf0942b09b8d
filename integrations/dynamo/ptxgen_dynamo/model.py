"""The model of a worker, from its file to its scheduler, and back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from executor.api.executor import CudaExecutor
from executor.base import environment
from executor.gguf.locate import local_model
from executor.gguf.parts import stem_of
from executor.model.generation import LanguageModel
from executor.model.scheduling.scheduler import Scheduler
from executor.model.tokenizer_folder import tokenizer_folder
from executor.serve.capacity import serving_scheduler
from ptxgen.errors import ArgumentError
from ptxgen_dynamo.settings import Settings


@dataclass(frozen=True)
class LoadedModel:
    """Belongs to the thread that loaded it, until another takes it over."""

    executor: CudaExecutor
    model: LanguageModel
    scheduler: Scheduler

    def close(self) -> None:
        """Give the device back, on any thread, when nobody else uses it any more."""
        self.model.device.owner.take_over()
        self.executor.close()


def load(settings: Settings) -> LoadedModel:
    """Errors as those of `ptxrun serve`; then nothing stays on the device."""
    executor = CudaExecutor(settings.device, devices=settings.devices)
    try:
        if settings.precision is not None:
            executor.profile = replace(executor.profile, precision=settings.precision)
        model = executor.load_model(local_model(settings.model), context=settings.context)
        scheduler = serving_scheduler(
            model, settings.slots, settings.cache_tokens, settings.kv_type, guesses=settings.guesses
        )  # fmt: skip
    except BaseException:
        executor.close()
        raise
    return LoadedModel(executor, model, scheduler)


def name_of(settings: Settings) -> str:
    """What requests call the model."""
    return settings.name or stem_of(local_model(settings.model).name)


def kept_tokenizer(settings: Settings) -> Path:
    """The folder that Dynamo tokenises from, written into the cache under a name by its contents: workers serve one model in
    Dynamo's eyes only if their folders have one path. ArgumentError where nothing is cached, or nothing can be written."""
    cache = environment.settings().cache_dir
    if cache is None:
        raise ArgumentError(
            "there is no cache folder to write the tokenizer to (PTXGEN_CACHE_DIR is off); name it: --tokenizer"
        )
    made = tokenizer_folder(local_model(settings.model))
    folder = cache / "tokenizers" / made.digest[:16]
    made.write(folder)
    return folder
