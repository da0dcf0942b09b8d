"""What kernels do not take of a model is told with the file, the key, the value and what is allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.base.errors import ModelError, OutOfMemory
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import MemoryUse
from executor.gguf.gguf_file import GgufFile
from executor.model.context import ContextLimit, chosen_context, longest_that_fits
from executor.model.generation import LanguageModel
from executor.model.kernel_limits import named_by_key, require_kernels
from executor.model.model_file import KEYS, read_spec
from executor.model.spec import ModelSpec
from ptxgen.errors import ArgumentError, ShapeError
from ptxgen.kernels.attention.attention_type import LONGEST
from ptxgen.kernels.norm.rmsnorm import LARGEST_ROW
from tests.cli.invoke import refused
from tests.synthetic import Q, write_model

HEAD_DIM = "incremental_attention_indirect takes 32, 512 or a multiple of 8, 40..256"
SMALL: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 2, "ff": 64, "types": Q.F16}


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"head_dim": 16}, "llama.attention.key_length is 16; " + HEAD_DIM),
        ({"head_dim": 288}, "llama.attention.key_length is 288; " + HEAD_DIM),
        ({"value_dim": 20}, "llama.attention.value_length is 20; " + HEAD_DIM),
    ],
)
def test_a_size_that_a_kernel_does_not_take_is_named_by_its_key(sizes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", **(SMALL | sizes))
    assert refused("ptxrun", "generate", path, "--device", "emulator", "-p", "a").startswith(
        f"{path}: {said}; nearest that runs: "
    )
    assert refused("ptxrun", "explain", path, "--device", "emulator") == f"{path}: {said}; nearest that runs: Mistral 7B"


@pytest.fixture
def file(tmp_path: Path) -> GgufFile:
    return GgufFile.open(write_model(tmp_path / "m.gguf", **SMALL))


def with_size(spec: ModelSpec, size: str, value: int) -> ModelSpec:
    """With another size, in every block that has it."""

    def changed(record: Any) -> Any:
        return replace(record, **{size: value}) if hasattr(record, size) else record

    blocks = (replace(block, mixer=changed(block.mixer), ffn=changed(block.ffn)) for block in spec.blocks)
    changed_spec: ModelSpec = changed(replace(spec, blocks=tuple(blocks)))
    return changed_spec


def test_every_size_has_a_key(file: GgufFile) -> None:
    spec = read_spec(file)
    for odd, (key, size) in enumerate(KEYS.items(), 1_000_003):
        named = "the number of tokens in tokenizer.ggml.tokens" if size == "vocab" else f"llama.{key}"
        for field in (size, "n"):
            with pytest.raises(ModelError) as caught, named_by_key(with_size(spec, size, odd), file.metadata, file.path):
                raise ShapeError("a_kernel", field, odd, "a multiple of 7")
            assert str(caught.value) == f"{file.path}: {named} is {odd}; a_kernel takes a multiple of 7"
    with pytest.raises(ShapeError, match="warps must be 8"), named_by_key(spec, file.metadata, file.path):
        raise ShapeError("a_kernel", "warps", 3, "8")


@pytest.mark.parametrize(
    ("size", "value", "said"),
    [
        (
            "hidden",
            LARGEST_ROW + 32,
            f"llama.embedding_length is {LARGEST_ROW + 32}; rmsnorm takes an integer, 1..{LARGEST_ROW}",
        ),
        ("vocab", 1 << 30, f"the number of tokens in tokenizer.ggml.tokens is {1 << 30}; argmax takes an integer, 1.."),
        ("head_dim", 96 + 20, "llama.attention.key_length is 116; "),
    ],
)
def test_kernels_are_asked_for_every_size(file: GgufFile, size: str, value: int, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        require_kernels(with_size(read_spec(file), size, value), file.metadata, file.path)
    assert str(caught.value).startswith(f"{file.path}: {said}")


def test_a_head_that_follows_from_two_keys_is_named_by_both(file: GgufFile) -> None:
    spec = with_size(read_spec(file), "head_dim", 36)
    keys = {key: value for key, value in file.metadata.items() if not key.endswith("key_length")}
    with pytest.raises(ModelError, match=r"llama.embedding_length / llama.attention.head_count is 36; "):
        require_kernels(spec, keys, file.path)


def test_the_context_is_the_least_of_what_file_and_kernels_allow(file: GgufFile) -> None:
    small = read_spec(file)
    large = replace(small, context_length=2 * LONGEST)
    assert (ContextLimit.of(small).tokens, ContextLimit.of(large).tokens) == (512, LONGEST)
    assert [chosen_context(large, asked) for asked in (None, 1, LONGEST)] == [4096, 1, LONGEST]
    with pytest.raises(ArgumentError, match=r"^context must be 1 to 512 \(llama.context_length of the file\), got 513$"):
        chosen_context(small, 513)
    for asked in (LONGEST + 1, 2 * LONGEST, 2 * LONGEST + 1):
        with pytest.raises(ArgumentError) as caught:
            chosen_context(large, asked)
        assert str(caught.value) == (
            f"context must be 1 to {LONGEST} (the longest that attention kernels take; llama.context_length of the file is "
            f"{2 * LONGEST}), got {asked}"
        )


@pytest.mark.slow
def test_a_model_without_room_says_which_context_has_it(tmp_path: Path) -> None:
    class Small(EmulatedDevice):
        room = 0

        def memory(self) -> MemoryUse:
            return MemoryUse(self.room, self.room, 0)

        def alloc(self, nbytes: int, name: str = "") -> int:
            raise OutOfMemory("no room", nbytes, self.room)

    path = write_model(tmp_path / "m.gguf", **SMALL)
    with Small() as device:
        for device.room, said in ((0, "no context would fit"), (340_000, "a context of 320 tokens would fit")):
            with pytest.raises(OutOfMemory, match=said):
                LanguageModel.load(path, device)


def test_the_longest_context_that_fits_is_found_within_a_tenth() -> None:
    for free in (0, 99, 100, 101, 500, 5000, 99_999):
        fits = longest_that_fits(lambda tokens: 100 + 10 * tokens, 4096, free)
        best = max(0, (free - 100) // 10)
        assert fits <= min(best, 4096)
        assert fits >= min(best, 4096) * 10 // 11 - 1
