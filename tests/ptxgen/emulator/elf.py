"""What tests read of the assembler's machine code. No test."""

from __future__ import annotations

import struct


def section(cubin: bytes, name: str) -> bytes:
    """The bytes of a section of a 64-bit ELF file (System V ABI, "Object Files"); empty if there is none."""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    for header in headers:
        at = headers[names][4] + header[0]
        if cubin[at : cubin.index(b"\0", at)].decode() == name:
            return cubin[header[4] : header[4] + header[5]]
    return b""
