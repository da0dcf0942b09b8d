"""Tensors that are repacked on their way to the device: what they hold, and what memory that takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.device.emulated import EmulatedDevice
from executor.gguf.gguf_file import GgufFile
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.memory.repacking import Repacking
from executor.memory.weights import load_weights
from ptxgen.formats import REPACKED, RepackedFormat
from tests.executor.memory.test_weights import Copying
from tests.synthetic import Q, write_model

NAMES = ("blk.0.attn_v.weight", "blk.0.ffn_down.weight")
every_kind = pytest.mark.parametrize("kind", [EmulatedDevice, Copying])


@pytest.fixture(scope="module", params=[(name,) for name in REPACKED], ids=list(REPACKED))
def format(request: pytest.FixtureRequest) -> RepackedFormat:
    return REPACKED[request.param[0]]


@pytest.fixture(scope="module")
def file(format: RepackedFormat, tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    path: Path = tmp_path_factory.mktemp("model") / "small.gguf"
    native = Q[format.native.name]
    types = {"": Q.Q4_K, "attn_v": native, "ffn_down": native, "token_embd": native}
    return GgufFile.open(write_model(path, "llama", types, layers=1, hidden=256, heads=4, kv_heads=1, ff=512, vocab=272))


@pytest.fixture(params=[1, 100 * 210, 1 << 20], ids=lambda staged: f"{staged} bytes at a time")
def staged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """One row of ffn_down at a time; 50 or 38, the last time some again; all."""
    monkeypatch.setattr("executor.memory.repacking.STAGED", request.param)
    return int(request.param)


def repacking(device: EmulatedDevice, format: RepackedFormat) -> Repacking:
    return Repacking(dict.fromkeys(NAMES, format), Launcher(device, Modules(device)))


@pytest.mark.usefixtures("staged")
@every_kind
def test_only_what_is_named_is_repacked_and_holds_the_values_of_the_file(
    file: GgufFile, format: RepackedFormat, kind: type[EmulatedDevice]
) -> None:
    steps: list[tuple[int, int]] = []
    with kind() as device:
        weights = load_weights(
            device, file, list(file.tensors), lambda *done: steps.append(done), repacking=repacking(device, format)
        )  # fmt: skip
        assert list(weights) == list(file.tensors)
        for name, info in file.tensors.items():
            weight, raw = weights[name], file.data(name)
            assert weight.format.name == (format.name if name in NAMES else info.ggml_type.name)
            if name in NAMES:
                raw = format.pack(raw.reshape(weight.n, -1))
            assert weight.buffer.to_numpy().tobytes() == raw.tobytes()
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1] == sum(info.nbytes for info in file.tensors.values())
        weights.free()
        assert device.memory().allocated == 0


def test_memory_for_what_is_to_be_repacked_is_bounded_and_known_before(
    file: GgufFile, format: RepackedFormat, staged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    alloc = Copying.alloc
    monkeypatch.setattr(Copying, "alloc", lambda *args: sizes.append(args[1]) or alloc(*args))  # type: ignore[func-returns-value]
    with Copying() as device:
        made = repacking(device, format)
        weights = load_weights(device, file, NAMES, repacking=made)
        row = 2 * format.native_bytes  # of ffn_down, the longest
        assert sizes[1:] == [made.staged_bytes(file.tensors.values())]
        assert sizes[1] <= max(staged, row)
        assert device.memory().allocated == sizes[0] < weights.nbytes + 2 * 256


@every_kind
def test_an_interrupted_load_leaves_nothing(file: GgufFile, format: RepackedFormat, kind: type[EmulatedDevice]) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with kind() as device:
        with pytest.raises(KeyboardInterrupt):
            load_weights(device, file, NAMES, interrupt, repacking=repacking(device, format))
        assert device.memory().allocated == 0
