"""Memory of a dry run: what the host puts there is there, and nothing takes room before it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.base.errors import DeviceError, SharingError
from executor.device.dry_run import DryRunMemory
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from executor.memory.workspace import Workspace
from ptxgen.types import F32

ROOM = 1 << 50
"""Bytes: more than any machine has."""


def test_buffers_hold_what_the_host_put_into_them() -> None:
    memory = DryRunMemory()
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    x, y = GpuBuffer.from_numpy(memory, values), GpuBuffer.zeros(memory, F32, (3, 4))
    np.testing.assert_array_equal(x.to_numpy(), values)
    np.testing.assert_array_equal(y.to_numpy(), np.zeros_like(values))
    memory.copy(y.pointer + 16, x.view(32, (4,)).pointer, 16)
    np.testing.assert_array_equal(y.to_numpy(), [[0] * 4, values[2], [0] * 4])
    memory.upload_from(y.pointer, 16, lambda start, into: into.fill(0))
    assert not y.to_numpy()[0].any()


def test_an_allocation_that_nothing_was_written_to_takes_no_room() -> None:
    memory = DryRunMemory()
    first, second = memory.alloc(ROOM), memory.alloc(ROOM)
    assert second >= first + ROOM
    assert memory.allocations.total == 2 * ROOM
    assert not memory.written(first)
    Workspace(memory).buffer("much", (ROOM,))


def test_read_only_memory_is_read_when_it_is_looked_at() -> None:
    reads: list[int] = []

    def read(start: int, into: NDArray[np.uint8]) -> None:
        reads.append(start)
        into[:] = np.arange(start, start + into.size)

    memory = DryRunMemory()
    pointer = memory.alloc_read_only(64, read)
    assert reads == []
    content = np.empty(4, np.uint8)
    memory.download(pointer + 8, content)
    assert content.tolist() == [8, 9, 10, 11]
    assert reads == [0]


def test_a_cache_grows_with_what_is_in_it() -> None:
    memory = DryRunMemory()
    cache = KvCache(memory, layers=1, kv_heads=2, head_dim=32, max_len=4)
    keys = np.random.default_rng(0).standard_normal((2, 4, 32), np.float32)
    cache.layers[0].keys.upload(keys)
    cache.advance(3)
    cache.grow(8)
    np.testing.assert_array_equal(cache.layers[0].keys.to_numpy()[:, :3], keys[:, :3])


def test_what_was_freed_and_what_is_not_there_cannot_be_used() -> None:
    memory = DryRunMemory()
    pointer = memory.alloc(64)
    ticket = memory.allocations.ticket(pointer)
    memory.free(pointer, ticket)
    memory.free(pointer, ticket)  # somebody else was first
    with pytest.raises(DeviceError, match="a dry run: cannot free"):
        memory.free(pointer)
    with pytest.raises(DeviceError, match="a dry run: cannot upload 4 bytes"):
        memory.upload(pointer, np.zeros(4, np.uint8))


def test_a_buffer_of_a_dry_run_is_not_shared() -> None:
    buffer = GpuBuffer.empty(DryRunMemory(), F32, (4,), "x")
    with pytest.raises(SharingError, match=r"x f32\[4\] is in a dry run, which has no memory to share"):
        buffer.__dlpack__()
    buffer.touch()
    assert buffer.version == 1
