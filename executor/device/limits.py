"""A GPU with the limits of another one (PTXGEN_DEVICE_LIMITS), and what a block may have of shared memory."""

from __future__ import annotations

from dataclasses import replace

from executor.base.environment import variable
from executor.base.errors import DeviceError
from ptxgen.gpus.gpu import Gpu


def limited(whole: Gpu, limits: Gpu) -> Gpu:
    """`limits` as kernels are chosen for it where `whole` runs them; named after both, since what is measured there is of
    neither. ArgumentError for one that is newer, or has more shared memory for a block."""
    if limits.sm > whole.sm or limits.most_shared > whole.most_shared:
        raise variable("device_limits").refused(
            f"{limits.title} is {limits.target} with {limits.most_shared} bytes of shared memory a block, and {whole.product} "
            f"is {whole.target} with {whole.most_shared}"
        )
    return replace(limits, product=f"{limits.product} on {whole.product}")


def require_shared(device: str, card: Gpu, entry: str, nbytes: int) -> None:
    """DeviceError if a block of a kernel has more shared memory, static and dynamic, than the GPU gives one."""
    if nbytes > card.most_shared:
        raise DeviceError(
            f"{device}: a block of {entry} has {nbytes} bytes of shared memory, and {card.title} gives one {card.most_shared} "
            f"at most{variable('device_limits').note()}"
        )
