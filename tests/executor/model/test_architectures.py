"""What the files of executor/model/architectures read: which keys, and what becomes of those that are missing or wrong."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.base.errors import ModelError
from executor.device import Device
from executor.gguf.directory import TensorInfo
from executor.gguf.gguf_file import GgufFile
from executor.model.architectures import ARCHITECTURES
from executor.model.generation import LanguageModel
from executor.model.model_file import check_tensors, read_spec
from tests.paths import ROOT
from tests.reference_model import ReferenceModel
from tests.synthetic import Q, write_model

SIZES: Final[dict[str, Any]] = {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 64}
WRONG: Final = st.sampled_from([True, False, "", "64", [], ["64"], -1, 0.5, math.nan, -math.inf])
"""No whole number above 0, and no list of two."""
WHOLE: Final = WRONG | st.sampled_from([0, 1 << 40]) | st.lists(WRONG, min_size=2, max_size=2) | st.just(np.array([1, 0]))
NUMBER: Final = WRONG.filter(lambda value: value != 0.5) | st.just(0)
SCALE: Final = WRONG | st.just(2.0)
"""Of a rotation, other than 0 and 1."""
COUNT: Final = WRONG | st.just(8)
KINDS: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "block_count": WHOLE,
    "context_length": WHOLE,
    "embedding_length": WHOLE,
    "feed_forward_length": WHOLE,
    "attention.head_count": WHOLE,
    "attention.head_count_kv": WHOLE,
    "attention.key_length": WHOLE,
    "attention.value_length": WHOLE,
    "attention.layer_norm_rms_epsilon": NUMBER | st.just(1.0),
    "attention.causal": st.just(False) | WRONG.filter(lambda value: value is not True),
    "expert_count": COUNT,
    "expert_used_count": COUNT,
    "pooling_type": WRONG.filter(lambda value: value != -1),
    "rope.dimension_count": WHOLE,
    "rope.freq_base": NUMBER,
    "rope.scale_linear": SCALE,
    "rope.scaling.attn_factor": SCALE,
    "rope.scaling.factor": SCALE,
    "rope.scaling.type": WRONG.filter(lambda value: value not in ("none", "linear")) | st.just("yarn"),
}
"""By key that the architectures read, what is wrong."""
REQUIRED: Final = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)  # fmt: skip
TOKENS: Final = (1, 300, 7, 7, 42)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, GgufFile]:
    """By architecture, a file."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: write_model(folder / f"{name}.gguf", name, types=Q.F16, **SIZES) for name in ARCHITECTURES}
    return {name: GgufFile.open(path) for name, path in paths.items()}


def changed(file: GgufFile, metadata: Mapping[str, object], tensors: Mapping[str, TensorInfo] | None = None) -> GgufFile:
    return cast(GgufFile, SimpleNamespace(path=file.path, tensors=tensors or file.tensors, metadata=metadata))


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
    watched = Watched(files[name].metadata)
    assert read_spec(changed(files[name], watched)) == read_spec(files[name])
    assert watched.read == {"general.architecture", "tokenizer.ggml.tokens", *(f"{name}.{key}" for key in KINDS)}


@pytest.mark.slow
@given(name=st.sampled_from(sorted(ARCHITECTURES)), key=st.sampled_from(sorted(KINDS)), data=st.data())
def test_a_wrong_value_is_an_error_with_the_name_of_its_key(
    name: str, key: str, data: st.DataObject, files: Mapping[str, GgufFile]
) -> None:
    file, value = files[name], data.draw(KINDS[key])
    with pytest.raises(ModelError) as caught:
        read_spec(changed(file, {**file.metadata, f"{name}.{key}": value}))
    assert f"{file.path}: {name}.{key} is " in str(caught.value)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_missing_key_is_an_error_with_its_name_unless_it_has_a_default(name: str, files: Mapping[str, GgufFile]) -> None:
    file = files[name]
    for key in KINDS:
        less = changed(file, {other: value for other, value in file.metadata.items() if other != f"{name}.{key}"})
        if key not in REQUIRED:
            read_spec(less)
            continue
        with pytest.raises(ModelError, match=f"^{file.path}: metadata key {name}.{key} is missing$"):
            read_spec(less)


def test_keys_of_other_architectures_are_ignored(files: Mapping[str, GgufFile]) -> None:
    others = {
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "logit_scale": 0.25, "residual_scale": 0.22,
        "attention.sliding_window": 4096, "attention.scale": 0.01, "rope.scaling.alpha": 1000.0, "ssm.state_size": 16,
    }  # fmt: skip
    for name, file in files.items():
        assert read_spec(changed(file, {**file.metadata, **{f"{name}.{key}": value for key, value in others.items()}})) == (
            read_spec(file)
        )


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        ("output.bias", "only the biases of Q, K and V are supported"),
        ("blk.1.attn_output.bias", "only the biases of Q, K and V are supported"),
        ("blk.0.ffn_down_exps.weight", "mixtures of experts are not supported"),
        ("rope_factors_short.weight", "long and short rotary factors are not supported"),
        ("blk.1.attn_sinks.weight", ""),
        ("cls.output.weight", ""),
    ],
)
def test_a_tensor_that_is_not_computed_is_an_error_with_its_name(tensor: str, why: str, files: Mapping[str, GgufFile]) -> None:
    for name, file in files.items():
        more = changed(file, file.metadata, {**file.tensors, tensor: file.tensors["output_norm.weight"]})
        with pytest.raises(ModelError) as caught:
            check_tensors(more, read_spec(more))
        assert f"tensor {tensor} is not part of a {name} model" in str(caught.value)
        assert str(caught.value).endswith(why)


@pytest.mark.slow
def test_only_its_file_names_an_architecture() -> None:
    """But for vocabularies (executor/text), some of which are called the same."""
    own = ("executor/text/", "executor/model/architectures/")
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
        assert [block.mixer.bias for block in model.spec.blocks] == [False, True]
        logits = model.logits(TOKENS)
    exact = ReferenceModel(path).logits(TOKENS)
    assert np.abs(logits - exact).max() <= 1e-4 * exact.std()
