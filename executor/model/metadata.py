"""Typed access to the metadata of a GGUF file for the architecture that it names: every failure names the key. Which keys are
read is up to the architecture."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from executor.base.errors import ModelError, UnsupportedModel, quoted
from executor.gguf.directory import Value
from executor.gguf.gguf_file import GgufFile

MAX_DIMENSION: Final = 1 << 24  # values; the widest released model has under 2^15, the largest vocabulary under 2^19
LAYER: Final = re.compile(r"^blk\.\d+\.")
MAX_CONTEXT: Final = 1 << 31  # tokens: positions are signed 32-bit


class Metadata:
    """The keys of a file that begin with the name of its architecture, and which tensors it has."""

    def __init__(self, file: GgufFile, architecture: str, unused: frozenset[str] = frozenset()) -> None:
        self.architecture = architecture
        self._file = file
        self._unused = unused

    def fail(self, message: str) -> NoReturn:
        """ModelError about this file."""
        raise ModelError(message, self._file.path)

    def refuse(self, message: str) -> NoReturn:
        """UnsupportedModel: the file is good, and this of it is not computed."""
        raise UnsupportedModel(message, self._file.path)

    def name(self, key: str) -> str:
        """The key as the file has it."""
        return f"{self.architecture}.{key}"

    def get(self, key: str) -> Value | None:
        """Its value, if it is there."""
        return self._file.metadata.get(self.name(key))

    def has(self, tensor: str) -> bool:
        """Whether the file has this tensor, and the architecture uses it."""
        return tensor in self._file.tensors and in_layer(tensor) not in self._unused

    def required(self, key: str) -> Value:
        """Its value."""
        value = self.get(key)
        if value is None:
            self.fail(f"metadata key {self.name(key)} is missing")
        return value

    def integer(self, key: str, default: int | None = None, most: int = MAX_DIMENSION, least: int = 1) -> int:
        """A whole number, `least` to `most`."""
        value = self.required(key) if default is None else self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(f"{self.name(key)} is {quoted(value)}; allowed: one whole number, {least} to {most}")
        return value

    def per_layer(self, key: str, default: Sequence[int] | None = None, least: int = 1) -> Sequence[int]:
        """For each layer its whole number, of at least so much: the key has one for all, or an array with one for each block
        of the file."""
        layers, blocks = self.layers(), self.blocks()
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, list | np.ndarray):
            return (self.integer(key),) * layers
        numbers: list[Value] = list(value) if isinstance(value, list) else value.tolist()
        if len(numbers) != blocks:
            self.fail(
                f"{self.name(key)} is an array of {len(numbers)}; allowed: one whole number, or one for each of the {blocks} "
                "layers"
            )
        found: list[int] = []
        for layer, number in enumerate(numbers[:layers]):
            if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MAX_DIMENSION:
                allowed = f"allowed: a whole number, {least} to {MAX_DIMENSION}"
                self.fail(f"{self.name(key)} is {quoted(number)} for layer {layer}; {allowed}")
            found.append(number)
        return found

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.required(key) if default is None else self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            self.fail(f"{self.name(key)} is {quoted(value)}; allowed: a positive finite number")
        return float(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.required(key) if default is None else self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.fail(f"{self.name(key)} is {quoted(value)}; allowed: a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.get(key)
        if not isinstance(value, bool | None):
            self.fail(f"{self.name(key)} is {quoted(value)}; allowed: true or false")
        return default if value is None else value

    def one_of(self, key: str, allowed: Sequence[str], default: str) -> str:
        """One of these words."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or value not in allowed:
            self.refuse(f"{self.name(key)} is {quoted(value)}, which is not supported; supported: {', '.join(allowed)}")
        return value

    def whole_numbers(self, key: str) -> Sequence[int] | None:
        """An array of whole numbers or of booleans; None if it is not there, or is no array."""
        value = self.get(key)
        if not isinstance(value, list | np.ndarray):
            return None
        numbers: list[Value] = list(value) if isinstance(value, list) else value.tolist()
        if not all(isinstance(number, int) for number in numbers):
            self.fail(f"{self.name(key)} is {quoted(value)}; allowed: whole numbers, or true and false")
        return [int(number) for number in numbers]  # type: ignore[arg-type]

    def of_layers(self, key: str) -> Sequence[float]:
        """For each layer its number: of a key without the name of the architecture, which has one for all, or an array with
        one for each."""
        value, layers = self._file.metadata.get(key), self.layers()
        if value is None:
            self.fail(f"metadata key {key} is missing")
        numbers: list[Any] = value.tolist() if isinstance(value, np.ndarray) else value if isinstance(value, list) else []
        numbers = numbers or [value] * layers
        if len(numbers) != layers or not all(_is_number(number) for number in numbers):
            self.fail(f"{key} is {quoted(value)}; allowed: a finite number, or one for each of the {layers} layers")
        return [float(number) for number in numbers]

    def epsilon(self, key: str, default: float | None = None) -> float:
        """A number between 0 and 1."""
        eps = self.positive(key, default)
        if eps >= 1:
            self.fail(f"{self.name(key)} is {eps}; allowed: above 0, below 1")
        return eps

    def only(self, allowed: Mapping[str, Sequence[Value]]) -> None:
        """By key, the values with which a model is computed: another one is refused. A key that is not there is fine."""
        for key, values in allowed.items():
            value = self.get(key)
            if value is not None and not any(_equal(value, one) for one in values):
                said = " or ".join(map(str, values))
                self.refuse(f"{self.name(key)} is {quoted(value)}, which is not supported; supported: {said}")

    def blocks(self) -> int:
        """How many blocks the file says it has. Bounded by its tensors, so that a list of all is short."""
        blocks, tensors = self.integer("block_count"), len(self._file.tensors)
        if blocks > tensors:
            self.fail(f"{self.name('block_count')} is {blocks}, and the {tensors} tensors cannot make so many layers")
        return blocks

    def layers(self) -> int:
        """How many of them a token goes through: the last ones may be for drafts (nextn, MTP), on which logits do not
        depend."""
        blocks = self.blocks()
        return blocks - self.integer("nextn_predict_layers", 0, most=blocks - 1, least=0)

    def vocab(self) -> int:
        """As llama.cpp: the tokens count, and the key where the file has no tokens."""
        tokens = self._file.metadata.get("tokenizer.ggml.tokens")
        if tokens is None:
            return self.integer("vocab_size")
        if not isinstance(tokens, list) or not 1 <= len(tokens) <= MAX_DIMENSION:
            self.fail("tokenizer.ggml.tokens holds no tokens")
        return len(tokens)

    def labels(self) -> int:
        """Of a classifier, as many as have names; 0 for a single one, which says nothing."""
        named = self.get("classifier.output_labels")
        return len(named) if isinstance(named, list) and len(named) > 1 else 0

    def pooling_type(self) -> int:
        """Any number: only `embed` needs to know it."""
        value = self.get("pooling_type")
        if isinstance(value, bool) or not isinstance(value, int | None):
            self.fail(f"{self.name('pooling_type')} is {quoted(value)}; allowed: one whole number")
        return value or 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def in_layer(tensor: str) -> str:
    """The name of a tensor without its layer."""
    return LAYER.sub("", tensor)


def _equal(value: Value, allowed: Value) -> bool:
    """Equal, and of one kind: True is not 1."""
    if isinstance(value, str):
        return value == allowed
    return isinstance(value, (bool, int, float)) and isinstance(value, bool) == isinstance(allowed, bool) and value == allowed
