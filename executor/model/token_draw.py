"""What steps that draw their tokens keep on the device: the sampler's settings, its seed and the number of the next draw."""

from __future__ import annotations

import numpy as np

from executor.device.protocol import Device
from executor.launch.launch import LayerOperation
from executor.layers.calls import KernelCall
from executor.memory.buffers import GpuBuffer
from executor.model.sampling import Sampler
from executor.model.token_launches import TokenLaunches
from ptxgen.kernels.token.sample_token import SampleToken


class TokenDraw:
    """Each step has a draw of its own: the token after position p is drawn with the number that the sampler had when `use` was
    called, and as many more as p is behind the position then. So a step that runs again draws the same token."""

    def __init__(self, device: Device) -> None:
        self._settings = GpuBuffer.from_numpy(device, np.zeros(4, np.uint32), name="sampling settings")
        self._random = GpuBuffer.from_numpy(device, np.zeros(2, np.uint64), name="random numbers")
        self._key = self._first = 0
        self._held: object = None

    def use(self, sampler: Sampler, position: int) -> None:
        """Draw for this sampler, whose next draw is that of the step at `position`."""
        self._settings.upload(sampler.settings)
        self._key, self._first = sampler.key, sampler.draws - position

    def move_to(self, position: int) -> None:
        """Have the draw of this position on the device, for a launch that changes it. Other writes are noticed by their
        version."""
        if self._held != self._state(position):
            self._random.upload(np.array([self._key, (self._first + position) % 2**64], np.uint64))
        self._held = None

    def moved_to(self, position: int) -> None:
        """The kernel has left the draw of this position there."""
        self._held = self._state(position)

    def call(self, launches: TokenLaunches) -> KernelCall:
        """Draws the next token where argmax would leave the likeliest."""
        kernel = SampleToken(n=launches.logits.shape[0])
        arguments = {"out": launches.token, "x": launches.logits, "settings": self._settings, "random": self._random}
        return KernelCall(kernel, arguments, LayerOperation(None, "sample"))

    def free(self) -> None:
        """Give the memory back."""
        self._settings.free()
        self._random.free()

    def _state(self, position: int) -> object:
        return self._key, self._first + position, self._random.allocation.version
