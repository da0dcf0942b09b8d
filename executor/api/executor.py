"""CudaExecutor, the front of the package: it owns parts with one job each, and has the names that people know.
Layers are executor/layers, models executor/model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import ArrayLike

from executor.api.attention import AttentionRunner
from executor.api.batched import BatchedRunner
from executor.api.blocks import BlockRunner
from executor.api.delegate import delegate
from executor.api.ffn import FeedForwardRunner
from executor.api.gemv import GemvRunner
from executor.api.matmul import MatmulRunner
from executor.api.tile_profiling import TileProfiling
from executor.base.arguments import array as host_array
from executor.base.arguments import instance, one_shape
from executor.choice.choice import GpuProfile
from executor.device import Device, open_device, open_devices
from executor.gguf.gguf_file import GgufFile
from executor.gguf.locate import local_model
from executor.launch.bundle import Bundle
from executor.launch.graph import LaunchGraph
from executor.launch.launch import Launcher
from executor.launch.modules import Modules
from executor.layers.layer_runner import LayerRunner
from executor.layers.outlier_verdicts import OutlierVerdicts
from executor.layers.sequence import LayerSequence
from executor.layers.session import Session
from executor.measure.debug import watch
from executor.measure.profiler import TileProfiler
from executor.memory.buffers import GpuBuffer
from executor.memory.interop import foreign_stream, used_stream
from executor.memory.single_weight import HostData, host_weight
from executor.memory.weights import LoadedWeight, Progress, TensorFile, Weights, load_weights
from ptxgen.errors import ArgumentError
from ptxgen.formats.format import Format
from ptxgen.spelling import DTypeLike
from ptxgen.types import F32

if TYPE_CHECKING:
    from executor.base.progress import Progress as ModelProgress
    from executor.model.decoder import Decoder
    from executor.model.generation import LanguageModel


class CudaExecutor:
    """One device with its loaded kernels and weights, which all that runs on it shares. Close it, or use it in a `with`. It
    belongs to the thread that made it, or the one that called `take_over` last; all else is a DeviceError on any other.

    device: as in `open_device`: "auto", "cuda", "cuda:N" or "emulator". devices: instead of it several, as in `open_devices`,
    that share the models which are loaded (docs/executor/several-devices.md); all else is done by each of them alike. bundle: a
    folder that `ptxgen bundle` wrote; every kernel then comes from there and none is written. sanitize: check every access
    (emulator only). profile: which kernels are used (default: what the environment says and was measured on this GPU); it may
    be replaced at any time. stream: where all work goes, a handle of the driver or any library's stream, instead of a stream of
    its own; it must outlive the executor, and "auto" then takes a GPU. Raises DeviceError if the device is not there,
    BundleError for a folder that is no bundle or was written for another GPU, ArgumentError for devices that cannot be taken
    together.

    `input`, `output` and the like are f32 vectors on the device: a GpuBuffer, or an array of another library in its memory
    (executor/memory/interop.py; NumPy's on the emulator). `batched_q4k_gemv_cached`, `fused_ffn_q4k` and
    `fused_ffn_swiglu_host` take arrays of the host, `matmul` both. A `weight` is a name, a raw pointer, a buffer of blocks, or
    what `weights` or an indexed layer holds; sizes that it knows may be left out. Results on the device are not waited for.
    The memory of a new buffer goes back with `free`, or when the buffer is no longer referenced. Wrong sizes, types, names and
    pointers are errors before anything is launched or changed; an output may not overlap the input that it is made from.
    """

    def __init__(
        self,
        device: str = "auto",
        *,
        devices: Sequence[str] | None = None,
        bundle: str | Path | None = None,
        sanitize: bool = False,
        profile: GpuProfile | None = None,
        stream: Any = None,
    ) -> None:
        if profile is not None:
            instance("profile", profile, GpuProfile)
        opened = None if bundle is None else Bundle.open(bundle)
        self.device = _opened(device, devices, sanitize, stream, bundle)
        try:
            self.modules = Modules(self.device, bundle=opened)
            profile = profile or GpuProfile.for_modules(self.modules)
        except BaseException:
            self.device.close()
            raise
        self.launcher = Launcher(self.device, self.modules)
        watch(self.launcher)
        self._session = Session(self.launcher, self.modules, profile)
        self.workspace, self.weights = self._session.workspace, self._session.weights
        self._matmul = MatmulRunner(self._session)
        self._gemv, self._ffn = GemvRunner(self._session), FeedForwardRunner(self._session)
        self._dp4a_ffn = FeedForwardRunner(self._session, dp4a=True)
        self._layers = LayerRunner(self._session, OutlierVerdicts(self.weights, self.workspace))
        self._batched = BatchedRunner(self._session, self._layers)
        self._blocks, self._attention = BlockRunner(self._session), AttentionRunner(self._session, self._layers)
        self._profiling = TileProfiling(self.launcher)

    @property
    def profile(self) -> GpuProfile:
        """Which kernels are used. It may be replaced at any time."""
        return self._session.profile

    @profile.setter
    def profile(self, profile: GpuProfile) -> None:
        self._session.profile = profile

    # Memory and weights.

    def buffer(self, array: ArrayLike, dtype: DTypeLike | None = None, name: str = "") -> GpuBuffer:
        """A copy of a host array on the device; see GpuBuffer.from_numpy."""
        return GpuBuffer.from_numpy(self.device, host_array("the array", array), dtype, name)

    def empty(self, *shape: int | Sequence[int], dtype: DTypeLike = F32, name: str = "") -> GpuBuffer:
        """A new buffer, contents undefined. shape: n, or n, m, or (n, m). dtype: as ptxgen/spelling.py has it: F32, "float32",
        np.float32, torch.float32. Raises ArgumentError for other shapes and types, OutOfMemory when memory is full."""
        return GpuBuffer.empty(self.device, dtype, one_shape(shape), name)

    def zeros(self, *shape: int | Sequence[int], dtype: DTypeLike = F32, name: str = "") -> GpuBuffer:
        """A new buffer of zeros; arguments and errors as `empty`."""
        return GpuBuffer.zeros(self.device, dtype, one_shape(shape), name)

    def on_stream(self, stream: Any) -> AbstractContextManager[None]:
        """In the block, work here comes after what the caller's stream has started, and before what it starts after the block;
        see foreign_stream of executor/memory/interop.py."""
        return foreign_stream(self.device, stream)

    def using(self, stream: Any) -> AbstractContextManager[None]:
        """In the block, launches, copies and replays go to the caller's stream, after all that was started here before and
        before what is started here after it; see used_stream of executor/memory/interop.py."""
        return used_stream(self.device, stream)

    @property
    def stream(self) -> int | None:
        """The handle of the CUDA stream that all work here goes to at the moment, for libraries that order their own work by
        it; None on the emulator, where a call returns when its work has ended."""
        stream = self.device.sharing.stream
        return None if stream is None else int(stream)

    def synchronize(self) -> None:
        """Wait for all work that was started here. Raises what went wrong in it, DeviceFailed for a fault; LaunchError in a
        capture."""
        self._session.require_no_capture("the host waits for the device")
        self.device.synchronize()

    def load_weights(
        self, file: str | Path | TensorFile, names: list[str] | None = None, progress: Progress | None = None
    ) -> Weights:
        """Put tensors of a GGUF file (default: all) into one pool on the device; see executor/memory/weights.py. Returns all
        weights there are now."""
        opened = file if isinstance(file, TensorFile) else GgufFile.open(file)
        self.weights.absorb(load_weights(self.device, opened, list(opened.tensors) if names is None else names, progress))
        return self.weights

    def load_weight(self, name: str, data: HostData, type: str | int | Format, shape: tuple[int, ...]) -> LoadedWeight:
        """Put one tensor on the device, in the place of any of this name; see executor/memory/single_weight.py."""
        weight = host_weight(self.device, name, data, type, shape)
        self.weights.put({name: weight}, [weight.buffer])
        return weight

    def get_quantized_weight_ptr(self, name: str) -> int:
        """The address of a weight, from the pool or loaded alone. ModelError with near names if there is none."""
        return self.weights[name].buffer.pointer

    # A matrix times a vector.

    matmul = delegate("_matmul", MatmulRunner.matmul)
    gemv_dispatch = delegate("_gemv", GemvRunner.dispatch)
    q4k_gemv_into = delegate("_gemv", GemvRunner.dispatch, "Q4_K")
    q6k_gemv_into = delegate("_gemv", GemvRunner.dispatch, "Q6_K")
    q4k_gemv_into_legacy = delegate("_gemv", GemvRunner.legacy)
    coalesced_q4k_gemv_into = delegate("_gemv", GemvRunner.by_kernel, "coalesced_q4k_gemv")
    wide_q4k_gemv_into = delegate("_gemv", GemvRunner.by_kernel, "wide_q4k_gemv")
    vectorized_q4k_gemv_into = delegate("_gemv", GemvRunner.by_kernel, "vectorized_q4k_gemv")
    mwv_q4k_gemv_into = delegate("_gemv", GemvRunner.by_kernel, "mwv_q4k_gemv")
    mwv_dp4a_q4k_gemv_into = delegate("_gemv", GemvRunner.by_digit_kernel, "mwv_dp4a_q4k_gemv")
    hw_dp4a_q4k_gemv_into = delegate("_gemv", GemvRunner.by_digit_kernel, "hw_dp4a_q4k_gemv")
    dp4a_q6k_gemv_into = delegate("_gemv", GemvRunner.by_digit_kernel, "dp4a_q6k_gemv")
    hw_dp4a_q6k_gemv_into = delegate("_gemv", GemvRunner.by_digit_kernel, "hw_dp4a_q6k_gemv")
    q4k_gemv_cached_async = delegate("_gemv", GemvRunner.product_by_name)
    q4k_gemv_indexed_async = delegate("_gemv", GemvRunner.product, "Q4_K")
    q6k_gemv_indexed_async = delegate("_gemv", GemvRunner.product, "Q6_K")
    batched_q4k_gemv_cached = delegate("_gemv", GemvRunner.batched)

    # Several rows of activations.

    batched_gemv_with_fallback = delegate("_batched", BatchedRunner.gemv_with_fallback)
    batched_gemv_or_gemm = delegate("_batched", BatchedRunner.gemv_or_gemm)
    batched_qkv_dp4a_q4k_gemv_into = delegate("_batched", BatchedRunner.qkv_dp4a_q4k)
    batched_bias_broadcast_add = delegate("_batched", BatchedRunner.bias_broadcast_add)
    batched_qkv_rope_phase = delegate("_batched", BatchedRunner.qkv_rope_phase)

    # A feed-forward network.

    fused_ffn_q4k = delegate("_ffn", FeedForwardRunner.gelu_host)
    fused_ffn_swiglu_gpu = delegate("_ffn", FeedForwardRunner.swiglu)
    fused_ffn_swiglu_indexed_gpu = delegate("_ffn", FeedForwardRunner.swiglu_indexed)
    fused_ffn_swiglu_host = delegate("_ffn", FeedForwardRunner.swiglu_host)
    fused_ffn_swiglu_gpu_true_dp4a = delegate(
        "_dp4a_ffn",
        FeedForwardRunner.swiglu,
        doc="""As fused_ffn_swiglu_gpu, on int8 planes whatever the profile (default: as many as its precision has).
        ArgumentError for weights without packed codes.""",
    )

    # A layer.

    init_kv_cache = delegate("_layers", LayerRunner.init_kv_cache)
    build_indexed_weights = delegate("_layers", LayerRunner.build_indexed_weights)
    transformer_layer_gpu = delegate("_layers", LayerRunner.transformer_layer_gpu)
    transformer_layer_indexed = delegate("_layers", LayerRunner.transformer_layer_indexed)
    transformer_layer_workspace = delegate("_layers", LayerRunner.transformer_layer_workspace)
    transformer_layer_workspace_for_capture = delegate("_layers", LayerRunner.transformer_layer_workspace_for_capture)
    transformer_layer_gpu_tiled_profiled = delegate(
        "_timed_layers",
        LayerRunner.transformer_layer_gpu,
        doc="""As transformer_layer_gpu, as one step of the tile profiler, which must be enabled: in a graph of launches
        that stamp their times, so that none of it is the host's; those of a bundle cannot, and are launched one by
        one with events between. Waits for the layer's end.""",
    )
    incremental_attention_async = delegate("_attention", AttentionRunner.incremental_attention)
    detect_input_outlier = delegate("_layers", LayerRunner.detect_input_outlier)

    # The steps of a layer, for layers of one's own.

    rmsnorm = delegate("_blocks", BlockRunner.rmsnorm)
    per_head_rmsnorm = delegate("_blocks", BlockRunner.per_head_rmsnorm)
    rope = delegate("_attention", AttentionRunner.rope)
    attention = delegate("_attention", AttentionRunner.attention)
    silu = delegate("_blocks", BlockRunner.silu)
    gelu = delegate("_blocks", BlockRunner.gelu)
    swiglu = delegate("_blocks", BlockRunner.swiglu)
    multiply = delegate("_blocks", BlockRunner.multiply)
    residual_add = delegate("_blocks", BlockRunner.residual_add)
    embedding = delegate("_blocks", BlockRunner.embedding)
    argmax = delegate("_blocks", BlockRunner.argmax)

    @property
    def sequence(self) -> LayerSequence:
        """The sequence that layers run on: cache, lengths, `reset`, `grow`. ArgumentError before init_kv_cache."""
        return self._layers.sequence

    @property
    def _timed_layers(self) -> LayerRunner:
        profiler = self.tile_profiler
        return replace(self._layers, run=profiler.run if self.modules.stamps else partial(profiler.watch, self.launcher))

    # A model.

    def load_model(
        self, path: str | Path, *, context: int | None = None, progress: ModelProgress | None = None
    ) -> LanguageModel:
        """A GGUF model, ready to decode: a path, or a name as executor.load_model takes it; see LanguageModel.load."""
        from executor.model.generation import LanguageModel

        model = LanguageModel.load(
            local_model(path, progress=progress),
            self.device,
            context=context,
            progress=progress,
            modules=self.modules,
            profile=self.profile,
        )
        model.decoder.timing = self._profiling.timing
        return model

    def capture_decode(self, model: LanguageModel) -> LaunchGraph:
        """The graph of one decode step of a model on this device, which serves every position; captured unless it is there."""
        return self._decoder(model).graph()

    def replay_decode(self, model: LanguageModel, token: int | None = None) -> int:
        """Run one token (None: the likeliest after the last) by one launch of the graph, and return the likeliest next one, for
        which the host waits once. What changed since the capture (room, profile, weights) makes it capture again by itself."""
        decoder = self._decoder(model)
        with decoder.busy("replaying a token"):
            decoder.timing = self._profiling.timing  # of a model that was not loaded by this executor
            decoder.step(token)
            return decoder.argmax()

    def verify_draft(self, model: LanguageModel, draft: Sequence[int]) -> list[int]:
        """Run tokens that may come next, all at once, and keep the first ones that greedy decoding would have taken, which are
        returned. Errors and what is left behind as Decoder.verify_draft."""
        decoder = self._decoder(model)
        with decoder.busy("verifying a draft"):
            return decoder.verify_draft(draft)

    def _decoder(self, model: LanguageModel) -> Decoder:
        from executor.model.generation import LanguageModel

        if instance("model", model, LanguageModel, "load_model").device is not self.device:
            raise ArgumentError(f"the model is another executor's, on {model.device.name}; load it with this one's load_model")
        return model.decoder

    # Graphs, times, the end.

    capture = delegate("_session", Session.capture)
    enable_tile_profiling = delegate("_profiling", TileProfiling.enable)
    disable_tile_profiling = delegate("_profiling", TileProfiling.disable)
    tile_summary = delegate("_profiling", TileProfiling.summary)

    @property
    def tile_profiler(self) -> TileProfiler:
        """What was timed so far. ArgumentError before enable_tile_profiling."""
        return self._profiling.profiler

    def take_over(self) -> None:
        """From now on the executor and its models belong to the calling thread, and to no other: see OwnerThread. DeviceError
        while the emulator runs a kernel for the thread that they belonged to."""
        self.device.owner.take_over()

    def close(self) -> None:
        """Free all that is on the device, models included. A second time does nothing."""
        self.device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(device: str, devices: Sequence[str] | None, sanitize: bool, stream: Any, bundle: object) -> Device:
    if devices is None:
        return open_device(device, sanitize=sanitize, stream=stream)
    for name, value, unset in (("device", device, "auto"), ("stream", stream, None)):
        if value != unset:
            raise ArgumentError(f"{name} is for one device, and devices names {devices!r}; leave one of the two out")
    if bundle is not None and len(devices) > 1:
        raise ArgumentError("a bundle has the kernels of one device; leave it out, or take one device")
    return open_devices(devices, sanitize=sanitize)
