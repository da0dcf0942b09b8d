"""A program that runs a model from a bundle's manifest alone, as one in another language would: it knows no kernel and no
layer, and decodes one sequence or, with the batched kernels, several at once. PTX runs on the emulator, in NumPy's memory. No
test."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.emulator import compile_module
from ptxgen.emulator.machine import Kernel

BYTES = {"f32": np.float32, "u32": np.uint32}
PACKED = {"u32": "I", "f32": "f"}


class BundleProgram:
    """`step(token)` gives the logits f32[vocab] after one more token, `step(*tokens)` the f32[m, vocab] of m sequences, all at
    the same position or each at its own."""

    def __init__(self, folder: Path, model: Path, m: int = 1) -> None:
        self.m = m
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.folder = folder
        self.kernels: dict[str, Kernel] = {}  # those that were launched
        files = {facts["file"] for facts in self.manifest["tensors"].values()}
        contents = {file: np.fromfile(model.with_name(file), np.uint8) for file in files}
        self.tensors = {
            name: aligned(contents[facts["file"]][facts["file_offset"] : facts["file_offset"] + facts["bytes"]])
            for name, facts in self.manifest["tensors"].items()
        }
        self.buffers = {
            name: aligned(np.tile(initial(folder, facts), 1 if is_shared(facts) else m))
            for name, facts in self.manifest["buffers"].items()
        }
        batches = self.manifest["batches"][str(m)] if m > 1 else []
        self.batched: dict[int, list[tuple[str, int]]] = {}
        for batch in batches:
            for launch in batch["launches"]:
                self.batched.setdefault(launch, []).extend((batch["kernel"], first) for first in batch["sequences"])
        self.position = 0

    def step(self, *tokens: int, positions: tuple[int, ...] | None = None) -> NDArray[np.float32]:
        for write in self.manifest["before"]:
            for i, position in enumerate(positions or (self.position,) * self.m):
                self.array(write["buffer"])[i] = eval(write["value"], {"position": position, "token": tokens[i]})
        for number, launch in enumerate(self.manifest["launches"]):
            single = [(launch["kernel"], sequence) for sequence in range(self.m)]
            for name, first in self.batched.get(number, single):
                self.launch(name, launch["arguments"], first)
        self.position += 1
        logits: NDArray[np.float32] = self.array(self.manifest["results"]["logits"]).copy()
        return logits.reshape(self.m, -1) if self.m > 1 else logits

    def launch(self, name: str, arguments: dict[str, Any], sequence: int) -> None:
        """A batched kernel takes the arguments of the single one in their order, from sequence `sequence` on."""
        facts = self.manifest["kernels"][name]
        parameters = b""
        for parameter, argument in zip(facts["parameters"], arguments.values(), strict=True):
            code, value = self.packed(parameter, argument, sequence)
            size = struct.calcsize("<" + code)
            parameters = parameters.ljust(-(-len(parameters) // size) * size, b"\0") + struct.pack("<" + code, value)
        if name not in self.kernels:
            self.kernels[name] = compile_module((self.folder / facts["ptx"]["path"]).read_text()).kernel(facts["entry"])
        self.kernels[name].launch(tuple(facts["grid"]), tuple(facts["block"]), parameters, cooperative=facts["cooperative"])

    def packed(self, parameter: dict[str, Any], argument: dict[str, Any], sequence: int) -> tuple[str, Any]:
        if parameter["kind"] == "scalar":
            return PACKED[parameter["dtype"]], argument["value"]
        if "tensor" in argument:
            return "Q", self.tensors[argument["tensor"]].ctypes.data + argument.get("offset", 0)
        facts = self.manifest["buffers"][argument["buffer"]]
        row = 0 if is_shared(facts) else sequence * facts["bytes"]
        return "Q", self.buffers[argument["buffer"]].ctypes.data + row + argument.get("offset", 0)

    def array(self, name: str) -> NDArray[Any]:
        return self.buffers[name].view(BYTES[self.manifest["buffers"][name]["dtype"]])


def is_shared(facts: dict[str, Any]) -> bool:
    """Whether all sequences use the same buffer: it comes from a file and stays as it is."""
    return isinstance(facts["initial"], dict)


def initial(folder: Path, facts: dict[str, Any]) -> NDArray[np.uint8]:
    """What a buffer holds at the start; 0xFF bytes (NaN) where the manifest says that it does not matter."""
    start = facts["initial"]
    if isinstance(start, dict):
        return np.fromfile(folder / start["path"], np.uint8)
    return np.full(facts["bytes"], {"undefined": 0xFF, "zero": 0}[start], np.uint8)


def aligned(content: NDArray[np.uint8], boundary: int = 256) -> NDArray[np.uint8]:
    """A copy on a boundary of so many bytes."""
    room = np.empty(len(content) + boundary, np.uint8)
    start = -room.ctypes.data % boundary
    room[start : start + len(content)] = content
    return room[start : start + len(content)]
