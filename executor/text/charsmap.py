"""The precompiled character map of a SentencePiece model: which text becomes which before tokens are looked for."""

from __future__ import annotations

from typing import Final

import numpy as np

from executor.text.vocabulary import VocabularyKeys

_KEY: Final = "precompiled_charsmap"
_LEAF: Final = 1 << 8
_OWN: Final = (1 << 31) | 0xFF
_VALUE: Final = (1 << 31) - 1


class CharacterMap:
    """Replacements of the longest prefix of a text, from tokenizer.ggml.precompiled_charsmap. Empty without that key.

    Its bytes are the size of a double array (u32, little-endian), the array (u32 each), and replacements that end in a zero. A
    node's base is in bits 10 to 30, shifted by 8 more if bit 9 is set; bit 8 says that a value hangs on it; bits 0 to 7 and 31
    hold the byte by which it is reached (SentencePiece's darts_clone).
    """

    def __init__(self, keys: VocabularyKeys) -> None:
        raw = keys.metadata.get(f"tokenizer.ggml.{_KEY}")
        self._keys = keys
        self._nodes: list[int] = []
        self._replacements = b""
        if raw is None:
            return
        if not isinstance(raw, np.ndarray) or raw.dtype.itemsize != 1:
            keys.fail(_KEY, "must be an array of bytes")
        content = raw.tobytes()
        size = int.from_bytes(content[:4], "little")
        if len(content) < 4 or size % 4 or 4 + size >= len(content):
            keys.fail(_KEY, f"has {len(content)} bytes and a table of {size}; there must be replacements after it")
        self._nodes = np.frombuffer(content, "<u4", size // 4, 4).tolist()
        self._replacements = content[4 + size :]

    def longest(self, text: bytes, at: int) -> tuple[int, bytes]:
        """How many bytes of the text from `at` on are replaced, 0 for none, and by what."""
        length, value = 0, 0
        if not self._nodes:
            return 0, b""
        node = _base(self._nodes[0])
        for place in range(at, len(text)):
            byte = text[place]
            node ^= byte
            packed = self._node(node)
            if byte == 0 or packed & _OWN != byte:
                break
            node ^= _base(packed)
            if packed & _LEAF:
                length, value = place + 1 - at, self._node(node) & _VALUE
        if not length:
            return 0, b""
        end = self._replacements.find(b"\0", value)
        if end < 0:
            self._keys.fail(_KEY, f"has a replacement at {value} that does not end")
        return length, self._replacements[value:end]

    def _node(self, index: int) -> int:
        if index >= len(self._nodes):
            self._keys.fail(_KEY, f"leads to node {index}; it has {len(self._nodes)}")
        return self._nodes[index]


def _base(packed: int) -> int:
    return (packed >> 10) << ((packed & (1 << 9)) >> 6)
