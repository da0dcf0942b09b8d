"""A program that runs a model from a bundle's manifest alone, as one in another language would: it knows no kernel and no
layer. PTX runs on the emulator, whose memory is NumPy's. No test."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxgen.emulator import compile_module

BYTES = {"f32": np.float32, "u32": np.uint32}
PACKED = {"u32": "I", "f32": "f"}


class BundleProgram:
    """`step(token)` gives the logits f32[vocab] after one more token."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.kernels = {
            name: compile_module((folder / facts["ptx"]["path"]).read_text()).kernel(facts["entry"])
            for name, facts in self.manifest["kernels"].items()
        }
        content = np.fromfile(model, np.uint8)
        self.tensors = {
            name: aligned(content[facts["file_offset"] : facts["file_offset"] + facts["bytes"]])
            for name, facts in self.manifest["tensors"].items()
        }
        self.buffers = {name: aligned(initial(folder, facts)) for name, facts in self.manifest["buffers"].items()}
        self.position = 0

    def step(self, token: int) -> NDArray[np.float32]:
        for write in self.manifest["before"]:
            number = eval(write["value"], {"position": self.position})
            self.array(write["buffer"])[:] = number
        for launch in self.manifest["launches"]:
            facts = self.manifest["kernels"][launch["kernel"]]
            parameters = b""
            for parameter in facts["parameters"]:
                code, value = self.packed(parameter, launch["arguments"][parameter["name"]], token)
                size = struct.calcsize("<" + code)
                parameters = parameters.ljust(-(-len(parameters) // size) * size, b"\0") + struct.pack("<" + code, value)
            self.kernels[launch["kernel"]].launch(tuple(facts["grid"]), tuple(facts["block"]), parameters)
        self.position += 1
        logits: NDArray[np.float32] = self.array(self.manifest["results"]["logits"]).copy()
        return logits

    def packed(self, parameter: dict[str, Any], argument: dict[str, Any], token: int) -> tuple[str, Any]:
        if parameter["kind"] == "scalar":
            return PACKED[parameter["dtype"]], token if argument.get("input") == "token" else argument["value"]
        held = self.tensors[argument["tensor"]] if "tensor" in argument else self.buffers[argument["buffer"]]
        return "Q", held.ctypes.data + argument.get("offset", 0)

    def array(self, name: str) -> NDArray[Any]:
        return self.buffers[name].view(BYTES[self.manifest["buffers"][name]["dtype"]])


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
