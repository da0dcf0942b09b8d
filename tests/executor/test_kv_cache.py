"""The KV cache knows how many positions are taken and refuses one too many."""

from __future__ import annotations

import pytest

from executor.device import Device
from executor.kv_cache import KvCache
from ptxgen.errors import ArgumentError


def test_each_layer_has_keys_and_values_of_its_own(emulator: Device) -> None:
    cache = KvCache(emulator, layers=3, kv_heads=2, head_dim=64, max_len=10)
    buffers = [buffer for layer in cache.layers for buffer in (layer.keys, layer.values)]
    assert {buffer.shape for buffer in buffers} == {(2, 10, 64)}
    assert len({buffer.pointer for buffer in buffers}) == 6
    assert cache.nbytes == emulator.memory().allocated == 6 * 2 * 10 * 64 * 4


def test_positions_are_given_out_until_the_context_is_full(emulator: Device) -> None:
    cache = KvCache(emulator, layers=1, kv_heads=1, head_dim=32, max_len=4)
    assert [cache.advance(), cache.advance(3)] == [0, 1]
    with pytest.raises(ArgumentError, match="the context is full: 4 of 4 positions are taken, 1 more do not fit"):
        cache.advance()
    assert cache.length == 4


def test_a_request_that_does_not_fit_takes_nothing(emulator: Device) -> None:
    cache = KvCache(emulator, layers=1, kv_heads=1, head_dim=32, max_len=4)
    cache.advance(2)
    for count in (3, 0, -1):
        with pytest.raises(ArgumentError):
            cache.advance(count)
    assert cache.length == 2


def test_reset_and_truncate_free_positions(emulator: Device) -> None:
    cache = KvCache(emulator, layers=1, kv_heads=1, head_dim=32, max_len=4)
    cache.advance(4)
    cache.truncate(1)
    assert cache.advance() == 1
    with pytest.raises(ArgumentError, match="from 0 to 2"):
        cache.truncate(3)
    cache.reset()
    assert cache.advance() == 0


def test_free_gives_all_memory_back(emulator: Device) -> None:
    KvCache(emulator, layers=2, kv_heads=1, head_dim=32, max_len=4).free()
    assert emulator.memory().allocated == 0


@pytest.mark.parametrize("name", ["layers", "kv_heads", "head_dim", "max_len"])
def test_a_size_of_zero_is_named(emulator: Device, name: str) -> None:
    sizes = {"layers": 1, "kv_heads": 1, "head_dim": 32, "max_len": 4, name: 0}
    with pytest.raises(ArgumentError, match=f"{name} is 0"):
        KvCache(emulator, **sizes)
