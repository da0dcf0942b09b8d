"""Philox4x32-10 against the known answers of its authors (Random123, tests/kat_vectors)."""

from __future__ import annotations

import pytest

from ptxgen.kernels.token.philox import philox, random_bits

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI[:4], PI[4:], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]) -> None:
    assert philox(counter, key) == words


def test_a_draw_has_the_first_two_words_of_its_counter() -> None:
    seed, draw = 0x0123456789ABCDEF, 0xFEDCBA9876543210
    first, second, *_ = philox((draw & ONES, draw >> 32, 0, 0), (seed & ONES, seed >> 32))
    assert random_bits(seed, draw) == second << 32 | first
