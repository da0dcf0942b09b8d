"""GPUs by name: what is known of each without one at hand. Nothing here is measured but `read_gbps`.

Sources. Multiprocessors, clocks, L2 and bandwidth: NVIDIA's data sheet or architecture white paper of each GPU, named in its
row of known.json; L2 of H200, GH200, B200 and Thor, and the names of products, as drivers report them. Assumed:
multiprocessors, L2 and clock of a B300 are a B200's. A Jetson's memory is the system's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ptxgen.errors import ArgumentError
from ptxgen.gpus.multiprocessor import Multiprocessor, TensorRates, multiprocessor_of
from ptxgen.printable import did_you_mean
from ptxgen.target import Target

GEFORCE: Final = "GeForce"
"""The line of products whose tensor units take f16 and fp8 with f32 sums at half the rate of the others of their generation."""
STREAMED_SHARE: Final = 0.92
"""Of the maker's bandwidth, what a plain streaming read is assumed to reach where unmeasured: H100 0.93, H200 0.97."""


@dataclass(frozen=True)
class Gpu:
    """A GPU, of the table of products or as a driver reports it.

    bandwidth_gbps: of its memory, the maker's figure, in 1e9 bytes a second; read_gbps: what a plain streaming read was
    measured to reach, 0 where it was not; clock_mhz: its highest boost clock; memory_gb: the size of its memory; product: what
    the driver calls it; source: where the figures are from."""

    name: str
    title: str
    sm: int
    multiprocessors: int
    clock_mhz: int
    bandwidth_gbps: int
    memory_gb: int
    l2_bytes: int
    product: str
    source: str
    multiprocessor: Multiprocessor
    read_gbps: int = 0

    @property
    def target(self) -> Target:
        """The generation's."""
        return Target(self.sm)

    @property
    def read_bandwidth(self) -> float:
        """Bytes a second of a plain streaming read: measured, else STREAMED_SHARE of the maker's figure."""
        return 1e9 * (self.read_gbps or STREAMED_SHARE * self.bandwidth_gbps)

    @property
    def clock_hz(self) -> float:
        """Clocks a second."""
        return 1e6 * self.clock_mhz

    @property
    def most_shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.multiprocessor.shared_block_bytes


def of_line(multiprocessor: Multiprocessor, product: str) -> Multiprocessor:
    """A generation's, with the tensor units of the line that the product's name tells."""
    if GEFORCE not in product:
        return multiprocessor
    full = multiprocessor.mma
    return replace(multiprocessor, mma=TensorRates(full.f16 // 2, full.int8, full.fp8 // 2))


def _known(row: dict[str, Any]) -> Gpu:
    l2_bytes = int(row.pop("l2_mib") * (1 << 20))
    return Gpu(**row, l2_bytes=l2_bytes, multiprocessor=of_line(multiprocessor_of(row["sm"]), row["product"]))


GPUS: Final[dict[str, Gpu]] = {
    row["name"]: _known(row) for row in json.loads(Path(__file__).with_name("known.json").read_bytes())
}
"""By name. The rows are in known.json: the figures and where they are from."""
DEFAULT_GPU: Final = GPUS["h200"]


def find_gpu(name: str) -> Gpu:
    """The GPU of this name, in any case and spacing (`RTX 4090`). ArgumentError lists the known ones."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if plain not in GPUS:
        hint = did_you_mean(plain, GPUS)
        raise ArgumentError(f"unknown GPU {name!r}; {hint and hint + ' '}known: {', '.join(GPUS)}")
    return GPUS[plain]


def newest_for(target: Target) -> Gpu:
    """A GPU that runs code for `target`: the one of its own generation with the most bandwidth, else of the next newer one."""
    sm = min((gpu.sm for gpu in GPUS.values() if gpu.sm >= target.sm), default=DEFAULT_GPU.sm)
    return max((gpu for gpu in GPUS.values() if gpu.sm == sm), key=lambda gpu: gpu.bandwidth_gbps)


def of_product(product: str) -> Gpu | None:
    """The known GPU that a driver calls so; None if there is none."""
    return next((gpu for gpu in GPUS.values() if gpu.product == product), None)
