"""What every public entry makes of the numbers, shapes and objects that it is given: integers are integers and in range, shapes
are compared, and nothing is launched or changed by a call that is refused. No kernel runs here."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Q

from executor import CudaExecutor, GpuBuffer, GpuProfile, KvCache
from executor.base.errors import LaunchError
from executor.device.emulated import EmulatedDevice
from executor.device.protocol import LoadedKernel
from executor.launch.graph import LaunchGraph, Moments
from executor.launch.launch import LaunchRecord
from executor.launch.modules import Modules
from executor.layers.outliers import is_massive_activation_outlier
from executor.layers.sequence import LayerSequence
from executor.measure.profiler import TileProfiler
from executor.model.decode_profile import profile_decoding
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen.formats import FORMATS
from ptxgen.kernels.registry import find
from ptxgen.types import F32
from tests.executor.launch.kernels import Scale
from tests.synthetic import write_model

pytestmark = pytest.mark.usefixtures("shared_kernels")

HIDDEN, FF, HEADS, KV_HEADS, HEAD_DIM, ROOM, M = 256, 512, 4, 2, 64, 8, 3
INT, OR_NONE = "int", "int | None"
"""How a parameter that is an integer is annotated."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "m.gguf"
    return write_model(file, types=Q.Q4_K, layers=1, hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, ff=FF, context=32)


@pytest.fixture(scope="module")
def executor(path: Path) -> Iterator[CudaExecutor]:
    """Loads no kernel and runs none, so none leaves a time."""
    rng = np.random.default_rng(1)

    def load(self: Modules, kernel: KernelType, *, dependent: bool = False, stamped: bool = False) -> LoadedKernel:
        return LoadedKernel(kernel.name, None)

    with pytest.MonkeyPatch.context() as patch, CudaExecutor("emulator", profile=GpuProfile()) as made:
        patch.setattr(Modules, "load", load)
        patch.setattr(EmulatedDevice, "_run", lambda *_, **__: None)
        patch.setattr(LaunchGraph, "moments", lambda graph: [Moments(0, 0, 0)] * len(graph.records))
        made.load_weights(path)
        for name, type, n, k in (("up", "Q4_K", FF, HIDDEN), ("down", "Q4_K", HIDDEN, FF), ("six", "Q6_K", FF, HIDDEN)):
            made.load_weight(name, FORMATS[type].random_blocks(rng, n, k), type, (n, k))
        made.enable_tile_profiling()
        yield made


@pytest.fixture(autouse=True)
def new_sequence(executor: CudaExecutor) -> None:
    executor.init_kv_cache(1, HEADS, KV_HEADS, HEAD_DIM, ROOM)


