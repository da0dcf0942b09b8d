"""What the files of executor/model/architectures read: which keys, and what becomes of those that are missing or wrong."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from executor.base.errors import ModelError
from executor.choice.choice import GpuProfile
from executor.device import Device
from executor.gguf.directory import TensorInfo
from executor.gguf.gguf_file import GgufFile
from executor.model.architectures import ARCHITECTURES
from executor.model.engine import Engine
from executor.model.generation import LanguageModel
from executor.model.model_file import check_tensors, read_spec
from executor.model.split import split_spec
from executor.model.step import Row
from executor.model.tensors import expected_tensors
from ptxgen.errors import ArgumentError
from tests.executor.model.ways import ONCE
from tests.paths import ROOT
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

SIZES: Final[dict[str, Any]] = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64}
NO_NUMBER: Final = st.sampled_from([True, False, "", "64", [], ["64"], math.nan, -math.inf])
NO_FLAG: Final = st.sampled_from(["", "64", [], -1, 0, 0.5])
NO_POSITIVE: Final = NO_NUMBER | st.sampled_from([0, -1])
NO_EPSILON: Final = NO_POSITIVE | st.just(1.0)
NO_COUNT: Final = NO_NUMBER | st.sampled_from([-1, 0.5, 1 << 40])
NO_SIZE: Final = NO_COUNT | st.just(0)
NO_SIZES: Final = NO_SIZE | st.lists(NO_COUNT, min_size=2, max_size=2) | st.just(np.array([1, 0]))
NONE_YET: Final = NO_NUMBER | st.just(8)
KINDS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "attention.causal": NO_FLAG | st.just(False),
    "attention.head_count": NO_SIZES,
    "attention.head_count_kv": NO_SIZES,
    "attention.key_length": NO_SIZE,
    "attention.layer_norm_epsilon": NO_EPSILON,
    "attention.layer_norm_rms_epsilon": NO_EPSILON,
    "attention.scale": NO_NUMBER,
    "attention.sliding_window": NO_COUNT.filter(lambda value: value is not False),
    "attention.sliding_window_pattern": st.sampled_from(["", "64", 0, -1, 0.5, [1], ["64", "64"]]),
    "attention.temperature_scale": NO_NUMBER,
    "attention.value_length": NO_SIZE,
    "attn_logit_softcapping": NO_NUMBER,
    "block_count": NO_SIZE,
    "context_length": NO_SIZE,
    "embedding_length": NO_SIZE,
    "embedding_scale": NO_NUMBER,
    "expert_count": NONE_YET,
    "expert_used_count": NONE_YET,
    "feed_forward_length": NO_SIZES,
    "final_logit_softcapping": NO_NUMBER,
    "logit_scale": NO_NUMBER,
    "attention.clamp_kqv": NO_NUMBER,
    "nextn_predict_layers": NO_COUNT | st.just(2),
    "attention.max_alibi_bias": NO_NUMBER,
    "num_loops": NO_COUNT | st.just(2),
    "rope.scaling.alpha": NO_NUMBER | st.just(1e10),
    "pooling_type": NO_NUMBER | st.just(0.5),
    "residual_scale": NO_NUMBER,
    "rope.dimension_count": NO_SIZE | st.just(31),
    "rope.dimension_sections": st.sampled_from([["64"], [4, -4, 4, 4], [4, 4], [0, 0, 0, 0]]),
    "rope.freq_base": NO_POSITIVE,
    "rope.freq_base_swa": NO_POSITIVE,
    "rope.scale_linear": NO_NUMBER | st.just(-1),
    "rope.scaling.attn_factor": NO_POSITIVE,
    "rope.scaling.factor": NO_NUMBER | st.just(-1),
    "rope.scaling.finetuned": NO_FLAG,
    "rope.scaling.original_context_length": NO_SIZE,
    "rope.scaling.type": NO_NUMBER,
    "rope.scaling.yarn_attn_factor": NO_NUMBER | st.just(0.5),
    "rope.scaling.yarn_ext_factor": NO_NUMBER | st.just(0.5),
    "use_parallel_residual": NO_FLAG,
}
"""By key that architectures read, what is wrong."""
REQUIRED: Final = {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"}
ALSO_REQUIRED: Final = {
    "cohere2": {"attention.sliding_window", "logit_scale"},
    "granite": {"logit_scale"},
    "granitemoe": {"logit_scale"},
    "qwen2vl": {"rope.dimension_sections"},
    "qwen3vl": {"rope.dimension_sections"},
    "qwen3tts": {"rope.dimension_sections"},
    "paddleocr": {"rope.dimension_sections"},
    "muse-glimmer": {"attention.sliding_window", "logit_scale"},
}
IN_NO_FILE: Final = {"qwen2vl": {"attention.layer_norm_rms_epsilon"}}
"""Keys that most architectures need, and this one has a default for."""
UNEQUAL: Final[Mapping[str, dict[str, Any]]] = {
    "deci": {"layers": 5, "heads": [0, 4, 2, 4, 4], "kv_heads": [0, 0, 1, 2, 4], "ff": [160, 64, 128, 0, 96], "value_dim": 64},
    "openelm": {"layers": 3, "heads": [2, 4, 4], "kv_heads": [1, 2, 1], "ff": [64, 160, 128]},
}
"""Sizes of architectures whose files have layers of different ones. deci's may have none of something, and here have
values of another width, too."""
NAMED_LATER: Final = {"rope.scale_linear": "rope.scaling.factor"}
"""Keys that are read where another one is missing."""
TOKENS: Final = (1, 300, 7, 7, 42)
TEXT: Final = (3, 17, 101, 44, 9, 55, 12, 200, 7)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, GgufFile]:
    """By architecture, a file."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: write_model(folder / f"{name}.gguf", name, types=Q.F16, **SIZES) for name in ARCHITECTURES}
    return {name: GgufFile.open(path) for name, path in paths.items()}


