"""Writes the table of known GPUs in docs/performance.md: `python -m tests.docs.cards`. Everything comes from ptxgen/gpus, from
benchmarks/results and from what tests assemble and emulate."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from ptxgen.gpus.gpu import GPUS, Gpu
from ptxgen.target import ALL
from tests.executor.model.test_cards import EMULATED
from tests.paths import ROOT

PAGE: Final = ROOT / "docs" / "performance.md"
BLOCK: Final = re.compile(r"(<!-- cards: python -m tests.docs.cards -->\n).*?(<!-- /cards -->)", re.DOTALL)


@cache
def timed() -> frozenset[str]:
    """The products, as drivers call them, that benchmarks/results has results of; of a restricted run `PRODUCT on PRODUCT`."""
    files = (ROOT / "benchmarks" / "results").rglob("*.json")
    return frozenset(name for file in files for name in re.findall(r'"product": "(.*?)"', file.read_text()))


def shown(gpu: Gpu) -> str:
    """By what it is shown that models run on a GPU, a letter each."""
    ways = {
        "M": gpu.product in timed(),
        "R": any(name.startswith(f"{gpu.product} on ") for name in timed()),
        "A": gpu.target in ALL,
        "E": gpu.sm in EMULATED,
    }
    return "".join(letter for letter, holds in ways.items() if holds)


def page(text: str) -> str:
    """The page with the table of now."""
    rows = (
        f"|{gpu.title}|{gpu.target}|{gpu.multiprocessors}|{gpu.bandwidth_gbps}|{gpu.l2_bytes >> 20}|{shown(gpu)}|"
        for gpu in GPUS.values()
    )
    table = "\n".join(("|GPU|target|multiprocessors|GB/s|L2, MiB|shown|", "|---|---|---|---|---|---|", *rows))
    return BLOCK.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
