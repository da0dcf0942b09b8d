"""The recorded results of probes on a GPU (golden/isa/outputs.npz): written with `pytest -m gpu --record-isa DIR`, read where
there is no GPU. Operands are not stored: they are made again, and a checksum tells if they came out otherwise."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ptxgen.isa import operand_values, probe

FILE = "outputs.npz"
COUNT = 64
"""Records a probe has in the file: two warps."""
MADE = 512
"""Records a probe is run with on a GPU: 16 warps. What an operand is depends on how many are made, so the first COUNT of MADE
are compared with the file, and not COUNT made by themselves."""


@dataclass
class Recording:
    """Results by probe key: a checksum of the operands, and the bytes of the output fields, [COUNT, bytes]."""

    gpu: str = ""
    checksums: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, NDArray[np.uint8]] = field(default_factory=dict)

    def add(self, batch: probe.Batch, inputs: NDArray[np.uint8], outputs: NDArray[np.uint8]) -> None:
        """Keep the first COUNT records of a batch."""
        for one in batch.probes:
            key = operand_values.key(one)
            if key in self.outputs:
                raise ValueError(f"two probes are called {key!r}")
            self.checksums[key] = checksum(one, inputs[:COUNT])
            self.outputs[key] = fields(outputs[:COUNT], one.outputs)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        keys = sorted(self.outputs)
        flat = [self.outputs[key].reshape(-1) for key in keys]
        arrays: dict[str, Any] = {
            "gpu": np.array(self.gpu),
            "keys": np.array(keys),
            "checksums": np.array([self.checksums[key] for key in keys], np.uint32),
            "sizes": np.array([len(x) for x in flat], np.uint32),
            "bytes": np.concatenate(flat),
        }
        np.savez_compressed(folder / FILE, **arrays)

    @classmethod
    def read(cls, folder: Path) -> Recording:
        with np.load(folder / FILE) as file:
            recording = cls(str(file["gpu"]))
            ends = np.cumsum(file["sizes"], dtype=np.int64)
            parts = np.split(file["bytes"], ends[:-1])
            for key, crc, part in zip(file["keys"].tolist(), file["checksums"].tolist(), parts, strict=True):
                recording.checksums[key], recording.outputs[key] = crc, part.reshape(COUNT, -1)
        return recording


def fields(records: NDArray[np.uint8], places: tuple[probe.Field, ...]) -> NDArray[np.uint8]:
    """The bytes of these fields side by side, [count, bytes]."""
    parts = [records[:, p.offset : p.offset + p.bytes] for p in places]
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(records), 0), np.uint8)


def checksum(one: probe.Probe, inputs: NDArray[np.uint8]) -> int:
    return zlib.crc32(np.ascontiguousarray(fields(inputs, one.inputs)).tobytes())


def as_records(one: probe.Probe, recorded: NDArray[np.uint8], out_bytes: int) -> NDArray[np.uint8]:
    """Recorded field bytes back at their offsets in whole records."""
    records = np.zeros((len(recorded), out_bytes), np.uint8)
    start = 0
    for place in one.outputs:
        records[:, place.offset : place.offset + place.bytes] = recorded[:, start : start + place.bytes]
        start += place.bytes
    return records