def keys_of(file: GgufFile) -> set[str]:
    """The keys that the file's architecture reads, without its name."""
    watched = Watched(file.metadata)
    read_spec(changed(file, watched))
    name = f"{file.metadata['general.architecture']}."
    return {key.removeprefix(name) for key in watched.read if key.startswith(name)}


def changed(file: GgufFile, metadata: Mapping[str, object], tensors: Mapping[str, TensorInfo] | None = None) -> GgufFile:
    return cast(GgufFile, SimpleNamespace(path=file.path, tensors=tensors or file.tensors, metadata=metadata, data=file.data))


class Watched(dict[str, object]):
    """Metadata that remember which keys were looked at."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        super().__init__(metadata)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_an_architecture_reads_is_known(name: str, files: Mapping[str, GgufFile]) -> None:
    assert REQUIRED <= keys_of(files[name]) <= KINDS.keys()


@pytest.mark.slow
@given(name=st.sampled_from(sorted(ARCHITECTURES)), data=st.data())
def test_a_wrong_value_is_an_error_with_the_name_of_its_key(
    name: str, data: st.DataObject, files: Mapping[str, GgufFile]
) -> None:
    file = files[name]
    key = data.draw(st.sampled_from(sorted(keys_of(file))))
    value = data.draw(KINDS[key])
    assume(not (name == "deci" and isinstance(value, np.ndarray)))  # its layers may have zeros
    less = {NAMED_LATER[key]: None} if key in NAMED_LATER else {}
    with pytest.raises(ModelError) as caught:
        read_spec(changed(file, {**file.metadata, **less, f"{name}.{key}": value}))
    assert f"{file.path}: {name}.{key} " in str(caught.value)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_missing_key_is_an_error_with_its_name_unless_it_has_a_default(name: str, files: Mapping[str, GgufFile]) -> None:
    file = files[name]
    keys = keys_of(file)
    required = (
        REQUIRED | {key for key in keys - IN_NO_FILE.get(name, set()) if "epsilon" in key} | ALSO_REQUIRED.get(name, set())
    )
    for key in keys:
        less = changed(file, {other: value for other, value in file.metadata.items() if other != f"{name}.{key}"})
        if key not in required:
            read_spec(less)
            continue
        with pytest.raises(ModelError, match=f"^{file.path}: metadata key {name}.{key} is missing$"):
            read_spec(less)


def test_keys_of_other_architectures_are_ignored(files: Mapping[str, GgufFile]) -> None:
    others = {
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "logit_scale": 0.25,
        "residual_scale": 0.22,
        "attention.sliding_window": 4096,
        "attention.scale": 0.01,
        "rope.scaling.alpha": 1000.0,
        "ssm.state_size": 16,
    }
    for name, file in files.items():
        strange = {f"{name}.{key}": value for key, value in others.items() if key not in keys_of(file)}
        assert read_spec(changed(file, {**file.metadata, **strange})) == read_spec(file)


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        ("blk.0.ffn_down_exps.weight", "experts"),
        ("blk.1.attn_sinks.weight", "attention sinks"),
    ],
)
def test_a_tensor_that_is_not_computed_is_an_error_with_its_name(tensor: str, why: str, files: Mapping[str, GgufFile]) -> None:
    for name, file in files.items():
        more = changed(file, file.metadata, {**file.tensors, tensor: file.tensors["token_embd.weight"]})
        with pytest.raises(ModelError) as caught:
            check_tensors(more, read_spec(more))
        assert f"tensor {tensor} is not part of a {name} model" in str(caught.value)
        assert re.search(f"; not computed: {why}; (nearest that|of about its size) runs: ", str(caught.value))


def test_a_tensor_of_several_matrices_has_their_rows(files: Mapping[str, GgufFile]) -> None:
    file = files["phi3"]
    name = "blk.1.attn_qkv.weight"
    info = file.tensors[name]
    cut = changed(file, file.metadata, {**file.tensors, name: replace(info, shape=(info.shape[0] - 1, info.shape[1]))})
    with pytest.raises(ModelError, match=f"tensor {name} has 127 rows; the metadata needs 64 of attn_q .* = 128$"):
        check_tensors(cut, read_spec(cut))


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_each_architecture_has_the_logits_of_the_reference(name: str, tmp_path: Path, device: Device) -> None:
    """With all that its files may have; windows, scalings and caps are of a size that shows in so few tokens. Token by token
    over the cache of one sequence, and over pages: a prompt in one step, then a token after a rewind."""
    sizes: dict[str, Any] = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ff": 128, "context": 64, "head_dim": 32}
    sizes |= UNEQUAL.get(name, {})
    path = write_model(tmp_path / "m.gguf", name, Q.Q8_0, full=True, **sizes, metadata=ONCE.get(name))
    with LanguageModel.load(path, device) as model:
        exact = ReferenceModel(path, context=model.context).logits(TEXT)
        engine = Engine(model.decoder, slots=1)
        engine.set_table(0, range(engine.pages))
        rows = [Row(0, token, position, True) for position, token in enumerate(TEXT)]
        scores = engine.step(rows)
        prompt = np.array([scores.logits(index) for index in range(len(TEXT))])
        again = engine.step(rows[5:6]).logits(0)
        engine.free()
        alone = model.logits(TEXT)
    for made, right in ((alone, exact), (prompt, exact), (again, exact[5])):
        assert np.abs(made - right).max() <= 1e-4 * exact.std()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exaone4", "glm4"])
def test_layers_for_drafts_are_not_used(name: str, tmp_path: Path, device: Device) -> None:
    """Arrays have a number for each of them all the same."""
    keys: dict[str, Any] = {"nextn_predict_layers": 1, "feed_forward_length": [96, 96]}
    metadata = {f"{name}.{key}": value for key, value in keys.items()}
    path = write_model(tmp_path / "m.gguf", name, Q.F16, metadata=metadata, **SIZES)
    path.write_bytes(path.read_bytes().replace(b"blk.1.attn_output.weight", b"blk.1.nextn.hnorm.weight"))
    with LanguageModel.load(path, device, context=32) as model:
        assert model.spec.layers == len(model.decoder.cache.layers) == 1
        logits = model.logits(TOKENS)
    exact = ReferenceModel(path, context=32).logits(TOKENS)
    assert np.abs(logits - exact).max() <= 1e-4 * exact.std()


def test_a_layer_without_a_network_or_attention_needs_no_tensors_for_it(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "deci", Q.F16, **SIZES | UNEQUAL["deci"], head_dim=32, full=True)
    with GgufFile.open(path) as file:
        spec = read_spec(file)
        check_tensors(file, spec)
        token_embd = file.tensors["token_embd.weight"]
        check_tensors(changed(file, file.metadata, {**file.tensors, "blk.3.attn_q.weight": token_embd}), spec)
        with pytest.raises(ModelError, match=r"tensor blk.3.ssm_in.weight is not part of a deci model"):
            check_tensors(changed(file, file.metadata, {**file.tensors, "blk.3.ssm_in.weight": token_embd}), spec)
    shapes = expected_tensors(spec)
    matrices = [{name.split(".")[2] for name in shapes if name.startswith(f"blk.{layer}.")} for layer in range(5)]
    assert spec.cached == (2, 4)
    assert not matrices[3]
    assert matrices[4] - matrices[0] == {"attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"}
    assert matrices[1] - matrices[0] == {"attn_norm", "attn_output"}
    assert shapes["blk.1.attn_output.weight"] == (64, 64)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"xielu.beta": None}, "metadata key xielu.beta is missing"),
        ({"xielu.beta": [0.5]}, r"xielu.beta is \[0.5\]; allowed: a finite number, or one for each of the 2 layers"),
        ({"xielu.alpha_n": math.nan}, "xielu.alpha_n is nan; allowed: a finite number, or"),
        ({"xielu.alpha_p": True}, "xielu.alpha_p is True; allowed: a finite number, or"),
        ({"xielu.beta": 0.0}, r"xielu.eps are .*, 0.0 and .*; allowed: alphas of -80 to 80, beta above 0"),
        ({"xielu.alpha_n": 1e4}, r"xielu.eps are 10000.0, .*; allowed: alphas of -80 to 80, beta above 0"),
    ],
)
def test_numbers_of_xielu_that_cannot_be_are_named(keys: dict[str, Any], said: str, files: Mapping[str, GgufFile]) -> None:
    file = files["apertus"]
    given = {key: value for key, value in {**file.metadata, **keys}.items() if value is not None}
    with pytest.raises(ModelError, match=said):
        read_spec(changed(file, given))


def test_a_model_without_any_attention_is_refused(files: Mapping[str, GgufFile]) -> None:
    file = files["deci"]
    none = {f"deci.attention.{key}": [0, 0] for key in ("head_count", "head_count_kv")}
    with pytest.raises(ModelError, match=r"deci.attention.head_count_kv gives no layer attention; allowed: at least one"):
        read_spec(changed(file, {**file.metadata, **none}))


def test_layers_of_different_sizes_are_not_shared_by_devices(files: Mapping[str, GgufFile]) -> None:
    file = files["llama"]
    spec = read_spec(changed(file, {**file.metadata, "llama.feed_forward_length": [64, 96]}))
    said = "2 devices cannot share the model, and layers of this model of llama differ in size; allowed: layers of one size"
    with pytest.raises(ArgumentError, match=said):
        split_spec(spec, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_products_are_multiplied_by_the_scales_of_their_matrices(name: str, tmp_path: Path, device: Device) -> None:
    """As NVFP4 files have them, before biases are added; in steps of one token and of several."""
    path = write_model(tmp_path / "m.gguf", name, Q.NVFP4, tied=False, scales=True, **SIZES)
    exact = ReferenceModel(path).logits(TOKENS)
    with LanguageModel.load(path, device) as model:
        assert len(model.spec.blocks[0].scales) == 7
        assert model.spec.head_scale
        logits = model.logits(TOKENS)
        engine = Engine(model.decoder, slots=1)
        engine.set_table(0, range(engine.pages))
        last = engine.step([Row(0, token, at, at == len(TOKENS) - 1) for at, token in enumerate(TOKENS)]).logits(0)
        engine.free()
    assert np.abs(logits - exact).max() <= 1e-4 * exact.std()
    assert np.abs(last - exact[-1]).max() <= 1e-4 * exact.std()


@pytest.mark.parametrize(("layers", "alibi", "rotated"), [(32, 0.0, True), (40, 8.0, False), (2, 0.0, False)])
def test_the_layers_of_a_baichuan_say_how_it_knows_positions(layers: int, alibi: float, rotated: bool, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", "baichuan", Q.F16, **{**SIZES, "layers": layers})
    (block,) = set(read_spec(GgufFile.open(path)).blocks)
    assert (block.mixer.scores.alibi, block.mixer.rope.scale != 0) == (alibi, rotated)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "head_dim", "value_dim"), [("llama", 192, 128), ("plamo3", 64, 96)])
def test_values_may_have_another_width_than_keys(
    name: str, head_dim: int, value_dim: int, tmp_path: Path, device: Device
) -> None:
    """By each way that a token goes: one by one, a prompt in tiles, beside another sequence, and a draft after a rewind."""
    sizes: dict[str, Any] = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "ff": 128, "context": 64}
    path = write_model(tmp_path / "m.gguf", name, Q.Q8_0, full=True, **sizes, head_dim=head_dim, value_dim=value_dim)
    rows = [[Row(slot, token, position, True) for position, token in enumerate(TEXT)] for slot in (0, 1)]
    with LanguageModel.load(path, device, profile=GpuProfile(tile_run=3)) as model:
        exact = ReferenceModel(path, context=model.context).logits(TEXT)
        alone = model.logits(TEXT)
        engine = Engine(model.decoder, slots=2)
        for slot in (0, 1):
            engine.set_table(slot, [slot])

        def logits(*step: Row) -> list[NDArray[np.float32]]:
            scores = engine.step(list(step))
            return [scores.logits(index) for index in range(len(step))]

        prompt = logits(*rows[0][:-1])
        batch = logits(rows[0][-1], rows[1][0])
        draft = logits(*rows[0][5:7])
        kernels = [{call.kernel.name for call in engine.steps.calls(*size)} for size in ((8, 0), (2, 2))]
        engine.free()
    assert ["flash_attention" in names for names in kernels] == [True, False]
    for made, right in ((alone, exact), ([*prompt, *batch], [*exact, exact[0]]), (draft, exact[5:7])):
        assert np.abs(np.array(made) - np.array(right)).max() <= 1e-4 * exact.std()


@pytest.mark.slow
def test_only_its_file_names_an_architecture() -> None:
    """But for vocabularies (executor/text), some of which are called the same, and the table of models by family."""
    own = ("executor/text/", "executor/model/architectures/", "executor/model/families.py")
    named = {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (ROOT / "executor").rglob("*.py")
        if not str(file.relative_to(ROOT)).startswith(own)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in ARCHITECTURES
    }
    assert not named


@pytest.mark.slow
def test_layers_may_differ_in_whether_they_have_biases(tmp_path: Path, device: Device) -> None:
    """llama.cpp lets any layer of a Llama have them."""
    path = write_model(tmp_path / "m.gguf", "qwen2", types=Q.Q8_0, **SIZES)
    content = path.read_bytes().replace(b"qwen2.", b"llama.").replace(b"qwen2", b"llama", 1)
    for matrix in "qkv":
        content = content.replace(f"blk.0.attn_{matrix}.bias".encode(), f"xxx.0.attn_{matrix}.bias".encode())
    path.write_bytes(content)
    with LanguageModel.load(path, device) as model:
        assert [bool(block.biases) for block in model.spec.blocks] == [False, True]
        logits = model.logits(TOKENS)
    exact = ReferenceModel(path).logits(TOKENS)
    assert np.abs(logits - exact).max() <= 1e-4 * exact.std()