def vector(n: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(n, np.float32)


def arguments(executor: CudaExecutor) -> dict[str, dict[str, Any]]:
    """Good ones for each entry of CudaExecutor that takes integers or arrays; arrays are of the shape that they should have."""
    gemv = {"input": vector(HIDDEN), "output": vector(FF), "n": FF, "k": HIDDEN}
    new = {"input": vector(HIDDEN), "n": FF, "k": HIDDEN}
    layer = {"input": vector(HIDDEN), "layer_idx": 0, "hidden_dim": HIDDEN, "intermediate_dim": FF, "epsilon": 1e-5}
    gammas = {"attn_norm_gamma": vector(HIDDEN), "ffn_norm_gamma": vector(HIDDEN)}
    named = layer | {"layer_prefix": "blk.0"} | gammas
    indexed = layer | {"layer_weights": executor.build_indexed_weights(1, HIDDEN, FF)[0]}
    sizes = {"hidden_dim": HIDDEN, "intermediate_dim": FF}
    swiglu = {"input": vector(HIDDEN), "gate": "up", "up": "up", "down": "down", **sizes}
    host = {"input": vector(HIDDEN), "output": vector(HIDDEN), "up_name": "up", "down_name": "down", **sizes}
    tall = np.ones((M, HIDDEN), np.float32)
    packed = {"weight": "up", "packed_input": tall, "packed_output": np.ones((M, FF), np.float32), "m": M, "n": FF, "k": HIDDEN}
    kv = KV_HEADS * HEAD_DIM
    qkv: dict[str, Any] = {name: np.ones((M, n), np.float32) for name, n in (("q", HIDDEN), ("k", kv), ("v", kv))}
    qkv |= {"q_dim": HIDDEN, "kv_dim": kv, "hidden_dim": HIDDEN}
    made = {f"{name}q4k_gemv_into": {"weight": "up", **gemv} for name in ("", "coalesced_", "wide_", "vectorized_", "mwv_")}
    made |= {f"{name}_gemv_into": {"weight": "up", "digits": 2, **gemv} for name in ("mwv_dp4a_q4k", "hw_dp4a_q4k")}
    made |= {f"{name}_gemv_into": {"weight": "six", "digits": 2, **gemv} for name in ("dp4a_q6k", "hw_dp4a_q6k")}
    return made | {
        "matmul": {"weight": "up", "x": vector(HIDDEN), "out": vector(FF)},
        "gemv_dispatch": {"type": "Q4_K", "weight": "up", **gemv},
        "q4k_gemv_into_legacy": {"weight": "up", **gemv},
        "q6k_gemv_into": {"weight": "six", **gemv},
        "q4k_gemv_cached_async": {"name": "up", **new},
        "q4k_gemv_indexed_async": {"weight": "up", **new},
        "q6k_gemv_indexed_async": {"weight": "six", **new},
        "batched_q4k_gemv_cached": {
            "name": "up", "input": tall, "output": np.ones((M, FF), np.float32), "m": M, "k": HIDDEN, "n": FF
        },
        "batched_gemv_with_fallback": {"type": "Q4_K", **packed},
        "batched_gemv_or_gemm": {"type": "Q4_K", **packed},
        "batched_qkv_dp4a_q4k_gemv_into": {
            "q_weight": "blk.0.attn_q.weight", "k_weight": "blk.0.attn_k.weight", "v_weight": "blk.0.attn_v.weight",
            "packed_input": tall, "m": M, **qkv, "digits": 2,
        },
        "batched_bias_broadcast_add": {"packed": tall, "bias": vector(HIDDEN), "dim": HIDDEN, "m": M},
        "batched_qkv_rope_phase": {
            "input": tall, "hidden_buf": np.ones((M, HIDDEN), np.float32), "m": M, "positions": [0, 5, 0], "epsilon": 1e-5,
            "layer_weights": indexed["layer_weights"], **qkv,
        },
        "fused_ffn_q4k": host,
        "fused_ffn_swiglu_host": host | {"gate_name": "up"},
        "fused_ffn_swiglu_gpu": swiglu | {"digits": 2},
        "fused_ffn_swiglu_gpu_true_dp4a": swiglu | {"digits": 2},
        "fused_ffn_swiglu_indexed_gpu": swiglu,
        "init_kv_cache": {
            "layers": 1, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_len": ROOM, "rope_dim": 32,
            "rope_freqs": np.ones(16),
        },
        "build_indexed_weights": {"layers": 1, **sizes},
        "transformer_layer_gpu": named,
        "transformer_layer_gpu_tiled_profiled": named,
        "transformer_layer_indexed": indexed,
        "transformer_layer_workspace": indexed | {"position": 0},
        "transformer_layer_workspace_for_capture": indexed,
        "incremental_attention_async": {
            "layer": 0,
            "q": np.ones((HEADS, HEAD_DIM), np.float32),
            "k": np.ones((KV_HEADS, HEAD_DIM), np.float32),
            "v": np.ones((KV_HEADS, HEAD_DIM), np.float32),
        },
        "attention": {
            "layer": 0,
            "q": np.ones((HEADS, HEAD_DIM), np.float32),
            "k": np.ones((KV_HEADS, HEAD_DIM), np.float32),
            "v": np.ones((KV_HEADS, HEAD_DIM), np.float32),
            "position": 0,
        },
        "load_weight": {"name": "new", "data": np.ones((2, 64), np.float32), "type": "F32", "shape": (2, 64)},
        "on_stream": {"stream": 0},
        "using": {"stream": 0},
    }  # fmt: skip


ELSEWHERE = {
    "detect_input_outlier", "buffer", "zeros", "load_model", "replay_decode",
    "rmsnorm", "per_head_rmsnorm", "rope", "silu", "gelu", "swiglu", "multiply", "residual_add", "argmax", "embedding",
}  # fmt: skip
"""Of these other tests tell: arrays of any shape, and what needs a model."""


def call(executor: CudaExecutor, name: str, given: Mapping[str, Any]) -> None:
    if name.endswith("for_capture"):
        with executor.capture():
            getattr(executor, name)(**given)
    else:
        getattr(executor, name)(**given)


def integers(name: str) -> list[str]:
    parameters = inspect.signature(getattr(CudaExecutor, name)).parameters.values()
    return [parameter.name for parameter in parameters if parameter.annotation in (INT, OR_NONE)]


def entries() -> list[str]:
    """The entries of CudaExecutor that take integers or arrays."""
    found = []
    for name, entry in inspect.getmembers(CudaExecutor, inspect.isfunction):
        annotations = [str(parameter.annotation) for parameter in inspect.signature(entry).parameters.values()]
        if not name.startswith("_") and any(a in (INT, OR_NONE) or a == "Any" or "Array" in a for a in annotations):
            found.append(name)
    return found


def test_no_entry_is_missing_here(executor: CudaExecutor) -> None:
    assert set(entries()) - ELSEWHERE <= set(arguments(executor))


@pytest.mark.parametrize("name", sorted({*entries(), "load_weight"} - ELSEWHERE))
def test_what_is_no_whole_number_is_refused_by_name_and_numpy_s_are_taken(executor: CudaExecutor, name: str) -> None:
    good = arguments(executor)[name]
    call(executor, name, good)
    executor.sequence.reset()
    executor.init_kv_cache(1, HEADS, KV_HEADS, HEAD_DIM, ROOM)
    counted = {one: np.int64(good[one]) for one in integers(name) if one in good}
    call(executor, name, good | counted)
    executor.init_kv_cache(1, HEADS, KV_HEADS, HEAD_DIM, ROOM)
    launched: list[LaunchRecord] = []
    executor.launcher.observers.append(launched.append)
    before = executor.device.memory().allocated, list(executor.sequence.lengths)
    for one in integers(name):
        right = good[one]
        for wrong in (right + 0.5, float(right), np.float32(right), bool(right), str(right), [right]):
            with pytest.raises(ArgumentError):
                call(executor, name, good | {one: wrong})
    executor.launcher.observers.remove(launched.append)
    assert launched == []
    assert (executor.device.memory().allocated, executor.sequence.lengths) == before


@pytest.mark.parametrize("name", sorted({*entries(), "load_weight"} - ELSEWHERE))
def test_arrays_are_taken_in_their_shape_or_flat_and_not_in_another_with_as_many_values(
    executor: CudaExecutor, name: str
) -> None:
    good = arguments(executor)[name]
    launched: list[LaunchRecord] = []
    for one, value in good.items():
        if not isinstance(value, np.ndarray):
            continue
        executor.init_kv_cache(1, HEADS, KV_HEADS, HEAD_DIM, ROOM)
        call(executor, name, good | {one: value.reshape(-1)})
        executor.init_kv_cache(1, HEADS, KV_HEADS, HEAD_DIM, ROOM)
        other = value.reshape(value.shape[::-1] if value.ndim > 1 else (2, -1))
        executor.launcher.observers.append(launched.append)
        with pytest.raises(PtxGenError, match=r"must be|allowed|are not the rows"):
            call(executor, name, good | {one: other})
        executor.launcher.observers.remove(launched.append)
    assert launched == []


class Objects:
    """Of each class one for which 1 is a good number everywhere."""

    def __init__(self, executor: CudaExecutor, model: LanguageModel) -> None:
        device = executor.device
        self.buffer = GpuBuffer.zeros(device, F32, (8,))
        self.cache, self.small = (KvCache(device, 2, KV_HEADS, HEAD_DIM, room) for room in (ROOM, 1))
        self.cache.advance(2)
        self.sequence, self.short = (
            LayerSequence(device, executor.workspace, 2, HEADS, KV_HEADS, HEAD_DIM, room) for room in (ROOM, 1)
        )
        self.sequence.commit(0, 0, 1)
        self.model = model

    @property
    def state(self) -> object:
        return self.cache.length, self.cache.max_len, self.sequence.lengths, self.model.decoder.position


CALLS: dict[str, Callable[[Objects, Any], object]] = {
    "a view's offset": lambda o, value: o.buffer.view(value, (1,)),
    "a view's shape": lambda o, value: o.buffer.view(0, (value,)),
    "a byte": lambda o, value: o.buffer.fill(value),
    "an extent": lambda o, value: GpuBuffer.empty(o.buffer.device, F32, (2, value)).free(),
    "positions taken": lambda o, value: o.cache.advance(value),
    "positions kept": lambda o, value: o.cache.truncate(value),
    "a cache's room": lambda o, value: o.small.grow(value),
    "a sequence's room": lambda o, value: o.short.grow(value),
    "a layer": lambda o, value: o.sequence.require_layer(value),
    "a position": lambda o, value: o.sequence.begin(value, 0),
    "top_k": lambda o, value: Sampler(top_k=value),
    "seed": lambda o, value: Sampler(seed=value),
    "a prompt": lambda o, value: o.model.logits([value]),
    "a prompt of NumPy": lambda o, value: o.model.logits(np.array([value])),
    "tokens to make": lambda o, value: o.model.generate([1], max_tokens=value, sampler=Sampler()),
    "tokens to stop at": lambda o, value: o.model.generate([1], max_tokens=1, sampler=Sampler(), stop_tokens=[value]),
    "a token": lambda o, value: o.model.decoder.step(value),
    "the length of a step": lambda o, value: TileProfiler(o.model.device).step(value).__enter__(),
    "steps to profile": lambda o, value: profile_decoding(o.model.decoder, 1, value),
    "a token to profile from": lambda o, value: profile_decoding(o.model.decoder, value, 1),
}


@pytest.mark.parametrize("what", CALLS)
def test_integers_elsewhere_are_integers_too(executor: CudaExecutor, path: Path, what: str) -> None:
    with executor.load_model(path, context=16) as model:
        objects = Objects(executor, model)
        before = objects.state
        for wrong in (1.5, 1.0, np.float32(1), True, np.True_, "1", [1, 2]):
            with pytest.raises(ArgumentError):
                CALLS[what](objects, wrong)
        assert objects.state == before
        for right in (1, np.int64(1), np.uint8(1)):
            CALLS[what](objects, right)


@pytest.mark.parametrize("token", [10**6, 512, -1, 2**40])
def test_a_token_beyond_the_vocabulary_changes_nothing(executor: CudaExecutor, path: Path, token: int) -> None:
    with executor.load_model(path, context=16) as model:
        executor.replay_decode(model, 3)
        with pytest.raises(ArgumentError, match=rf"token id {token} is out of range; the vocabulary has ids 0 to 511"):
            executor.replay_decode(model, token)
        for wrong in (3.7, True, "3"):
            with pytest.raises(ArgumentError, match="the token is "):
                executor.replay_decode(model, wrong)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"context is 2\.5"):
            executor.load_model(path, context=2.5)  # type: ignore[arg-type]
        assert model.decoder.position == 1


