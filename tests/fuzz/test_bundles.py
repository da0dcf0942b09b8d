"""Bundles with a manifest that says anything, and files that are anything: an error of the package, or the kernels that were
asked for, soon and in little memory. What the kernels of a bundle do is not in question here: see SECURITY.md."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.bundle.write import write_bundle
from executor.device.emulated import EmulatedDevice
from executor.launch.bundle import MANIFEST, Bundle
from executor.launch.modules import Modules
from executor.model.generation import LanguageModel
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import PtxGenError
from ptxgen.target import Target
from tests.fuzz.cases import Cases
from tests.fuzz.limits import bounded
from tests.synthetic import write_model

SECONDS = 15.0
MEMORY = 1 << 30

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 40, 1 << 31, 1 << 63, 10**30, 0.5, 1e308,
    "", "x", "0" * 64, "\0", "a\0b", "\ud800", "\x1b[2J", "n" * 5000, "sm_90a", "fast",
    "../m.gguf", "..", ".", "/", "/etc/passwd", "/dev/zero", "kernels", "pipe", "large", "circle", MANIFEST,
    [], {}, [[]], [{}], {"path": "pipe", "sha256": ""}, {"path": "large", "sha256": ""}, [1, 1, 1], ["x"],
)  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[KernelType]]:
    """A bundle with files beside it that the manifest may come to name, and the kernels that a model asks of it."""
    folder = tmp_path_factory.mktemp("bundle")
    model = write_model(folder / "m.gguf", "llama", Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)
    write_bundle(model, folder / "bundle", Target(90), context=40)
    bundle = folder / "bundle"
    with EmulatedDevice() as device:
        modules = Modules(device, bundle=Bundle.open(bundle))
        LanguageModel.load(model, device, modules=modules).close()
        kernels = [kernel for kernel, *_ in modules._by_kernel]
    os.mkfifo(bundle / "pipe")
    with (bundle / "large").open("wb") as stream:
        stream.truncate(20 << 30)  # takes no room on the disk
    (bundle / "circle").symlink_to("circle")
    return bundle, kernels


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with a key of its own, anywhere within."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if isinstance(here, (dict, list)):
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            found += [(here, key) for key in keys]
            waiting += [here[key] for key in keys]
    return found


def spoil(rng: random.Random, manifest: dict[str, Any]) -> None:
    """Change, remove, copy or rename one thing; mostly of what describes the kernels."""
    read = {key: manifest[key] for key in ("kernels", "numbers") if key in manifest}
    where = places(read if rng.random() < 0.7 else manifest) or [(manifest, "format")]
    container, key = rng.choice(where)
    other, taken = rng.choice(where)
    match rng.randrange(4):
        case 0:
            container[key] = rng.choice(ODD)
        case 1:
            container[key] = json.loads(json.dumps(other[taken]))
        case 2:
            del container[key]
        case _ if isinstance(container, dict):
            container[rng.choice([odd for odd in ODD if isinstance(odd, str)])] = container.pop(key)
        case _:
            container.insert(key, rng.choice(ODD))


def damage(rng: random.Random, text: bytes) -> bytes:
    """Text that is JSON no more, or JSON that no program would write."""
    at = rng.randrange(len(text))
    match rng.randrange(5):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + rng.randbytes(rng.randrange(1, 9)) + text[at + rng.randrange(9) :]
        case 2:
            return rng.choice((b"[", b'{"a":', b'["a",')) * rng.choice((900, 5000, 3_000_000))
        case 3:
            return b'{"format": "ptxgen bundle", "version": ' + b"9" * rng.choice((100, 5000, 1_000_000)) + b"}"
        case _:
            return text[:at] + text[at:].replace(b"[", b"[" * rng.choice((1, 500)), 1).replace(b"]", b"]" * 500, 1)


def use(folder: Path, kernels: list[KernelType]) -> None:
    """All that the executor asks of a bundle."""
    bundle = Bundle.open(folder)
    assert bundle.context >= 1
    assert bundle.precision in ("accurate", "fast")
    bundle.runs_on(Target(90), emulated=False)
    for kernel in kernels:
        packed = bundle.kernel(kernel)
        assert packed.entry in packed.text


def test_a_bundle_that_says_anything(cases: Cases, good: tuple[Path, list[KernelType]]) -> None:
    folder, kernels = good
    text = (folder / MANIFEST).read_bytes()
    use(folder, kernels)
    for rng in cases:
        if rng.random() < 0.2:
            spoilt = damage(rng, text)
        else:
            manifest = json.loads(text)
            for _ in range(rng.randrange(1, 4)):
                spoil(rng, manifest)
            spoilt = json.dumps(manifest).encode()
        (folder / MANIFEST).write_bytes(spoilt)
        said = ""
        with bounded(SECONDS, MEMORY):
            try:
                use(folder, kernels)
            except PtxGenError as error:
                said = str(error)
        assert len(said) < 2000
        assert said.isprintable()
