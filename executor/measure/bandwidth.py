"""The bandwidth of a GPU's memory: measured once with one of our kernels, and kept on disk."""

from __future__ import annotations

import json
import logging
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from executor.base.disk_cache import cache_folder
from executor.base.environment import settings
from executor.base.errors import DeviceError
from executor.device.protocol import Device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.measure.timing import array_argument, chain_seconds, freed, repeated
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError
from ptxgen.files import read_regular, replacing
from ptxgen.formats import FORMATS
from ptxgen.kernels.gemv.mwv import MwvGemv
from ptxgen.types import F32

FILE: Final = "bandwidth.json"
SIZE: Final = 16384
"""Rows, and f32 values of a row, of the matrix that is read: 1 GiB, several times the cache of any GPU."""
RUNS: Final = 5
LIMIT: Final = 1 << 20
"""Bytes of the file: one line a GPU and driver."""

_log = logging.getLogger(__name__)


def bandwidth(device: Device) -> float:
    """Bytes a second that a kernel reads from the GPU's memory. It is kept on disk by GPU and driver, and measured now if it is
    not there (1 GiB of memory, under a second). DeviceError for the emulator, whose memory is the host's."""
    if (rate := known_bandwidth(device)) is not None:
        return rate
    rate = _measured(device)
    root = settings().cache_dir
    if root is not None:
        path = cache_folder(root) / FILE
        content = json.dumps(_kept(path) | {_key(device): rate}, indent=1) + "\n"
        with replacing(path) as stream:
            stream.write(content.encode())
    return rate


def known_bandwidth(device: Device) -> float | None:
    """What was measured before on this GPU with this driver; None if nothing was, and for the emulator."""
    root = settings().cache_dir
    if device.kind != "cuda" or root is None or not os.path.exists(root / FILE):
        return None
    return _kept(cache_folder(root) / FILE).get(_key(device))


def _measured(device: Device) -> float:
    if device.kind != "cuda":
        raise DeviceError(f"{device.name} has no memory of its own, so it has no bandwidth; only a GPU's is measured")
    kernel = MwvGemv(FORMATS["F32"], k=SIZE, n=SIZE)
    sample = replace(kernel, n=4).inputs(np.random.default_rng(0))
    weights = array_argument(kernel, "w")
    with freed(device) as buffers, closing(Modules(device)) as modules:
        buffers.append(w := repeated(device, sample["w"], weights))
        buffers.append(x := GpuBuffer.from_numpy(device, sample["x"]))
        buffers.append(y := GpuBuffer.empty(device, F32, (SIZE,)))
        plan = Launcher(device, modules).prepare(kernel, w=w, x=x, y=y)
        seconds = min(chain_seconds(device, [plan], RUNS))
    _log.info("%s reads %.0f GB/s", device.name, weights.nbytes / seconds / 1e9)
    return weights.nbytes / seconds


def _key(device: Device) -> str:
    facts = device.describe()
    return f"{facts['product']}, driver {facts['cuda_driver']}"


def _kept(path: Path) -> dict[str, float]:
    """What the file holds; nothing if it is not there."""
    try:
        kept = json.loads(read_regular(path, LIMIT))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} cannot be read as a file of bandwidths ({error}); remove it") from error
    if not isinstance(kept, dict) or not all(isinstance(value, float) and value > 0 for value in kept.values()):
        raise ArgumentError(f"{path} is not a file of bandwidths (bytes a second by the name of a GPU); remove it")
    return kept
