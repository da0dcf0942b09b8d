"""GGUF files of any structure: a ModelError or a file that is read, soon and in little memory. Damage to the bytes of good
files: tests/executor/gguf/test_hostile_files.py."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

from executor.gguf.gguf_file import GgufFile
from executor.model.model_file import check_tensors, read_spec
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import PtxGenError
from tests.fuzz.cases import Cases
from tests.fuzz.limits import bounded
from tests.synthetic import Q, write_model

SECONDS = 15.0
MEMORY = 1 << 30
LIMITS = (0, 1, 2, 4, 31, 32, 255, 1 << 12, 1 << 16, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1)
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
BOOL, STRING, ARRAY = 7, 8, 9
KEYS = (
    "general.architecture", "general.alignment", "split.count", "llama.block_count", "llama.context_length",
    "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count", "llama.attention.head_count_kv",
    "llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base", "llama.rope.dimension_count", "llama.vocab_size",
    "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
    "tokenizer.ggml.scores", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template", "",
)  # fmt: skip
WORDS = ("llama", "qwen2", "gpt2", "none", "llama-bpe", "a", "a b", "<0x41>", "<|im_end|>", "\u0120", "\0", "\x1b[2J", "\u20ac")


class Maker:
    """Bytes that say that they are GGUF, and mostly keep to its rules."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def number(self, usual: int) -> int:
        """A count or a size: what it should be, or what it should not."""
        return usual if self.rng.random() < 0.97 else self.rng.choice((*LIMITS, max(usual - 1, 0), usual + 1))

    def u32(self, usual: int) -> bytes:
        return struct.pack("<I", self.number(usual) & 0xFFFFFFFF)

    def u64(self, usual: int) -> bytes:
        return struct.pack("<Q", self.number(usual))

    def text(self, word: str | None = None) -> bytes:
        rng = self.rng
        if word is None:
            word = rng.choice(WORDS) * rng.choice((1, 1, 1, 50, 20_000))
        raw = word.encode() if rng.random() < 0.97 else rng.randbytes(rng.randrange(20))
        return self.u64(len(raw)) + raw

    def value(self, kind: int, depth: int = 0) -> bytes:
        rng = self.rng
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner = rng.choice((STRING, STRING, ARRAY, *SCALARS)) if depth < 7 else 0
            count = rng.choice((0, 1, 3, 300, 300, 20_000)) if inner not in (STRING, ARRAY) else rng.choice((0, 1, 3, 30, 300))
            count = count if depth == 0 else count % 4
            if inner == ARRAY and rng.random() < 0.05:  # many that are empty
                return self.u32(ARRAY) + self.u64(2_000_000) + bytes(24_000_000)
            return self.u32(inner) + self.u64(count) + b"".join(self.value(inner, depth + 1) for _ in range(count))
        size = 0 if kind == BOOL and rng.random() < 0.99 else SCALARS.get(kind, 0)
        number = self.number(rng.choice((0, 1, 2, 64))).to_bytes(8, "little")
        return (number if rng.random() < 0.7 else rng.randbytes(8))[:size] or rng.choice((b"\0", b"\1"))

    def pair(self, key: str) -> bytes:
        kind = self.rng.choice((STRING, ARRAY, ARRAY, 4, 4, 6, *SCALARS))
        return self.text(key) + self.u32(kind) + self.value(kind)

    def tensor(self) -> bytes:
        rng = self.rng
        name = rng.choice(("token_embd.weight", "output.weight", "blk.0.attn_q.weight", "blk.1.ffn_up.weight", "x", ""))
        shape = [self.number(rng.choice((1, 32, 256))) for _ in range(self.number(rng.randrange(1, 5)) % 9)]
        place = self.u32(rng.choice((0, 1, 2, 8, 12, 14, 30))) + self.u64(rng.randrange(8) * 32)
        return self.text(name) + self.u32(len(shape)) + b"".join(struct.pack("<Q", extent) for extent in shape) + place

    def file(self) -> bytes:
        tensors = self.rng.randrange(6)
        keys = self.rng.sample(KEYS, self.rng.randrange(12)) + self.rng.choices(KEYS, k=self.rng.random() < 0.1)
        head = b"GGUF" + self.u32(3) + self.u64(tensors) + self.u64(len(keys))
        made = head + b"".join(map(self.pair, keys)) + b"".join(self.tensor() for _ in range(tensors))
        return made + bytes(self.rng.choice((0, 31, 64, 100_000)))


def respelt(rng: random.Random, good: bytes) -> bytes:
    """A good file with one key's name or one count changed, or a piece of another place put in."""
    at = rng.randrange(24, good.rindex(b"output_norm.weight"))
    match rng.randrange(3):
        case 0:
            return good[:at] + struct.pack("<Q", rng.choice(LIMITS)) + good[at + 8 :]
        case 1:
            other = rng.randrange(24, len(good))
            return good[:at] + good[other : other + rng.randrange(200)] + good[at:]
        case _:
            key = rng.choice(KEYS).encode()
            start = good.find(key)
            return good[:start] + rng.randbytes(len(key)) + good[start + len(key) :] if key and start > 0 else good[:at]


def read(path: Path) -> None:
    """All that is read of a file before a tensor goes to a device."""
    with GgufFile.open(path) as file:
        for name, tensor in file.tensors.items():
            if tensor.nbytes < 1 << 20:
                file.data(name)
        check_tensors(file, read_spec(file))
        Tokenizer.from_gguf(file)


def test_a_file_of_any_structure(cases: Cases, tmp_path: Path) -> None:
    small = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "ff": 32, "types": Q.Q4_0, "vocab": 512}
    good = write_model(tmp_path / "good.gguf", tied=False, **small).read_bytes()
    path = tmp_path / "m.gguf"
    for rng in cases:
        path.write_bytes(Maker(rng).file() if rng.random() < 0.6 else respelt(rng, good))
        if rng.random() < 0.05:
            os.truncate(path, rng.choice((0, 10, 20 << 30)))  # the larger takes no room on the disk
        said = ""
        with bounded(SECONDS, MEMORY):
            try:
                read(path)
            except PtxGenError as error:
                said = str(error)
        assert len(said) < 2000
        assert said.isprintable()
