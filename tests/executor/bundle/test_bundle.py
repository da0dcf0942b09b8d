"""Bundles: what is written is enough to run the model, is loaded without emission, and is not believed when it was changed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor import CudaExecutor
from executor.base.errors import BundleError
from executor.bundle.write import _check_replaceable, write_bundle
from executor.device.emulated import EmulatedDevice
from executor.gguf.gguf_file import GgufFile
from executor.launch.bundle import Bundle
from executor.launch.modules import Modules
from executor.model.model_file import read_spec
from ptxgen.errors import ArgumentError
from ptxgen.kernels.registry import find
from ptxgen.target import Target
from tests.executor.api.five_ways import FiveWays
from tests.executor.bundle.bundle_program import BundleProgram
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

TOKENS = (5, 300, 7)
CONTEXT = 40


@pytest.fixture(scope="module", params=["llama", *(pytest.param(arch, marks=pytest.mark.slow) for arch in ("qwen2", "qwen3"))])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    arch = request.param
    return write_model(
        path, arch, Q.Q8_0, layers=2, hidden=64, heads=2, kv_heads=1, ff=96, context=64, rope_freqs=arch == "llama"
    )


@pytest.fixture(scope="module")
def bundle(model: Path) -> Path:
    folder = model.parent / "bundle"
    write_bundle(model, folder, Target(90), context=CONTEXT)
    return folder


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A model, and a bundle of it to spoil."""
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)
    write_bundle(path, tmp_path / "bundle", Target(90))
    return path, tmp_path / "bundle"


def logits(model: Path, **options: Any) -> Any:
    with CudaExecutor("emulator", **options) as executor:
        return executor.load_model(model, context=CONTEXT).logits(TOKENS)


def forbid(*_: object, **__: object) -> Any:
    raise AssertionError("a kernel was emitted")


def test_a_model_runs_from_its_bundle_and_emits_nothing(model: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits(model)
    monkeypatch.setattr("executor.launch.modules.emit", forbid)
    monkeypatch.setattr("ptxgen.toolchain.module.build", forbid)
    np.testing.assert_array_equal(logits(model, bundle=bundle), expected)


@pytest.mark.slow
def test_a_bundle_of_a_named_kernel_of_one_digit_has_the_accurate_ones_for_outliers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)
    monkeypatch.setenv("PTXGEN_GEMV_Q8_0", "hw_dp4a_q8_0_gemv:digits=1")
    expected = logits(path)
    write_bundle(path, tmp_path / "bundle", Target(90), context=CONTEXT)
    monkeypatch.setattr("executor.launch.modules.emit", forbid)
    np.testing.assert_array_equal(logits(path, bundle=tmp_path / "bundle"), expected)


def test_a_bundle_has_no_stamped_forms_and_its_launches_are_timed_one_by_one(model: Path, bundle: Path) -> None:
    expected = logits(model)
    with CudaExecutor("emulator", bundle=bundle) as executor:
        loaded = executor.load_model(model, context=CONTEXT)
        profiler = executor.enable_tile_profiling()
        np.testing.assert_array_equal(loaded.logits(TOKENS), expected)
        assert (profiler.steps, profiler.untimed) == (len(TOKENS), 0)
        assert len(profiler.tiles) == len(TOKENS) * len(loaded.decoder.graph().records)
        modules = executor.modules
        with pytest.raises(BundleError, match=r"has no rmsnorm_digits with stamps, by which launches are timed"):
            modules.load(find("rmsnorm_digits").make(hidden=64, digits=3), stamped=True)


def test_layers_run_from_the_bundle_of_their_model_in_every_way(model: Path, bundle: Path) -> None:
    spec = read_spec(GgufFile.open(model))
    s = spec.layer
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(spec.hidden).astype(np.float32) for _ in range(2)]
    rows = {}
    for folder in (None, bundle):
        with CudaExecutor("emulator", bundle=folder) as opened:
            opened.load_weights(model)
            opened.init_kv_cache(spec.layers, s.heads, s.kv_heads, s.head_dim, CONTEXT, rope_style=s.rope_style)
            for way, made in FiveWays(opened, spec.layers, s.hidden, s.ff, s.rms_eps).all(inputs).items():
                rows[way, folder] = made
    assert len(rows) == 10
    for (way, _), made in rows.items():
        np.testing.assert_array_equal(made, rows["by_index", None], err_msg=way)


def test_the_manifest_alone_is_enough_to_run_the_model(model: Path, bundle: Path) -> None:
    program = BundleProgram(bundle, model)
    np.testing.assert_array_equal([program.step(token) for token in TOKENS], logits(model))


