"""How tests on a device launch kernels of their own: compiled for them, and not from the user's cache. No test."""

from __future__ import annotations

from executor.device import Device
from executor.launch.launch import Launcher
from executor.launch.modules import Modules


def launcher_on(device: Device) -> Launcher:
    return Launcher(device, Modules(device, limit_bytes=0))
