"""The KV cache knows how many positions are filled and refuses one too many."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from executor.base.errors import DeviceError
from executor.device import Device
from executor.memory.buffers import GpuBuffer
from executor.memory.kv_cache import KvCache
from ptxgen.errors import ArgumentError


def test_each_layer_has_keys_and_values_of_its_own(emulator: Device) -> None:
    cache = KvCache(emulator, layers=3, kv_heads=2, head_dim=64, max_len=10, value_dim=32)
    buffers = [buffer for layer in cache.layers for buffer in (layer.keys, layer.values)]
    assert [buffer.shape for buffer in buffers] == [(2, 10, 64), (2, 10, 32)] * 3
    assert len({buffer.pointer for buffer in buffers}) == 6
    assert cache.nbytes == emulator.memory().allocated == 3 * 2 * 10 * (64 + 32) * 4


def test_layers_may_have_different_heads(emulator: Device) -> None:
    cache = KvCache(emulator, layers=2, kv_heads=(1, 4), head_dim=64, max_len=10)
    cache.grow(20)
    assert [layer.keys.shape for layer in cache.layers] == [(1, 20, 64), (4, 20, 64)]


def test_positions_are_given_out_until_the_context_is_full(emulator: Device) -> None:
    cache = KvCache(emulator, layers=1, kv_heads=1, head_dim=32, max_len=4)
    assert [cache.advance(), cache.advance(3)] == [0, 1]
    with pytest.raises(ArgumentError, match="the context is full: 4 of 4 positions are filled, 1 more do not fit"):
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


@pytest.mark.parametrize("copies", [0, 3])
def test_a_growth_that_is_interrupted_leaves_the_cache_as_it_was(
    emulator: Device, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    cache = KvCache(emulator, layers=2, kv_heads=1, head_dim=32, max_len=4)
    cache.advance(2)
    before, memory = (cache.layers, cache.max_len, cache.generation), emulator.memory().allocated
    done = iter(range(copies))

    def copy(destination: int, source: int, nbytes: int) -> None:
        if next(done, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(emulator, "copy", copy)
    with pytest.raises(KeyboardInterrupt):
        cache.grow(8)
    assert (cache.layers, cache.max_len, cache.generation) == before
    assert emulator.memory().allocated == memory


@pytest.mark.parametrize("failing", ["alloc", "copy"])
def test_buffers_of_a_growth_that_failed_are_dead(emulator: Device, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    cache = KvCache(emulator, layers=1, kv_heads=1, head_dim=32, max_len=4)
    cache.advance(2)
    created: list[GpuBuffer] = []

    def empty(*arguments: Any) -> GpuBuffer:
        if failing == "alloc" and created:
            raise KeyboardInterrupt
        created.append(allocate(*arguments))
        return created[-1]

    def copy(destination: int, source: int, nbytes: int) -> None:
        raise KeyboardInterrupt

    allocate = GpuBuffer.empty
    monkeypatch.setattr(GpuBuffer, "empty", empty)
    monkeypatch.setattr(emulator, "copy", copy)
    with pytest.raises(KeyboardInterrupt):
        cache.grow(8)
    assert created
    assert not any(buffer.alive for buffer in created)


def test_a_sequence_that_is_set_aside_comes_back(emulator: Device) -> None:
    cache = KvCache(emulator, layers=2, kv_heads=2, head_dim=32, max_len=8)
    values = np.arange(2 * 8 * 32, dtype=np.float32).reshape(2, 8, 32)
    for layer in cache.layers:
        layer.keys.upload(values)
        layer.values.upload(-values)
    cache.advance(5)
    memory = emulator.memory().allocated
    with suppress(KeyboardInterrupt), cache.set_aside(3):
        assert cache.advance(3) == 0
        for layer in cache.layers:
            for buffer in (layer.keys, layer.values):
                changed = buffer.to_numpy()
                changed[:, :3] = 7
                buffer.upload(changed)
        raise KeyboardInterrupt
    assert cache.length == 5
    for layer in cache.layers:
        np.testing.assert_array_equal(layer.keys.to_numpy(), values)
        np.testing.assert_array_equal(layer.values.to_numpy(), -values)
    assert emulator.memory().allocated == memory


@pytest.mark.parametrize("name", ["layers", "kv_heads", "head_dim", "max_len"])
def test_a_size_of_zero_is_named(emulator: Device, name: str) -> None:
    sizes: dict[str, Any] = {"layers": 1, "kv_heads": 1, "head_dim": 32, "max_len": 4, name: 0}
    with pytest.raises(ArgumentError, match=f"{name} is 0"):
        KvCache(emulator, **sizes)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"head_dim": 36}, "head_dim must be"),
        ({"value_dim": 36}, "value_dim must be"),
        ({"max_len": 1 << 31}, "max_len must be"),
    ],
)
def test_a_shape_that_no_attention_kernel_takes_is_refused(emulator: Device, sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        KvCache(emulator, **{"layers": 1, "kv_heads": 1, "head_dim": 32, "max_len": 4} | sizes)
    assert emulator.memory().allocated == 0


def test_a_cache_does_not_grow_beyond_what_attention_kernels_take(emulator: Device) -> None:
    cache = KvCache(emulator, layers=1, kv_heads=1, head_dim=32, max_len=4)
    cache.advance(2)
    with pytest.raises(ArgumentError, match="max_len must be"):
        cache.grow(1 << 31)
    assert (cache.max_len, cache.length, cache.generation) == (4, 2, 0)


def test_layers_of_different_lengths_are_cut_alike_and_take_nothing_together(emulator: Device) -> None:
    cache = KvCache(emulator, layers=2, kv_heads=1, head_dim=32, max_len=4)
    cache.lengths[:] = 3, 1
    with pytest.raises(ArgumentError, match=r"the layers have \[3, 1\] positions"):
        cache.advance()
    cache.truncate(2)
    assert (cache.lengths, cache.length) == ([2, 1], 2)


def test_a_cache_that_was_freed_says_so(emulator: Device) -> None:
    cache = KvCache(emulator, layers=1, kv_heads=1, head_dim=32, max_len=4)
    cache.free()
    cache.free()
    for used in (lambda: cache.grow(8), lambda: cache.layer(0), lambda: cache.set_aside(1).__enter__()):
        with pytest.raises(DeviceError, match="the KV cache was freed"):
            used()


def test_a_cache_without_positions_may_rest_and_has_memory_again_when_it_is_needed(emulator: Device) -> None:
    cache = KvCache(emulator, layers=2, kv_heads=1, head_dim=32, max_len=4)
    taken, generation = emulator.memory().allocated, cache.generation
    cache.advance()
    cache.rest()
    assert (emulator.memory().allocated, cache.generation) == (taken, generation)
    cache.reset()
    cache.rest()
    assert (emulator.memory().allocated, cache.nbytes) == (0, 0)
    assert cache.generation > generation
    cache.grow(8)
    assert cache.nbytes == 0
    assert [layer.max_len for layer in cache.layers] == [8, 8]
    assert cache.nbytes == emulator.memory().allocated == 2 * taken
    cache.free()
    assert cache.layers == ()
