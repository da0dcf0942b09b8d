"""A model whose matrices several devices share has the bits of one device, whatever their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor import CudaExecutor
from executor.base.errors import DeviceFailed, OutOfMemory
from executor.choice.choice import GpuProfile
from executor.choice.store import shipped_tables
from executor.device import Device
from executor.device.emulated import EmulatedDevice
from executor.device.several import SeveralDevices
from executor.gguf.gguf_file import GgufFile
from executor.layers.projection import of_rank
from executor.memory.buffers import GpuBuffer
from executor.model.decoder import Decoder
from executor.model.memory_needed import memory_needed
from executor.model.model_file import read_spec
from executor.model.step import Row
from ptxgen.errors import ArgumentError
from ptxgen.formats import find
from ptxgen.kernels.collective.all_gather import AllGather
from ptxgen.kernels.compose import fuse_horizontally
from tests.synthetic import Q, write_model

Q4 = find("Q4_K")
TOKENS = [3, 17, 101, 44]
PROMPT = [3, 17, 5, 8, 200, 7, 41, 3, 90, 3, 11, 1, 2]
CONTEXT = 64
MIXED = {"": Q.Q4_K, "attn_v": Q.Q6_K, "ffn_down": Q.Q6_K, "output": Q.Q6_K}
STEP = [
    *(Row(0, token, at, True) for at, token in enumerate(TOKENS)),
    *(Row(1, token, at, at == 2) for at, token in enumerate((9, 8, 7))),
]
SIZES: Mapping[str, Any] = {
    "layers": 2, "hidden": 256, "heads": 8, "kv_heads": 4, "ff": 256, "vocab": 256, "context": 128, "tokenizer": "none",
}  # fmt: skip
"""Four heads of keys and values, of two queries each."""

Computed = dict[str, bytes | list[int]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With several formats."""
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", types=MIXED, tied=False, rope_freqs=True, **SIZES)


@contextmanager
def loaded(
    path: Path, ranks: int, profile: GpuProfile | None = None, *, sanitize: bool = False
) -> Iterator[tuple[SeveralDevices | Device, Decoder]]:
    """The device, or the devices, and what decodes on it."""
    profile = profile or GpuProfile()
    with CudaExecutor(devices=["emulator"] * ranks, profile=profile, sanitize=sanitize) as executor:
        yield executor.device, executor.load_model(path, context=CONTEXT).decoder


def flags_of(decoder: Decoder) -> GpuBuffer:
    """By which the ranks tell each other of the first gather of a token."""
    first = next(plan for plan in decoder.graph().plans if plan.kernel.name == AllGather.name)
    flags: GpuBuffer = first.arguments["flags"]
    return flags


def computed(path: Path, ranks: int, profile: GpuProfile, *, rows: bool = True) -> Computed:
    """What a model computes: tokens one by one, and of `rows` a prompt with what follows it, a draft and a step of two
    sequences."""
    with CudaExecutor(devices=["emulator"] * ranks, profile=profile) as executor:
        model = executor.load_model(path, context=CONTEXT)
        found: Computed = {"tokens": model.logits(TOKENS).tobytes()}
        if not rows:
            return found
        found["answer"] = model.generate(PROMPT, max_tokens=6).tokens
        found["behind the prompt"] = model.decoder.logits().tobytes()
        found["draft"] = model.decoder.verify_draft([model.decoder.argmax(), 1, 2])
        found["behind the draft"] = model.decoder.logits().tobytes()
        engine = model.engine(slots=2)
        for slot in (0, 1):
            engine.set_table(slot, [slot])
        scores = engine.step(STEP)
        found["step"] = np.stack([scores.logits(at) for at in range(sum(row.scored for row in STEP))]).tobytes()
        found["likeliest"] = scores.chosen()
        return found


@pytest.fixture(scope="module")
def alone(path: Path) -> Computed:
    """What one device computes."""
    return computed(path, 1, GpuProfile())


@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_devices_has_the_bits_of_one(path: Path, alone: Computed, ranks: int) -> None:
    assert computed(path, ranks, GpuProfile()) == alone


@pytest.mark.slow
def test_values_of_another_width_than_keys_are_shared_alike(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=MIXED, tied=False, **SIZES, head_dim=64, value_dim=96)
    assert computed(path, 2, GpuProfile()) == computed(path, 1, GpuProfile())