def test_every_formula_computes_its_number(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    numbers = manifest["numbers"]
    kernels = manifest["kernels"].values()
    pairs = [(kernel["grid_formula"], kernel["grid"]) for kernel in kernels]
    pairs += [(p["formula"], p["shape"]) for kernel in kernels for p in kernel["parameters"] if p["kind"] == "array"]
    pairs += [(buffer["formula"], buffer["shape"]) for buffer in manifest["buffers"].values()]
    for formulae, values in pairs:
        assert [eval(formula, {}, dict(numbers)) for formula in formulae] == values
    assert manifest["buffers"]["keys of layer 1"]["formula"] == ["kv_heads", "context", "head_dim"]


def test_every_file_is_named_with_its_hash_and_no_other_is_there(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    records = [kernel["ptx"] for kernel in manifest["kernels"].values()]
    records += [buffer["initial"] for buffer in manifest["buffers"].values() if isinstance(buffer["initial"], dict)]
    for record in records:
        assert hashlib.sha256((bundle / record["path"]).read_bytes()).hexdigest() == record["sha256"]
    files = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
    assert files == {"manifest.json", *(record["path"] for record in records)}


def test_the_same_model_gives_the_same_bytes(small: tuple[Path, Path], tmp_path: Path) -> None:
    model, first = small
    write_bundle(model, tmp_path / "second", Target(90))
    for path in first.rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "second" / path.relative_to(first)).read_bytes()


def test_a_tensor_says_which_kernels_read_it(small: tuple[Path, Path]) -> None:
    tensors = json.loads((small[1] / "manifest.json").read_text())["tensors"]
    (kernel,) = tensors["blk.0.ffn_gate.weight"]["kernels"]
    assert kernel.startswith("hw_dp4a_q8_0_gemv(k=64, n=96, digits=3")
    assert len(tensors["token_embd.weight"]["kernels"]) == 2  # the table is the head, too


def test_the_context_is_the_bundles_unless_asked_for(small: tuple[Path, Path], tmp_path: Path) -> None:
    model, _ = small
    write_bundle(model, tmp_path / "short", Target(90), context=17)
    with CudaExecutor("emulator", bundle=tmp_path / "short") as executor:
        assert executor.load_model(model).context == 17
        with pytest.raises(BundleError, match=r"has no kernel .*max_len=18.*it has .*max_len=17.*another model or context"):
            executor.load_model(model, context=18)


def spoil(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


RMSNORM = "rmsnorm_digits(hidden=64, digits=3)"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m["kernels"].pop(RMSNORM), r"has no kernel rmsnorm_digits\(.*\); it was written for another model"),
        (
            lambda m: m["kernels"][RMSNORM]["ptx"].update(sha256="0" * 64),
            r"rmsnorm_digits_hidden_64_digits_3.ptx has sha256 .* damaged",
        ),
        (lambda m: m["kernels"][RMSNORM]["ptx"].update(path="../m.gguf"), "m.gguf, which is not in the folder"),
        (lambda m: m["kernels"][RMSNORM]["ptx"].update(path="kernels/none.ptx"), "none.ptx cannot be read: No such file"),
        (lambda m: m["kernels"][RMSNORM].update(grid=[2, 1, 1]), r"has grid \[2, 1, 1\], .* launches it with \[1, 1, 1\]"),
        (lambda m: m["kernels"][RMSNORM]["parameters"].reverse(), "has parameters .* write the bundle anew"),
        (lambda m: m["kernels"][RMSNORM].update(entry="rope"), "its PTX has no entry rope"),
        (lambda m: m["kernels"][RMSNORM].pop("ptx"), "does not say its ptx"),
        (lambda m: m["kernels"][RMSNORM].pop("parameters"), "does not describe its launch"),
        (lambda m: m.update(version=1), "has version 1 of the manifest; known: 2, 3"),
        (lambda m: m.update(format="zip"), "is not a bundle"),
        (lambda m: m.update(target="sm_1"), "unknown target 'sm_1'"),
        (lambda m: m["numbers"].update(context="x"), "the context is 'x'"),
        (lambda m: m.update(kernels=[]), "has no kernels"),
    ],
)
def test_a_spoilt_bundle_is_refused(small: tuple[Path, Path], change: Callable[[dict[str, Any]], object], said: str) -> None:
    model, folder = small
    spoil(folder, change)
    with pytest.raises(BundleError, match=said), CudaExecutor("emulator", bundle=folder) as executor:
        executor.load_model(model)


