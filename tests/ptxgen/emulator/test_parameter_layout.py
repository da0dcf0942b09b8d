"""Where the parameters of an entry lie."""

from __future__ import annotations

from ptxgen.emulator.parse import parse

TEXT = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry e(
    .param .u64 .ptr .global .align 16 x,
    .param .u64 .ptr .global .align 16 y,
    .param .u8 small,
    .param .align 8 .b8 packed[12],
    .param .u32 n
)
{
    ret;
}
"""


def test_the_alignment_after_ptr_is_of_the_memory_and_not_of_the_parameter() -> None:
    parameters = parse(TEXT).functions["e"].parameters
    assert [(p.name, p.offset, p.size) for p in parameters] == [
        ("x", 0, 8),
        ("y", 8, 8),
        ("small", 16, 1),
        ("packed", 24, 12),
        ("n", 36, 4),
    ]
