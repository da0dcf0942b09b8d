"""Every row of the instruction table on a GPU: each probe's results against the emulator's, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.device import Device
from executor.device.parameters import ParameterBlock
from ptxgen.dsl.kernel_type import Array, Scalar, Signature
from ptxgen.isa import instructions
from ptxgen.target import Target
from ptxgen.types import U8, U64
from tests.ptxgen.isa import operand_values, probe
from tests.ptxgen.isa.comparison import first_difference
from tests.ptxgen.isa.recording import MADE, Recording
from tests.ptxgen.isa.running import WORD, emulate

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def recording(request: pytest.FixtureRequest, gpu: Device) -> Iterator[Recording]:
    """What is seen in this run, saved at its end if --record-isa names a folder."""
    recording = Recording(gpu.name)
    yield recording
    folder = request.config.getoption("--record-isa")
    if folder:
        recording.save(Path(folder))


def run(device: Device, batch: probe.Batch, records: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The output records that the GPU writes."""
    out = np.zeros((len(records), batch.out_bytes), np.uint8)
    signature: Signature = {"out": Array(U8, out.shape, "out"), "in": Array(U8, records.shape), "word": Scalar(U64)}
    parameters = ParameterBlock(signature)
    text = batch.text()
    kernel, _ = device.load(text, probe.ENTRY, device.compile(text))
    pointers = [device.alloc(out.nbytes), device.alloc(records.nbytes)]
    try:
        device.upload(pointers[0], out)
        device.upload(pointers[1], records)
        for name, value in zip(signature, (*pointers, WORD), strict=True):
            parameters.set(name, value)
        device.launch(kernel, (len(records) // batch.threads, 1, 1), (batch.threads, 1, 1), parameters)
        device.download(pointers[0], out)
    finally:
        for pointer in pointers:
            device.free(pointer)
    return out


@pytest.mark.parametrize("name", list(dict.fromkeys(row.name for row in instructions.ROWS)))
def test_gpu_gives_what_the_emulator_gives(name: str, gpu: Device, recording: Recording) -> None:
    differences = []
    ran = False
    for row in instructions.named(name):
        for batch in probe.batches(row):
            if not Target(gpu.target.sm, row.feature).has(batch.need[0], row.feature):
                continue
            ran = True
            records = operand_values.records(batch, MADE)
            seen, expected = run(gpu, batch, records), emulate(batch, records)
            recording.add(batch, records, seen)
            differences += [text for one in batch.probes if (text := first_difference(one, records, expected, seen))]
    assert not differences, "\n".join(differences)
    if not ran:
        pytest.skip(f"needs a newer GPU than {gpu.name}")
