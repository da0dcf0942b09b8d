"""Whether a model runs on a GPU that need not be there, and with what: read from the file's directory alone, by the code that
loads models. Raises what loading would raise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from executor.base.errors import ModelError, OutOfMemory
from executor.choice.choice import GpuProfile
from executor.device.dry_run import DryRunDevice
from executor.gguf.gguf_file import GgufFile
from executor.model.context import chosen_context, longest_that_fits
from executor.model.expected_speed import Estimate, expected_speed, memory_of
from executor.model.explain import Explained, explain
from executor.model.kernel_limits import named_by_key, runnable_spec
from executor.model.memory_needed import MemoryNeeded, memory_needed
from executor.model.prompt_chunks import prompt_steps
from executor.model.recorded_step import DryModel
from executor.model.row_steps import CHUNK
from executor.model.spec import ModelSpec
from executor.text.tokenizer import Tokenizer
from ptxgen.gpus.gpu import Gpu
from ptxgen.kernels.attention.paged_cache import TILE as PAGE_UNIT

SAMPLE: Final = "a"


@dataclass(frozen=True)
class CheckedModel:
    """A model that runs. rows: its matrices, each with its kernel for a token; prompt: the same with those for `prompt_rows`
    tokens of a prompt; launches: of a token; speeds: with an empty cache, and with a full one; no_text: why only
    token ids can be used, or None."""

    spec: ModelSpec
    gpu: Gpu
    precision: str
    rows: Sequence[Explained]
    prompt_rows: int
    prompt: Sequence[Explained]
    launches: int
    memory: MemoryNeeded
    speeds: tuple[Estimate, Estimate]
    no_text: str | None

    def facts(self) -> dict[str, Any]:
        """Ready for JSON."""
        matrices = [
            row.facts() | {"prompt_kernel": many.choice.kernel.name} for row, many in zip(self.rows, self.prompt, strict=True)
        ]
        return {
            "architecture": self.spec.architecture,
            "layers": self.spec.layers,
            "gpu": self.gpu.title,
            "target": str(self.gpu.target),
            "precision": self.precision,
            "text": self.no_text is None,
            "no_text": self.no_text,
            "matrices": matrices,
            "prompt_rows": self.prompt_rows,
            "launches_a_token": self.launches,
            "memory": vars(self.memory) | {"total": self.memory.total, "of_the_gpu": memory_of(self.gpu)},
            "expected": [vars(speed) for speed in self.speeds],
        }


def check_model(file: GgufFile, gpu: Gpu, context: int | None = None, precision: str | None = None) -> CheckedModel:
    """The model in a file as this GPU would run it, with room for `context` tokens (default: as for loading).

    ModelError for a file that is not a good model or is not computed; OutOfMemory for more than the GPU has; ArgumentError for
    a context out of range."""
    spec = runnable_spec(file)
    no_text = _no_text(file)
    context = chosen_context(spec, context)
    device = DryRunDevice.of(gpu)
    profile = GpuProfile.for_device(device.as_device)
    profile = profile if precision is None else replace(profile, precision=precision)
    prompt = prompt_steps(context, CHUNK)[-1] if context % PAGE_UNIT == 0 else 1
    with named_by_key(spec, file.metadata, file.path):
        rows = explain(file, profile)
        several = explain(file, profile, prompt)
        launches = len(DryModel(file, spec, context, device, profile).token())
        memory = memory_needed(file, spec, context, device.target, profile)
        if memory.total > memory_of(gpu):
            fits = longest_that_fits(
                lambda tokens: memory_needed(file, spec, tokens, device.target, profile).total, context, memory_of(gpu)
            )
            raise _too_large(file, memory, gpu, fits)
    speeds = expected_speed(spec, rows, gpu, 0), expected_speed(spec, rows, gpu, context)
    return CheckedModel(spec, gpu, profile.precision, rows, prompt, several, launches, memory, speeds, no_text)


def _no_text(file: GgufFile) -> str | None:
    """Why the tokenizer takes no text."""
    tokenizer = Tokenizer.from_gguf(file)
    try:
        tokenizer.encode(SAMPLE)
    except ModelError as error:
        return str(error).removeprefix(f"{file.path}: ")
    return None


def _too_large(file: GgufFile, memory: MemoryNeeded, gpu: Gpu, fits: int) -> OutOfMemory:
    there = memory_of(gpu)
    less = f"a context of about {fits} tokens would fit" if fits else "no context would fit"
    message = f"{file.path}: {gpu.title} has {there} bytes, and the model needs {memory}; {less}"
    return OutOfMemory(message, memory.total, there)
