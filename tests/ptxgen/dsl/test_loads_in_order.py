"""k.loads_in_order: loads that the assembler leaves where they are written."""

from __future__ import annotations

import re

import pytest

from ptxgen.dsl.builder import KernelBuilder
from ptxgen.target import Target
from tests.ptxgen.dsl.writing import lines_of, written


def loads(body_of: str) -> list[str]:
    return re.findall(r"ld\.global[.\w:]*", body_of)


def test_no_load_of_the_body_takes_the_read_only_path() -> None:
    def body(k: KernelBuilder) -> None:
        first = k.load(k.arg.x[0], nc=True)
        k.barrier()
        with k.loads_in_order():
            second = k.load(k.arg.x.read_only()[1], prefetch="L2::128B")
            with k.loads_in_order():
                third, fourth = k.load_vector(k.arg.x[2], 2, nc=True)
            fifth = k.load(k.arg.x[4], nc=True)
        sixth = k.load(k.arg.x[5], nc=True)
        k.store(k.arg.y[0], first + second + third + fourth + fifth + sixth)

    text = "\n".join(lines_of(body))
    plain, vector = "ld.global.f32", "ld.global.v2.f32"
    assert loads(text) == ["ld.global.nc.f32", "ld.global.L2::128B.f32", vector, plain, "ld.global.nc.f32"]


def test_an_error_in_the_body_ends_it() -> None:
    def body(k: KernelBuilder) -> None:
        with pytest.raises(RuntimeError), k.loads_in_order():
            raise RuntimeError
        k.store(k.arg.y[0], k.load(k.arg.x[0], nc=True))

    assert any("ld_nc" in str(line) or ".nc." in str(line) for line in written(body, target=Target(90)).body)
