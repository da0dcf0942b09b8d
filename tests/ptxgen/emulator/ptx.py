"""Small PTX kernels for tests: the module around a body."""

from __future__ import annotations


def kernel(body: str, *params: str, shared: str = "", name: str = "k") -> str:
    """A module with one entry; `params` are types in order, named p0, p1, ...; line 10 is the first line of `body`."""
    declared = ", ".join(f".param .{type} p{i}" for i, type in enumerate(params))
    registers = ".reg .pred %p<9>; .reg .b16 %h<20>; .reg .b32 %r<40>; .reg .f32 %f<40>; .reg .b64 %rd<20>; .reg .f64 %fd<20>;"
    head = f""".version 8.0
.target sm_90
.address_size 64
{shared}
.visible .entry {name}({declared})
{{
{registers}


"""
    return head + body.strip("\n") + "\nret;\n}\n"


FIRST_LINE = 10