REFUSED: dict[str, Callable[[CudaExecutor], object]] = {
    "a float for a pointer": lambda e: e.q4k_gemv_indexed_async(1.5, vector(HIDDEN), FF, HIDDEN),  # type: ignore[arg-type]
    "nothing for a weight": lambda e: e.q4k_gemv_into(None, vector(HIDDEN), vector(FF), FF, HIDDEN),  # type: ignore[arg-type]
    "a float for a type": lambda e: e.gemv_dispatch(12.0, "up", vector(HIDDEN), vector(FF), FF, HIDDEN),  # type: ignore[arg-type]
    "True for a type": lambda e: e.load_weight("w", np.ones(4, np.float32), True, (4,)),
    "no name": lambda e: e.load_weight(None, np.ones(4, np.float32), "F32", (4,)),  # type: ignore[arg-type]
    "the address of no name": lambda e: e.get_quantized_weight_ptr(None),  # type: ignore[arg-type]
    "weights of no file": lambda e: e.load_weights(None),  # type: ignore[arg-type]
    "no model": lambda e: e.load_model(None),  # type: ignore[arg-type]
    "a list of other numbers": lambda e: e.zeros(2).upload([1.0, 2.0]),  # type: ignore[arg-type]
    "rows of different lengths": lambda e: e.buffer([[1.0], [1.0, 2.0]]),
    "a type that is none": lambda e: e.zeros(4, dtype="f33"),
    "a view of a type that is none": lambda e: e.zeros(4).view(0, (4,), "f33"),
    "a profile by name": lambda e: setattr(e, "profile", "fast"),
    "a new executor's profile by name": lambda e: CudaExecutor("emulator", profile="fast"),  # type: ignore[arg-type]
    "a profile of no names": lambda e: GpuProfile(gemv={"q4k": 5}),  # type: ignore[dict-item]
    "a device by number": lambda e: CudaExecutor(0),  # type: ignore[arg-type]
    "a layer without weights": lambda e: e.transformer_layer_indexed(vector(HIDDEN), 0, None, HIDDEN, FF, 1e-5),  # type: ignore[arg-type]
    "an epsilon that is text": lambda e: e.transformer_layer_gpu(
        vector(HIDDEN), 0, "blk.0", HIDDEN, FF, vector(HIDDEN), vector(HIDDEN), "1e-5",  # type: ignore[arg-type]
    ),
    "frequencies that are text": lambda e: e.init_kv_cache(1, HEADS, KV_HEADS, HEAD_DIM, ROOM, rope_freqs="x"),
    "more room than there can be": lambda e: e.sequence.grow(1 << 31),
    "a draft of no model": lambda e: e.verify_draft(None, [1]),  # type: ignore[arg-type]
    "a replay of no model": lambda e: e.replay_decode(None),  # type: ignore[arg-type]
    "an array of a buffer": lambda e: np.asarray(e.zeros(4)),
    "a sum of a buffer": lambda e: np.add(e.zeros(4), 1),
    "outliers of uneven rows": lambda e: is_massive_activation_outlier([[1.0], [1.0, 2.0]]),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_such_thing_is_refused_in_our_words(executor: CudaExecutor, what: str) -> None:
    profile, allocated = executor.profile, executor.device.memory().allocated
    with pytest.raises(PtxGenError):
        REFUSED[what](executor)
    gc.collect()
    executor.launcher.prepare(Scale(n=1), y=executor.zeros(1), x=executor.zeros(1), factor=1.0, offset=0)
    gc.collect()
    assert executor.profile is profile
    assert executor.device.memory().allocated == allocated


def test_a_model_says_what_it_is_not_given(executor: CudaExecutor, path: Path) -> None:
    with executor.load_model(path, context=16) as model:
        for prompt, options, said in (
            (b"text", {}, "the prompt is text, b'text'; allowed: token ids"),
            (None, {}, "the prompt is None; allowed: one row of token ids"),
            ([1], {"sampler": "greedy"}, "sampler is 'greedy'; allowed: a Sampler"),
            ([1], {"stop": [5]}, "a stop string is 5; allowed: text of at least one character"),
            ([1], {"stop_tokens": 5}, "stop_tokens is 5; allowed: one row of token ids"),
            ([1], {"max_tokens": 0}, "max_tokens is 0; allowed: a whole number of at least 1"),
            ([1], {"logprobs": -1}, "logprobs is -1; allowed: a whole number of at least 0"),
            ([1], {"on_token": 5}, "on_token is 5; allowed: a function"),
        ):
            with pytest.raises(ArgumentError, match=said):
                model.generate(prompt, **{"max_tokens": 1, "sampler": Sampler(), **options})  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="profile is 'fast'; allowed: a GpuProfile"):
            model.decoder.profile = "fast"  # type: ignore[assignment]
        model.decoder.step(1)


def test_a_graph_that_was_closed_is_not_replayed(executor: CudaExecutor, path: Path) -> None:
    x, y = executor.zeros(HIDDEN), executor.zeros(FF)
    with executor.capture() as graph:
        executor.q4k_gemv_into("up", x, y, FF, HIDDEN)
    graph.replay()
    graph.close()
    before = y.version
    with pytest.raises(LaunchError, match=r"a graph of 2 launches, .* was closed; capture it again"):
        graph.replay()
    with executor.load_model(path, context=16) as model:
        decoding = executor.capture_decode(model)
    with pytest.raises(LaunchError, match=r"a graph of .* was closed; capture it again"):
        decoding.replay()
    assert y.version == before


def test_a_graph_of_an_executor_that_was_closed_is_not_replayed() -> None:
    with CudaExecutor("emulator", profile=GpuProfile()) as made:
        x, delta = made.zeros(HIDDEN), made.zeros(HIDDEN)
        with made.capture() as graph:
            made.launcher(find("residual_add").make(n=HIDDEN), x=x, delta=delta)
    with pytest.raises(PtxGenError, match=r"closed|freed"):
        graph.replay()
