"""Which batched kernels a bundle holds for several sequences, which launches they do, and that this is enough to decode."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor.base.row_tiles import tiles
from executor.bundle.write import write_bundle
from ptxgen.errors import ArgumentError
from ptxgen.kernels.compose import FOR_ROWS
from ptxgen.kernels.gemv.mwv import MwvGemv
from ptxgen.target import Target
from tests.executor.bundle.bundle_program import BundleProgram
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One layer, with biases."""
    return write_model(tmp_path / "m.gguf", "qwen2", Q.F32, layers=1, hidden=64, heads=2, kv_heads=1, ff=96, context=64)


SHARED = 4100
"""A vocabulary whose largest logit several blocks look for, which leave what they find to the last of them."""


def test_each_launch_that_has_a_batched_form_names_it_and_the_others_run_once_a_sequence(model: Path, tmp_path: Path) -> None:
    write_bundle(model, tmp_path / "bundle", Target(90), batches=(1, 4))
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert list(manifest["batches"]) == ["4"]
    form = {number: use["kernel"] for use in manifest["batches"]["4"] for number in use["launches"]}
    batched = {
        launch["kernel"].split("(")[0] + (" of a tensor" if "tensor" in launch["arguments"].get("delta", {}) else ""): form.get(
            i
        )
        for i, launch in enumerate(manifest["launches"])
    }
    assert {single: name and name.split("(")[0] for single, name in batched.items()} == {
        "embedding_lookup_indirect": "batched_embedding_lookup",
        "rmsnorm": "batched_rmsnorm",
        "mwv_f32_gemv": "batched_f32_gemv",
        "residual_add of a tensor": "batched_bias_broadcast_add",
        "residual_add": "batched_residual_add",
        "rope_neox_indirect": "batched_rope_neox",
        "kv_cache_scatter_indirect": None,
        "incremental_attention_indirect": None,
        "fused_swiglu": "batched_fused_swiglu",
        "argmax": "batched_argmax",
        "advance_position": None,
    }
    for name in set(form.values()):
        facts = manifest["kernels"][name]
        assert facts["shape"]["m"] == 4
        assert (tmp_path / "bundle" / facts["ptx"]["path"]).exists()
    formulae = {
        facts["parameters"][0]["formula"][1] for facts in manifest["kernels"].values() if facts["kernel"] == "batched_f32_gemv"
    }
    assert "ff" in formulae


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "named"), [("llama", ""), ("qwen2", ""), ("qwen2", "mwv_q8_0_gemv")])
def test_sequences_decoded_together_have_the_bits_of_each_decoded_alone_where_the_strategy_is_the_same(
    arch: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64, "layers": 1, "rope_freqs": arch == "llama"}
    shape |= {"vocab": SHARED}
    path = write_model(tmp_path / "m.gguf", arch, Q.Q8_0, **shape)  # type: ignore[arg-type]  # all are ints and a bool
    monkeypatch.setenv("PTXGEN_GEMV_Q8_0", named)
    write_bundle(path, tmp_path / "bundle", Target(90), batches=(1, 2))
    together = BundleProgram(tmp_path / "bundle", path, m=2)
    assert {name.split("(")[0] for uses in together.batched.values() for name, _ in uses} >= {
        "batched_q8_0_gemv" if named else "batched_hw_dp4a_q8_0_gemv",
        "batched_rope" + "_neox" * (arch == "qwen2"),
    }
    got, best = [], []
    for tokens, positions in (((5, 6), None), ((7, 8), None), ((300, 9), (0, 2))):  # the first one starts again
        got.append(together.step(*tokens, positions=positions))
        best.append(together.array(together.manifest["results"]["best"]).tolist())
    assert best == np.argmax(got, axis=-1).tolist()
    (counters,) = (name for name in together.manifest["buffers"] if name.endswith("counters"))
    assert together.manifest["buffers"][counters]["initial"] == "zero"
    assert together.array(counters).tolist() == [0, 0]
    alone = BundleProgram(tmp_path / "bundle", path)
    first = [alone.step(5, positions=(0,)), alone.step(7, positions=(1,)), alone.step(300, positions=(0,))]
    second = [alone.step(token, positions=(i,)) for i, token in enumerate((6, 8, 9))]
    np.testing.assert_array_equal(np.stack(got, axis=1), [first, second])


@pytest.mark.slow
def test_more_sequences_than_a_kernel_multiplies_at_once_are_multiplied_in_tiles_of_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_GEMV_Q8_0", "hw_dp4a_q8_0_gemv:digits=1")  # the shortest kernels
    shape = {"hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "context": 8, "layers": 1}
    path = write_model(tmp_path / "m.gguf", "llama", Q.Q8_0, **shape)  # type: ignore[arg-type]  # all are ints
    write_bundle(path, tmp_path / "bundle", Target(90), batches=(9,))
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    for use in manifest["batches"]["9"]:
        shape = manifest["kernels"][use["kernel"]]["shape"]
        tile = shape["m"] if "m" in shape else shape["rows"]  # of a quantisation
        assert use["sequences"] == {8: [0], 1: [8], 9: [0]}[tile]
        assert use["kernel"].startswith("batched_hw_dp4a_q8_0_gemv") == (tile != 9)
    tokens = range(5, 14)
    together = BundleProgram(tmp_path / "bundle", path, m=9).step(*tokens)
    alone = BundleProgram(tmp_path / "bundle", path)
    for sequence in (0, 7, 8):
        np.testing.assert_array_equal(together[sequence], alone.step(tokens[sequence], positions=(0,)))


@pytest.mark.parametrize("m", [1, 7, 8, 9, 16, 17, 65535])
def test_tiles_take_every_row_once_and_at_most_eight_at_a_time(m: int) -> None:
    taken = [row for rows, starts in tiles(m) for start in starts for row in range(start, start + rows)]
    assert taken == list(range(m))
    assert max(rows for rows, _ in tiles(m)) <= 8


def test_a_batch_that_a_kernel_cannot_do_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"m must be .* got 1000000000"):
        write_bundle(model, tmp_path / "bundle", Target(90), batches=(10**9,))


def test_a_matrix_without_a_batched_gemv_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOR_ROWS, MwvGemv, lambda kernel, m: ())
    said = "blk.0.attn_q.weight is multiplied by mwv_f32_gemv, which has no form for several rows"
    with pytest.raises(ArgumentError, match=said):
        write_bundle(model, tmp_path / "bundle", Target(90), batches=(2,))
    assert not (tmp_path / "bundle").exists()
