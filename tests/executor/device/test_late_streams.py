"""On a driver whose streams run behind: each fetch has what the memory held when it was started, whatever is written there
afterwards, and in whatever order they are read, kept or dropped; and memory that other GPUs may store into has been filled."""

from __future__ import annotations

import ctypes
import random

import numpy as np
import pytest

from executor.device.cuda import CudaDevice
from executor.device.cuda_stream import CurrentStream
from executor.device.protocol import Fetch
from executor.memory.buffers import GpuBuffer
from executor.memory.peers import peer_addresses
from ptxgen.types import U32
from tests.executor.device.late_driver import LateDriver


def wrong(driver: LateDriver, seed: int, rounds: int = 60) -> int:
    """How many fetches had other numbers than they should."""
    draw, held, count = random.Random(seed), list[tuple[int, Fetch]](), 0
    with CudaDevice() as device:
        buffer = GpuBuffer.from_numpy(device, np.zeros(1, np.uint32))
        for number in range(1, rounds):
            buffer.upload(np.array([number], np.uint32))
            held.append((number, device.fetch(buffer.pointer, np.zeros(1, np.uint32))))
            buffer.upload(np.array([0], np.uint32))
            while len(held) > draw.randrange(4):
                expected, fetch = held.pop(draw.randrange(len(held)))
                if draw.random() < 0.7:  # others are dropped, and what they went to is used again
                    count += int(fetch.to_numpy()[0]) != expected
        count += sum(int(fetch.to_numpy()[0]) != expected for expected, fetch in held)
        held.clear()
    assert not any(driver.live.values())
    return count


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateDriver:
    driver = LateDriver(seed=1)
    monkeypatch.setattr("executor.device.cuda.driver", lambda: driver)
    return driver


@pytest.mark.parametrize("seed", range(3))
def test_a_fetch_has_what_was_there_when_it_was_started(late: LateDriver, seed: int) -> None:
    assert wrong(late, seed) == 0


def test_without_the_order_between_its_streams_it_has_not(late: LateDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CurrentStream, "order", lambda self, before, after: None)
    assert wrong(late, 0) > 0


def test_memory_whose_addresses_others_get_has_been_filled(late: LateDriver) -> None:
    late.gpus = 2
    with CudaDevice(0) as one, CudaDevice(1) as other:
        flags = [GpuBuffer.empty(device, U32, (64,)) for device in (one, other)]
        for byte in (7, 0):
            for buffer in flags:
                buffer.fill(byte)
            peer_addresses(flags)
            for buffer in flags:
                assert ctypes.string_at(buffer.pointer, buffer.nbytes) == bytes([byte]) * buffer.nbytes
