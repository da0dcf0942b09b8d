"""Every kernel of the catalogue against the conformance kit and against its golden files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from ptxgen.conformance.report import Check, planned
from ptxgen.conformance.testing import checks_test
from ptxgen.conformance.type_checks import tails
from ptxgen.errors import Nonconformity
from ptxgen.formats import FORMATS
from ptxgen.kernels.dequant.dequant_f16 import DequantF16
from ptxgen.kernels.registry import KernelEntry, find
from tests.ptxgen.kernels import golden_outputs, golden_texts
from tests.ptxgen.kernels.catalogue import ENTRIES, RECORDED, REPRESENTATIVES
from tests.ptxgen.kernels.whole_texts import ALIKE, WHOLE

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)

OF_A_FORMAT = ("k", "n")
"""The sizes of a matrix, whose tails are tried in every format. Those of the other fields (warps, rows of a block, tokens) are
tried in the format that represents the strategy: its code for them is the same in all."""


def checks() -> Iterator[Check]:
    """All checks of all kernels: of a format that is not common no tails, which are tried in the others."""
    for check in planned():
        if check.name != "tails" or check.subject in REPRESENTATIVES or "format" not in find(check.subject).fixed:
            yield check
        elif find(check.subject).fixed["format"].common:
            yield replace(check, run=partial(tails, find(check.subject), OF_A_FORMAT))


test_kernel_conforms = checks_test(checks())


@every_entry
def test_kernel_text_is_the_golden_text(entry: KernelEntry, request: pytest.FixtureRequest) -> None:
    texts = golden_texts.texts(next(iter(entry.cases())))
    if request.config.getoption("--update-golden"):
        golden_texts.update(entry.name, texts)
    try:
        golden_texts.check(entry.name, texts)
    except Nonconformity as error:
        pytest.fail(f"{error}\nif this is meant, run with --update-golden and read what changed", pytrace=False)


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry.name)
def test_kernel_and_reference_give_the_golden_outputs(entry: KernelEntry, request: pytest.FixtureRequest) -> None:
    kernel = golden_outputs.chosen(entry)
    path = golden_outputs.FOLDER / f"{entry.name}.npz"
    if request.config.getoption("--update-golden"):
        golden_outputs.save(path, golden_outputs.record(kernel))
    if not path.exists():
        pytest.fail(f"golden/outputs/{path.name} does not exist; write it with --update-golden", pytrace=False)
    with np.load(path, allow_pickle=False) as held:
        try:
            golden_outputs.check(kernel, dict(held))
        except Nonconformity as error:
            pytest.fail(f"{kernel}: {error}\nif this is meant, run with --update-golden", pytrace=False)


def test_every_golden_file_belongs_to_a_kernel_and_every_kernel_has_its_own() -> None:
    assert {path.stem for path in golden_outputs.FOLDER.glob("*.npz")} == {entry.name for entry in RECORDED}
    assert set(golden_texts.digests()) == {entry.name for entry in ENTRIES}
    whole = {f"{name}.ptx" for name in WHOLE}
    assert {path.name for path in golden_texts.FOLDER.iterdir()} == {*whole, "digests.json"}


def test_every_file_of_kernels_and_every_format_has_a_whole_text() -> None:
    whole = [find(name) for name in WHOLE]
    read = {base.__module__ for entry in whole for base in entry.type.__mro__}
    assert {entry.type.__module__ for entry in ENTRIES} <= read
    formats = {entry.fixed["format"].name for entry in whole if entry.type is DequantF16}
    assert formats | ALIKE.keys() == FORMATS.keys()
    assert set(ALIKE.values()) <= formats


@pytest.mark.parametrize("name", WHOLE)
def test_a_kernel_that_sums_floats_by_tensor_cores_says_that_a_gpu_has_other_bits(name: str) -> None:
    text = (golden_texts.FOLDER / f"{name}.ptx").read_text()
    sums = re.search(r"mma\.sync\S+\.row\.col\.f|wgmma\.mma_async\S+\.f", text)
    assert find(name).type.emulator_bits is not bool(sums)


def test_golden_outputs_are_small() -> None:
    assert sum(path.stat().st_size for path in golden_outputs.FOLDER.glob("*.npz")) < 12 << 18