def test_what_a_profile_adds_leaves_the_bits(path: Path, alone: Computed) -> None:
    profile = GpuProfile().with_rules("last_block_reduction", "horizontal_fusion", "dependent_launches", "persistent_layers")
    assert computed(path, 2, profile, rows=False)["tokens"] == alone["tokens"]


def test_planes_and_outliers_are_those_of_what_all_have(path: Path) -> None:
    profile = GpuProfile("fast").with_rules("repack")
    assert computed(path, 2, profile, rows=False) == computed(path, 1, profile, rows=False)
    flagged = []
    for ranks in (1, 2):
        with loaded(path, ranks, profile) as (_, decoder):
            flagged.append(decoder.outliers())
    assert flagged[0] == flagged[1] != frozenset()


@pytest.mark.parametrize(
    ("arguments", "prompt"), [({"arch": "qwen2"}, [1, 2, 3]), ({"arch": "qwen3", "head_dim": 64}, [])], ids=["qwen2", "qwen3"]
)
def test_every_architecture_can_be_shared(tmp_path: Path, arguments: dict[str, Any], prompt: list[int]) -> None:
    """Biases are split, norms of heads are not, nor are embeddings that are the head, too."""
    sizes = {**SIZES, "layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "ff": 64, "vocab": 64}
    path = write_model(tmp_path / "m.gguf", types=Q.F16, **{**sizes, **arguments})
    tokens: list[bytes] = []
    for ranks in (1, 2):
        with loaded(path, ranks) as (_, decoder):
            decoder.feed(prompt)
            decoder.step(5)
            tokens.append(decoder.logits().tobytes())
    assert tokens[0] == tokens[1]


def test_the_sanitiser_finds_nothing(tmp_path: Path) -> None:
    sizes = {**SIZES, "layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "ff": 64, "vocab": 64}
    path = write_model(tmp_path / "m.gguf", types=Q.F16, **sizes)
    with loaded(path, 2, sanitize=True) as (_, decoder):
        decoder.feed([1, 2, 3])
        decoder.step(5)
        decoder.step()
        assert np.isfinite(decoder.logits()).all()


def test_each_device_has_its_share_of_the_model(path: Path) -> None:
    shares = []
    for ranks in (1, 2, 4):
        with loaded(path, ranks) as (device, decoder):
            whole = decoder.weights["token_embd.weight"].nbytes
            shares.append((decoder.weights.nbytes - whole, decoder.cache.nbytes, device.memory().allocated - whole))
    for one, two, four in zip(*shares, strict=True):
        assert 0.49 * one < two < 0.6 * one
        assert 0.24 * one < four < 0.4 * one


def test_what_is_needed_is_what_each_takes(path: Path) -> None:
    with GgufFile.open(path) as file, loaded(path, 2) as (device, decoder):
        spec = read_spec(file)
        needed = memory_needed(file, spec, CONTEXT, device.target, GpuProfile(), ranks=2)
        assert needed.weights == decoder.weights.nbytes
        assert needed.cache == decoder.cache.nbytes
        assert needed.total <= device.memory().allocated < 1.2 * needed.total


def test_a_rank_that_fails_ends_the_step_on_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(path, 2) as (device, decoder):
        assert isinstance(device, SeveralDevices)
        decoder.step(3)
        run, broken = EmulatedDevice._run, device.devices[1]

        def dying(self: EmulatedDevice, *launch: Any) -> None:
            if self is broken:
                raise DeviceFailed("rank 1 is gone", "rank 1 is gone")
            run(self, *launch)

        monkeypatch.setattr(EmulatedDevice, "_run", dying)
        with pytest.raises(DeviceFailed) as failed:
            decoder.step(17)
        monkeypatch.undo()
        assert "failed on 2 devices (emulator (sm_90), emulator (sm_90)): rank 1 is gone\n" in str(failed.value)
        assert "all that was on them is lost, weights, keys and values; close them and open them anew" in str(failed.value)
        with pytest.raises(DeviceFailed, match=r"have failed and refuse \w+; rank 1 is gone"):
            decoder.step(17)


@pytest.mark.parametrize("launches", [0, 9, 18])
def test_an_interrupt_leaves_a_model_that_works(path: Path, monkeypatch: pytest.MonkeyPatch, launches: int) -> None:
    """It comes when rank 0 is ahead of rank 1, which has come so far, and has told of a gather what it has not told yet."""
    with loaded(path, 2) as (device, decoder):
        assert isinstance(device, SeveralDevices)
        decoder.step(3)
        decoder.step(17)
        uninterrupted = decoder.logits()
        decoder.reset()
        decoder.step(3)
        flags = flags_of(decoder)
        run, late, left = EmulatedDevice._run, device.devices[1], [None] * launches

        def interrupted(self: EmulatedDevice, *launch: Any) -> None:
            if self is late and not left:
                self.fill(device.peers(flags.pointer)[1], flags.nbytes, 1)
                raise KeyboardInterrupt
            if self is late:
                left.pop()
            run(self, *launch)

        monkeypatch.setattr(EmulatedDevice, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.step(17)
        monkeypatch.undo()
        decoder.step(17)
        assert np.array_equal(decoder.logits(), uninterrupted)


def test_a_rank_that_does_not_answer_ends_the_step_on_all(path: Path) -> None:
    with loaded(path, 2) as (device, decoder):
        assert isinstance(device, SeveralDevices)
        decoder.step(3)
        flags = flags_of(decoder)
        device.devices[1].fill(device.peers(flags.pointer)[1], flags.nbytes, 0x40)  # it takes all others to be far ahead
        with pytest.raises(DeviceFailed, match="all_gather"):
            decoder.step(17)


@pytest.mark.parametrize(
    ("sizes", "ranks", "said"),
    [
        (
            {},
            3,
            "3 devices cannot share this model equally: they do not divide its key-value heads of 4, embedding width of 256, "
            "feed-forward width of 512, vocabulary of 512; allowed: 1 or 2 or 4",
        ),
        ({}, 8, "8 devices cannot share this model equally: they do not divide its key-value heads of 4; allowed: 1 or 2 or 4"),
        ({"vocab": 510}, 4, "they do not divide its vocabulary of 510; allowed: 1 or 2"),
        ({"arch": "bloom"}, 2, "2 devices cannot share a model of bloom: it has ALiBi, "),
    ],
)  # fmt: skip
def test_what_does_not_divide_is_refused_before_anything_is_allocated(
    tmp_path: Path, sizes: dict[str, Any], ranks: int, said: str
) -> None:
    given = {"layers": 1, "hidden": 256, "heads": 8, "kv_heads": 4, "ff": 512, "vocab": 512, **sizes}
    path = write_model(tmp_path / "m.gguf", **given)
    with CudaExecutor(devices=["emulator"] * ranks) as executor:
        with pytest.raises(ArgumentError) as refused:
            executor.load_model(path)
        assert said in str(refused.value)
        assert not executor.device.memory().allocated


def test_a_model_that_no_device_has_room_for_says_what_each_needs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CudaExecutor(devices=["emulator", "emulator"]) as executor:

        def refuse(*_: object) -> Decoder:
            raise OutOfMemory("no room", 1, 0)

        monkeypatch.setattr(Decoder, "build", refuse)
        with pytest.raises(OutOfMemory, match=r"2 devices .* which needs \d+ bytes: .* on each; "):
            executor.load_model(path, context=CONTEXT)


def test_kernels_chosen_for_the_whole_keep_their_settings_for_a_share() -> None:
    """All that is measured for several rows: how tiles and slices of sums are cut is decided by the whole matrix."""
    profile = GpuProfile("fast", tables=shipped_tables()).with_rules("horizontal_fusion")
    for k, n, others in ((8192, 8192, (1024, 1024)), (8192, 28672, (28672,)), (4096, 14336, (14336,))):
        for rows in (1, 8, 64, 512):
            kernel, *beside = (profile.choose(Q4, k, size, rows=rows).kernel for size in (n, *others))
            joined = fuse_horizontally(kernel, beside)
            for whole in (kernel, *([joined] if joined else [])):
                for ranks in (2, 8):
                    share = of_rank(whole, ranks)
                    changed = {name: value for name, value in share.parameters().items() if value != whole.parameters()[name]}
                    assert changed == {
                        name: value // ranks for name in ("n", "n2", "n3") if (value := whole.parameters().get(name))
                    }
