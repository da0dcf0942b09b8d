"""A description of a model -> a folder of PTX, machine code and manifest.json. docs/bundles.md explains it, launch/bundle.py
reads it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from executor.base.errors import BundleError
from executor.bundle.batches import batch
from executor.bundle.describe import Description, describe, outlier_kernels
from executor.bundle.formula import formula_of, plain
from executor.choice.choice import GpuProfile, reads_one_digit
from executor.gguf.gguf_file import GgufFile
from executor.launch.bundle import FORMAT, MANIFEST, VERSION, read_manifest
from executor.model.context import chosen_context
from executor.model.kernel_limits import runnable_spec
from ptxgen import __version__
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.target import Target
from ptxgen.toolchain.assemble import assemble
from ptxgen.toolchain.module import emit

Progress = Callable[[int, int], None]
"""Called with how many kernels are written, and how many there are."""

_SHORT_LIST = re.compile(r"\[\n([^][{}]*)\n *\]")
_log = logging.getLogger(__name__)


def write_bundle(
    path: Path,
    folder: Path,
    target: Target,
    *,
    batches: Collection[int] = (1,),
    cubin: bool = False,
    context: int | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write all that the model in file `path` needs on `target` to `folder`; `cubin` adds machine code for exactly this GPU.

    batches: how many sequences at once; 1 is always there. context: most tokens of a sequence (default: the model's own limit,
    at most 4096). precision: see GpuProfile (default: the environment's). The folder appears whole or not at all; an older
    bundle there is replaced, anything else is an ArgumentError. Raises ModelError for a bad model, ArgumentError for a batch
    or a context that is not possible.
    """
    with GgufFile.open(path) as file:
        spec = runnable_spec(file)
        profile = GpuProfile.from_environment()
        profile = profile if precision is None else replace(profile, precision=precision)
        model = describe(file, spec, chosen_context(spec, context), target, profile)
        groups = {m: batch(model, m) for m in sorted(set(batches)) if m != 1}
        kernels = dict(model.kernels)
        if any(reads_one_digit(kernel) for kernel in kernels.values()):
            # Whether an input has an outlier and needs an accurate kernel is known when the model runs.
            accurate = describe(file, spec, model.numbers["context"], target, profile, accurate=True)
            kernels |= dict(accurate.kernels) | outlier_kernels(accurate)
    for group in groups.values():
        kernels |= {id: launches.kernel for id, launches in group.items()}
    with _replacing(folder) as new:
        (new / "kernels").mkdir()
        kernel_facts: dict[str, dict[str, Any]] = {}
        for done, (name, kernel) in enumerate(kernels.items(), 1):
            kernel_facts[name] = _kernel(new, kernel, target, cubin)
            if progress is not None:
                progress(done, len(kernels))
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "generator": f"ptxgen {__version__}",
            "target": str(target),
            "precision": profile.precision,
            "ptx_version": max((facts["ptx_version"] for facts in kernel_facts.values()), key=_version),
            "model": {"file": path.name, "architecture": spec.architecture},
            "numbers": model.numbers,
            "kernels": kernel_facts,
            "tensors": model.tensors,
            "buffers": _buffers(new, model),
            "before": model.before,
            "launches": model.launches,
            "results": model.results,
            "batches": {
                str(m): [
                    {"kernel": id, "sequences": list(batched.starts), "launches": batched.numbers}
                    for id, batched in group.items()
                ]
                for m, group in groups.items()
            },
        }
        (new / MANIFEST).write_text(_json(manifest), encoding="ascii")
    _log.info("%s: %d kernels, %d launches a token", folder, len(kernel_facts), len(model.launches))


def _kernel(folder: Path, kernel: KernelType, target: Target, cubin: bool) -> dict[str, Any]:
    """Write the text (and machine code) of a kernel; its entry in the manifest."""
    emitted = emit(plain(kernel), target)
    if emitted.target != target:
        raise ArgumentError(f"{kernel} is written for {emitted.target} alone; write the bundle for that, not for {target}")
    stem = re.sub(r"[^A-Za-z0-9]+", "_", str(kernel)).strip("_")
    facts = emitted.manifest()
    for parameter in facts["parameters"]:
        argument = kernel.signature()[parameter["name"]]
        if isinstance(argument, Array):
            parameter["formula"] = [formula_of(extent) for extent in argument.shape]
    del facts["target"], facts["sha256"]
    facts["grid_formula"] = [formula_of(extent) for extent in kernel.launch().grid]
    facts["ptx"] = _file(folder, f"kernels/{stem}.ptx", emitted.text.encode("ascii"))
    if cubin:
        assembled = assemble(emitted.text, target)
        facts["cubin"] = _file(folder, f"kernels/{stem}.cubin", assembled.cubin)
        facts["cubin"]["registers"] = assembled.registers
    return facts


def _buffers(folder: Path, model: Description) -> dict[str, dict[str, Any]]:
    """Buffers with what they hold at the start: nothing that matters, zeros, or the content of a file."""
    buffers: dict[str, dict[str, Any]] = {}
    for name, facts in model.buffers.items():
        content = model.initial.get(name)
        initial: str | dict[str, Any] = "undefined" if content is None else "zero"
        if content is not None and np.any(content.view(np.uint8)):
            (folder / "buffers").mkdir(exist_ok=True)
            initial = _file(folder, f"buffers/{name.replace(' ', '_')}.bin", content.tobytes())
        buffers[name] = {**facts, "initial": initial}
    return buffers


def _file(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    path = folder / name
    if path.exists():
        raise ArgumentError(f"two kernels of this model would both be {name}")
    path.write_bytes(content)
    return {"path": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _json(facts: Mapping[str, Any]) -> str:
    """Indented, with lists of numbers and names on one line. A string has no raw line break, so none is touched."""

    def joined(listed: re.Match[str]) -> str:
        return f"[{' '.join(line.strip() for line in listed[1].splitlines())}]"

    return _SHORT_LIST.sub(joined, json.dumps(facts, indent=1)) + "\n"


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of `folder` when the block ends without an error."""
    folder = Path(os.path.realpath(folder))
    _check_replaceable(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True) as beside:
            content = Path(beside) / "new"
            content.mkdir()
            yield content
            if folder.exists():
                os.rename(folder, Path(beside) / "old")
            os.rename(content, folder)
    except OSError as error:
        raise ArgumentError(f"{folder}: cannot be written: {error.strerror or error}") from error


def _check_replaceable(folder: Path) -> None:
    """ArgumentError unless nothing is lost by replacing the folder."""
    try:
        if os.path.exists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
            read_manifest(folder)
    except (OSError, BundleError) as error:
        _log.debug("%s: %s", folder, error)
        raise ArgumentError(f"{folder} exists and is not a bundle; name a new folder, or remove it first") from error
