"""Every row of the instruction table on a GPU: each probe's results against the emulator's, bit by bit; products of warpgroups
against float64; rings that bulk copies fill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.device import Device
from executor.device.parameters import ParameterBlock
from ptxgen.dsl.arguments import Array, Scalar, Signature
from ptxgen.isa import instructions
from ptxgen.isa.effects import Effect
from ptxgen.target import HOPPER, WARPGROUP_SIZE, Target
from ptxgen.types import U8, U32, U64
from tests.ptxgen.emulator.test_bulk_copies import Ring
from tests.ptxgen.isa import operand_values, probe, products
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


def launch(
    device: Device, text: str, entry: str, blocks: int, threads: int, signature: Signature, arrays: list[NDArray[Any]]
) -> None:
    """Launch an entry on arrays, and on WORD behind them if it takes one more; the first gets what it holds afterwards."""
    parameters = ParameterBlock(signature)
    kernel, _ = device.load(text, entry, device.compile(text))
    pointers: list[int] = []
    try:
        for array in arrays:
            pointers.append(device.alloc(array.nbytes))
            device.upload(pointers[-1], array)
        for name, value in zip(signature, (*pointers, WORD), strict=False):
            parameters.set(name, value)
        device.launch(kernel, (blocks, 1, 1), (threads, 1, 1), parameters)
        device.download(pointers[0], arrays[0])
    finally:
        for pointer in pointers:
            device.free(pointer)


def run(device: Device, batch: probe.Batch, records: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The output records that the GPU writes."""
    out = np.zeros((len(records), batch.out_bytes), np.uint8)
    signature: Signature = {"out": Array(U8, out.shape, "out"), "in": Array(U8, records.shape), "word": Scalar(U64)}
    launch(device, batch.text(), probe.ENTRY, len(records) // batch.threads, batch.threads, signature, [out, records])
    return out


NAMES = dict.fromkeys(row.name for row in instructions.ROWS if row.effect is not Effect.ASYNC_PRODUCT)


@pytest.mark.parametrize("name", list(NAMES))
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
        pytest.skip(f"needs another GPU than {gpu.name}")


def layouts(n: int, type: str) -> Iterator[products.Products]:
    """Products with b in shared memory in different ways."""
    yield products.Products(n, type)
    yield products.Products(n, type, leading=16 * n, stride=128)  # one half of k behind the other
    yield products.Products(n, type, leading=16 * n + 128, stride=128, skipped=1024)
    yield products.Products(n, type, leading=128, stride=400, skipped=16)
    yield products.Products(n, type, leading=144, stride=288, steps=3)
    for swizzle in (32, 64, 128):
        yield products.Products(n, type, stride=8 * swizzle, swizzle=swizzle, skipped=1024)


@pytest.mark.parametrize("type", ["f16", "bf16"])
@pytest.mark.parametrize("n", products.WIDTHS)
def test_products_of_a_warpgroup_are_those_of_float64(n: int, type: str, gpu: Device) -> None:
    if gpu.target.sm != HOPPER.sm:
        pytest.skip(f"{gpu.name} is not {HOPPER}")
    blocks, differences = 16, []
    for number, one in enumerate(layouts(n, type)):
        a, b = one.operands(blocks, seed=number)
        y = np.full((blocks, WARPGROUP_SIZE, n // 2), np.nan, np.float32)
        arrays = [y, products.fragments_of(a), products.cores_of(b)]
        launch(gpu, one.text(blocks), products.ENTRY, blocks, WARPGROUP_SIZE, one.signature(blocks), arrays)
        expected, allowed = one.reference(a, b)
        wrong = ~(np.abs(products.matrix_of(y) - expected) <= allowed)
        if wrong.any():
            differences.append(f"{one}: {wrong.sum()} of {wrong.size} are off, first {np.argwhere(wrong)[0].tolist()}")
    assert not differences, "\n".join(differences)


def test_a_pipeline_of_copies_and_products_is_right_every_time(gpu: Device) -> None:
    if gpu.target.sm != HOPPER.sm:
        pytest.skip(f"{gpu.name} is not {HOPPER}")
    a, b = products.pipeline_operands()
    expected, allowed = products.pipeline_reference(a, b)
    seen = set()
    for _ in range(20):
        y = np.full((WARPGROUP_SIZE, 4), np.nan, np.float32)
        arrays = [y, products.fragments_of(a), products.cores_of(b)]
        launch(gpu, products.pipelined(), products.ENTRY, 1, WARPGROUP_SIZE, products.PIPELINE_SIGNATURE, arrays)
        assert (np.abs(products.matrix_of(y) - expected) <= allowed).all()
        seen.add(y.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("ring", [Ring(rounds=100), Ring(warps=4, slots=8, rounds=100, copies=2)], ids=["one warp", "four"])
def test_rings_that_bulk_copies_fill_bring_the_right_bytes_every_time(ring: Ring, gpu: Device) -> None:
    if gpu.target.sm < HOPPER.sm:
        pytest.skip(f"{gpu.name} has no bulk copies")
    found, emulated, x = ring.run()
    assert not found
    assert (emulated == x).all()
    signature: Signature = {"y": Array(U32, x.shape, "out"), "x": Array(U32, x.shape)}
    for _ in range(20):
        y = np.zeros_like(x)
        launch(gpu, ring.text, "k", 1, 32 * ring.warps, signature, [y, x])
        assert (y == x).all()
