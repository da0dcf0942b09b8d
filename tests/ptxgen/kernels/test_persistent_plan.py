"""The plan of a persistent kernel, in plain numbers: which warp has which rows, in which pieces they are copied."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ptxgen.formats import FORMATS, Format
from ptxgen.kernels.persistent.schedule import parts_of
from ptxgen.kernels.persistent.segments import PIECE, SEGMENT_BYTES, Segments

PACKED = [format for format in FORMATS.values() if format.packed_width]


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=3),
    st.integers(1, 300),
    st.integers(1, 8),
)
def test_every_row_is_one_warps_and_no_warp_has_a_group_more_than_it_must(sizes: list[int], warps: int, highest: int) -> None:
    parts = parts_of(sizes, warps, highest)
    seen: Counter[tuple[int, int]] = Counter()
    groups: Counter[int] = Counter()
    for part in parts:
        assert 1 <= part.height <= highest
        for group in range(part.groups):
            rows = range(group * part.height, min((group + 1) * part.height, part.rows))
            seen.update((part.matrix, part.first + row) for row in rows)
            groups[(part.start + group) % warps] += 1
    assert seen == Counter((matrix, row) for matrix, n in enumerate(sizes) for row in range(n))
    counts = [groups[warp] for warp in range(warps)]
    assert max(counts) - min(counts) <= 1


@given(st.integers(1, 200_000), st.integers(1, 300), st.integers(1, 8))
def test_a_warp_has_at_most_one_row_of_a_matrix_more_than_an_even_share(n: int, warps: int, highest: int) -> None:
    most = sum(-(-part.groups // warps) * part.height for part in parts_of([n], warps, highest))
    assert most == -(-n // warps)


@given(st.sampled_from(PACKED), st.integers(1, 600))
def test_segments_are_whole_steps_and_all_of_a_row(format: Format, blocks: int) -> None:
    one = Segments(format, blocks * format.block)
    assert (one.count - 1) * one.bytes + one.last_bytes == one.row_bytes
    assert (one.count - 1) * one.steps + one.last_steps == one.fragments.steps
    assert 0 < one.last_bytes <= one.bytes <= max(SEGMENT_BYTES, one.fragments.bytes)
    # Wherever in 16 bytes a segment starts, it fits its slot with them.
    furthest = max(
        (row * one.row_bytes + one.bytes * part) % PIECE for row in range(PIECE) for part in range(min(one.count, PIECE))
    )
    assert one.stage_bytes % PIECE == 0
    assert furthest + one.bytes <= one.stage_bytes