def test_a_changed_text_is_refused(small: tuple[Path, Path]) -> None:
    model, folder = small
    path = folder / "kernels" / "residual_add_n_64.ptx"
    path.write_text(path.read_text().replace("add.rn.f32", "sub.rn.f32"))
    with pytest.raises(BundleError, match=r"residual_add_n_64\.ptx has sha256"), CudaExecutor("emulator", bundle=folder) as e:
        e.load_model(model)


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json cannot be read"):
        Bundle.open(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(BundleError, match="is not JSON"):
        Bundle.open(tmp_path)


class Gpu(EmulatedDevice):
    """Says that it is a GPU, and keeps the machine code that it was given."""

    kind = "cuda"  # type: ignore[assignment]

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.images: list[bytes | None] = []

    def load(
        self, text: str, entry: str, image: bytes | None = None, cache_dir: Path | None = None, dynamic_shared: int = 0,
        cooperative: bool = False, shared_room: int = 0,
    ) -> Any:  # fmt: skip
        self.images.append(image)
        return super().load(text, entry)

    def compile(self, text: str) -> bytes | None:
        return b"compiled"


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "machine_code"), [(80, True), (86, True), (90, False)])
def test_a_gpu_gets_the_machine_code_that_runs_on_it_and_else_the_text(
    small: tuple[Path, Path], tmp_path: Path, gpu: int, machine_code: bool
) -> None:
    write_bundle(small[0], tmp_path / "ampere", Target(80), cubin=True)
    device = Gpu(Target(gpu))
    modules = Modules(device, bundle=Bundle.open(tmp_path / "ampere"))
    modules.load(find("residual_add").make(n=64))
    assert len(device.images) == 1
    assert (device.images[0] or b"").startswith(b"\x7fELF" if machine_code else b"compiled")
    assert modules.counts.bundle_hits == machine_code
    assert modules.counts.emissions == 0


@pytest.mark.parametrize(("written", "gpu", "runs"), [("sm_90", 80, False), ("sm_90a", 100, False), ("sm_75", 120, True)])
def test_text_for_another_gpu_is_refused(written: str, gpu: int, runs: bool) -> None:
    bundle = Bundle(Path("b"), {}, Target.parse(written))
    if runs:
        assert Modules(Gpu(Target(gpu)), bundle=bundle).bundle is bundle
    else:
        with pytest.raises(BundleError, match=f"was written for {written}, and emulator .* is sm_{gpu}"):
            Modules(Gpu(Target(gpu)), bundle=bundle)
    assert Modules(EmulatedDevice(Target(gpu)), bundle=bundle).bundle is bundle


def test_a_folder_that_is_no_bundle_is_never_replaced(small: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = small
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    with pytest.raises(ArgumentError, match="mine exists and is not a bundle"):
        write_bundle(model, mine, Target(90))
    assert [path.name for path in mine.iterdir()] == ["letter.txt"]
    write_bundle(model, folder, Target(80))  # an older bundle is
    assert Bundle.open(folder).target == Target(80)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_failed_write_leaves_the_old_bundle(small: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, folder = small
    monkeypatch.setattr("executor.bundle.write.emit", forbid)
    with pytest.raises(AssertionError, match="emitted"):
        write_bundle(model, folder, Target(80))
    assert Bundle.open(folder).target == Target(90)


def test_a_manifest_names_no_file_that_would_hang_or_fill_the_memory(small: tuple[Path, Path], tmp_path: Path) -> None:
    _, folder = small
    os.mkfifo(folder / "pipe")
    with (folder / "large").open("wb") as stream:
        stream.truncate(20 << 30)  # takes no room on the disk
    (folder / "circle").symlink_to("circle")
    kernel = find("rmsnorm_digits").make(hidden=64, digits=3)
    for name, why in {
        "pipe": "cannot be read: it is not a regular file",
        "large": f"cannot be read: it has {20 << 30} bytes",
        "a\0b": "cannot be read",
        "\ud800": "cannot be read",
        "circle": "cannot be read",
        "/etc/passwd": "which is not in the folder",
    }.items():
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["kernels"][RMSNORM]["ptx"]["path"] = name
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(BundleError, match=why):
            Bundle.open(folder).kernel(kernel)


@pytest.mark.parametrize("planted", ["pipe", "large", "nested"])
def test_a_manifest_that_is_a_pipe_or_huge_or_nested_without_end_is_refused(tmp_path: Path, planted: str) -> None:
    path = tmp_path / "manifest.json"
    if planted == "pipe":
        os.mkfifo(path)
    elif planted == "large":
        with path.open("wb") as stream:
            stream.truncate(20 << 30)
    else:
        path.write_text("[" * 1_000_000)
    with pytest.raises(BundleError, match=r"is not a bundle: manifest\.json"):
        Bundle.open(tmp_path)
    with pytest.raises(ArgumentError, match="exists and is not a bundle"):
        _check_replaceable(tmp_path)


def test_a_folder_whose_name_is_too_long_is_said_to_be_just_that(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", "llama", Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)
    with pytest.raises(ArgumentError, match="cannot be written: File name too long"):
        write_bundle(model, tmp_path / ("x" * 5000), Target(90))


def test_a_bundle_of_a_split_model_says_which_file_a_tensor_is_in(tmp_path: Path) -> None:
    tensors = {}
    for name, tensors_a_file in (("whole", 0), ("split", 4)):
        path = write_model(
            tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64,
            tensors_a_file=tensors_a_file,
        )  # fmt: skip
        write_bundle(path, tmp_path / name, Target(90))
        tensors[name] = BundleProgram(tmp_path / name, path).tensors
        path.unlink()
    manifest = json.loads((tmp_path / "split" / "manifest.json").read_text())
    files = {facts["file"] for facts in manifest["tensors"].values()}
    assert files == {f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)}
    np.testing.assert_equal(tensors["split"], tensors["whole"])
