"""CudaExecutor, the front of the package: transformer layers, attention, whole models and their times by the names people
know, on top of the methods of executor/api. Nothing is computed here: layers are layers/, models model/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from executor.api.matrices import Matrices
from executor.base.arguments import instance, whole
from executor.base.errors import LaunchError
from executor.launch.launch import LaunchGraph
from executor.layers.attention import attend, remember
from executor.layers.calls import Batch
from executor.layers.indexed import BLOCK, Site, ValidatedLayerWeights, build_indexed_weights, layer_weights
from executor.layers.operands import vector
from executor.layers.outlier_verdicts import OutlierVerdicts
from executor.layers.sequence import LayerSequence
from executor.layers.shape import LayerShape, RopeStyle
from executor.layers.transformer import Activations, transformer_layer
from executor.measure.profiler import TileProfiler, Timing
from executor.measure.tile_summary import tile_table
from executor.memory.buffers import GpuBuffer
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

    from executor.memory.kv_cache import KvCache
    from executor.model.decoder import Decoder
    from executor.model.generation import LanguageModel, Progress


class CudaExecutor(Matrices):
    """One device with its loaded kernels and weights, which all that runs on it shares. Close it, or use it in a `with`. It
    belongs to the thread that made it, or the one that called `take_over` last; all else is a DeviceError on any other.

    device: as in `open_device`: "auto", "cuda", "cuda:N" or "emulator". bundle: a folder that `ptxgen bundle` wrote; every
    kernel then comes from there and none is written. sanitize: check every access (emulator only). profile: which kernels are
    used (default: what the environment says and was measured on this GPU); it may be set anew at any time. Raises DeviceError
    if the device is not there, BundleError for a folder that is no bundle or was written for another GPU.

    `input`, `output` and the like are f32 vectors on the device: a GpuBuffer, or an array of another library in its memory
    (memory/interop.py; NumPy's on the emulator). `batched_q4k_gemv_cached`, `fused_ffn_q4k` and `fused_ffn_swiglu_host` take
    arrays of the host. A `weight` is a name, a raw pointer, a buffer of blocks, or what `weights` or an indexed layer holds.
    Results on the device are not waited for. The memory of a new buffer goes back with `free`, or when nobody has the buffer
    any more. Wrong sizes, types, names and pointers are errors before anything is launched or changed; an output may not
    overlap the input that it is made from.
    """

    _sequence: LayerSequence | None = None
    _timed: Timing | None = None
    _verdicts: OutlierVerdicts | None = None

    def load_model(self, path: str | Path, *, context: int | None = None, progress: Progress | None = None) -> LanguageModel:
        """A GGUF model, ready to decode; see LanguageModel.load."""
        from executor.model.generation import LanguageModel

        model = LanguageModel.load(
            path, self.device, context=context, progress=progress, modules=self.modules, profile=self.profile
        )
        model.decoder.timing = self._timing
        return model

    def init_kv_cache(
        self,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        max_len: int,
        *,
        rope_base: float = 10000.0,
        rope_style: RopeStyle = "adjacent",
        rope_dim: int | None = None,
        rope_freqs: ArrayLike | None = None,
    ) -> KvCache:
        """What attention is like in all layers, and room for max_len positions of one sequence; what was there before goes. See
        LayerSequence."""
        made = LayerSequence(
            self.device,
            self.workspace,
            layers,
            heads,
            kv_heads,
            head_dim,
            max_len,
            rope_base=rope_base,
            rope_style=rope_style,
            rope_dim=rope_dim,
            rope_freqs=rope_freqs,
        )
        if self._sequence is not None:
            self._sequence.free()
        self._sequence = made
        return made.cache

    @property
    def sequence(self) -> LayerSequence:
        """The sequence that layers run on: cache, lengths, `reset`, `grow`. ArgumentError before init_kv_cache."""
        if self._sequence is None:
            raise ArgumentError("there is no KV cache yet; init_kv_cache(layers, heads, kv_heads, head_dim, max_len) makes it")
        return self._sequence

    def build_indexed_weights(
        self, layers: int, hidden_dim: int, intermediate_dim: int, prefix: Callable[[int], str] = BLOCK.format
    ) -> tuple[ValidatedLayerWeights, ...]:
        """The weights of layers 0 to layers - 1, found by name, checked and bound to the profile's kernels once. They have the
        attention of init_kv_cache. Errors as executor.indexed.layer_weights."""
        layers = whole("layers", layers, 1)
        shape = self.sequence.shape(hidden_dim, intermediate_dim, rms_eps=0.0)  # of which weights know nothing
        flagged = self._outliers.flagged
        return build_indexed_weights(self.weights, layers, shape, self.profile, prefix=prefix, flagged=flagged)

    def transformer_layer_gpu(
        self,
        input: Any,
        layer_idx: int,
        layer_prefix: str,
        hidden_dim: int,
        intermediate_dim: int,
        attn_norm_gamma: Any,
        ffn_norm_gamma: Any,
        epsilon: float,
    ) -> GpuBuffer:
        """The next token through one layer whose weights are found by name (`layer_prefix`.attn_q.weight, ...); input:
        f32[hidden_dim] stays as it is. Returns a new buffer."""
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        found = self._named_weights(layer_idx, layer_prefix, shape, attn_norm_gamma, ffn_norm_gamma)
        return self._layer_into_new(input, layer_idx, found, shape)

    def transformer_layer_indexed(
        self,
        input: Any,
        layer_idx: int,
        layer_weights: ValidatedLayerWeights,
        hidden_dim: int,
        intermediate_dim: int,
        epsilon: float,
    ) -> GpuBuffer:
        """As transformer_layer_gpu, with weights of build_indexed_weights."""
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        return self._layer_into_new(input, layer_idx, _bound(layer_weights), shape)

    def transformer_layer_workspace(
        self,
        input: Any,
        layer_idx: int,
        layer_weights: ValidatedLayerWeights,
        hidden_dim: int,
        intermediate_dim: int,
        epsilon: float,
        position: int,
    ) -> None:
        """The token at `position` through one layer, in place: afterwards `input` is the layer's output. Nothing is allocated
        once the workspace has its size. A position before the layer's next one makes it forget what came after."""
        self._at_once("the position is copied to the device")
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        hidden = vector(self.device, input, (shape.hidden,), "input")
        self._layer_at(position, hidden, layer_idx, _bound(layer_weights), shape)

    def transformer_layer_workspace_for_capture(
        self,
        input: Any,
        layer_idx: int,
        layer_weights: ValidatedLayerWeights,
        hidden_dim: int,
        intermediate_dim: int,
        epsilon: float,
    ) -> None:
        """As transformer_layer_workspace, recorded by the capture under way. The position is the device's at each replay:
        `graph.replay(position)` sets it."""
        if self._capture is None:
            raise LaunchError("there is no capture under way; write `with executor.capture() as graph:` around this")
        layer = self.sequence.require_layer(layer_idx)
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        with self._together(layer) as launch:
            hidden = vector(self.device, input, (shape.hidden,), "input")
            self._layer(launch, hidden, layer, _bound(layer_weights), shape)
        self._capture.runs_layer(self.sequence, layer)

    def transformer_layer_gpu_tiled_profiled(
        self,
        input: Any,
        layer_idx: int,
        layer_prefix: str,
        hidden_dim: int,
        intermediate_dim: int,
        attn_norm_gamma: Any,
        ffn_norm_gamma: Any,
        epsilon: float,
    ) -> GpuBuffer:
        """As transformer_layer_gpu, as one step of the tile profiler, which must be enabled: in a graph that marks the time
        between its kernels, so that none of it is the host's. Waits for the layer's end."""
        shape = self.sequence.shape(hidden_dim, intermediate_dim, epsilon)
        found = self._named_weights(layer_idx, layer_prefix, shape, attn_norm_gamma, ffn_norm_gamma)
        return self._layer_into_new(input, layer_idx, found, shape, self.tile_profiler)

    def incremental_attention_async(self, layer: int, q: Any, k: Any, v: Any) -> tuple[GpuBuffer, int]:
        """The next token's attention in one layer: k and v, f32[kv_heads, head_dim], join the cache; returns a new buffer
        f32[heads, head_dim] and how many positions q attended to. q and k are rotated already."""
        self._at_once("the position is copied to the device")
        s = self.sequence
        layer = s.require_layer(layer)
        query = vector(self.device, q, (s.heads, s.head_dim), "q")
        key, value = (vector(self.device, x, (s.kv_heads, s.head_dim), name) for x, name in ((k, "k"), (v, "v")))
        position = s.lengths[layer]

        def run(out: GpuBuffer) -> None:
            cache = s.cache.layer(layer)
            with self._together(layer) as launch:
                remember(launch, cache, k=key, v=value, position=s.position)
                attend(launch, cache, q=query, out=out, length=s.length)
                s.go_to(position, layer)

        out = self._into_new((s.heads, s.head_dim), run)
        s.took(position, layer)
        return out, position + 1

    def detect_input_outlier(self, input: Any, site: Site | None = None) -> bool:
        """Whether an f32 vector has a massive activation (executor.outliers), found on the device. site: a layer and the
        operation that made the vector (attn_norm, attention, ffn_norm, ffn_swiglu); its verdict is kept until a weight is
        replaced, and where it is true, layers by name and weights indexed from now on take an accurate kernel for what reads
        it."""
        self._at_once("the verdict is copied to the host")
        if site is not None:
            site = self._outliers.checked_site(site, None if self._sequence is None else len(self._sequence.lengths))
        return self._outliers.of(self._together, vector(self.device, input, None, "input"), site)

    def capture_decode(self, model: LanguageModel) -> LaunchGraph:
        """The graph of one decode step of a model on this device, which serves every position; captured unless it is there."""
        return self._decoder(model).graph()

    def replay_decode(self, model: LanguageModel, token: int | None = None) -> int:
        """Run one token (None: the likeliest after the last) by one launch of the graph, and return the likeliest next one, for
        which the host waits once. What changed since the capture (room, profile, weights) makes it capture anew by itself."""
        decoder = self._decoder(model)
        with decoder.busy("replaying a token"):
            decoder.timing = self._timing  # of a model that somebody else has loaded on this device
            decoder.step(token)
            return decoder.argmax()

    def enable_tile_profiling(self) -> TileProfiler:
        """Time launches from now on: those of transformer_layer_gpu_tiled_profiled, of models that were loaded here or given to
        replay_decode, and of blocks `with executor.tile_profiler.step():`, where the device may wait for the host. On a GPU
        that was never asked this measures its bandwidth first. ArgumentError while the debug mode is on, which waits for every
        launch."""
        from executor.model.decode_profile import limit_of

        timing = self._timing
        if timing.profiler is None:
            if self.launcher.observers:
                raise ArgumentError("launches are watched one by one (GPU_DEBUG?), so their times would mean nothing")
            timing.profiler = TileProfiler(self.device, limit_of(self.device))
            self.launcher.observers.append(timing.profiler)
        return timing.profiler

    def disable_tile_profiling(self) -> None:
        """Time nothing more, and forget what was timed."""
        if self._timing.profiler is not None:
            self.launcher.observers.remove(self._timing.profiler)
            self._timing.profiler = None

    @property
    def tile_profiler(self) -> TileProfiler:
        """ArgumentError before enable_tile_profiling."""
        if self._timing.profiler is None:
            raise ArgumentError("tile profiling is off; enable_tile_profiling() switches it on")
        return self._timing.profiler

    def tile_summary(self, by: str = "operation") -> Table:
        """What was timed, as a table; see executor.tile_summary."""
        return tile_table(self.tile_profiler, by)

    @property
    def _timing(self) -> Timing:
        if self._timed is None:
            self._timed = Timing()
        return self._timed

    @property
    def _outliers(self) -> OutlierVerdicts:
        if self._verdicts is None:
            self._verdicts = OutlierVerdicts(self.weights, self.workspace)
        return self._verdicts

    def _decoder(self, model: LanguageModel) -> Decoder:
        from executor.model.generation import LanguageModel

        if instance("model", model, LanguageModel, "load_model").device is not self.device:
            raise ArgumentError(f"the model is another executor's, on {model.device.name}; load it with this one's load_model")
        return model.decoder

    def _named_weights(
        self, layer: int, prefix: str, shape: LayerShape, attn_norm_gamma: Any, ffn_norm_gamma: Any
    ) -> ValidatedLayerWeights:
        layer = self.sequence.require_layer(layer)
        gammas = {"attn_norm": attn_norm_gamma, "ffn_norm": ffn_norm_gamma}
        norms = {name: vector(self.device, gamma, (shape.hidden,), f"{name}_gamma") for name, gamma in gammas.items()}
        flagged = self._outliers.flagged
        return layer_weights(self.weights, prefix, shape, self.profile, layer=layer, flagged=flagged, norms=norms)

    def _layer(self, launch: Batch, hidden: GpuBuffer, layer: int, weights: ValidatedLayerWeights, shape: LayerShape) -> None:
        cache = self.sequence.cache.layer(layer)
        activations = Activations.of(self.workspace, shape, self.sequence.rope_table, hidden)
        transformer_layer(launch, shape, weights, cache, activations)

    def _layer_at(
        self,
        position: int,
        hidden: GpuBuffer,
        layer: int,
        weights: ValidatedLayerWeights,
        shape: LayerShape,
        profiler: TileProfiler | None = None,
    ) -> None:
        """The layer at this position; with a profiler as one step of it."""
        position, layer = whole("position", position), self.sequence.require_layer(layer)
        with self._together(layer) as launch:
            self._layer(launch, hidden, layer, weights, shape)
            self.sequence.go_to(position, layer)
            if profiler is not None:
                profiler.run(self.launcher, launch.take(), position + 1)
        self.sequence.took(position, layer)

    def _layer_into_new(
        self,
        input: Any,
        layer: int,
        weights: ValidatedLayerWeights,
        shape: LayerShape,
        profiler: TileProfiler | None = None,
    ) -> GpuBuffer:
        """The layer at its own next position, on a copy of its input."""
        self._at_once("the input is copied to a new buffer")
        layer = self.sequence.require_layer(layer)
        source = vector(self.device, input, (shape.hidden,), "input")

        def run(hidden: GpuBuffer) -> None:
            self.device.copy(hidden.pointer, source.pointer, source.nbytes)
            hidden.allocation.writes.count += 1
            self._layer_at(self.sequence.lengths[layer], hidden, layer, weights, shape, profiler)

        return self._into_new((shape.hidden,), run)

    def _before_capture(self) -> None:
        if self._sequence is not None:
            self._sequence.follow()

    def _capture_state(self) -> object:
        return super()._capture_state(), self._sequence


def _bound(weights: ValidatedLayerWeights) -> ValidatedLayerWeights:
    return instance("layer_weights", weights, ValidatedLayerWeights, "build_indexed_weights")
