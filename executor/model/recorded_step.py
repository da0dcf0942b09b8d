"""The launches of a model's steps, recorded without running them: the model is laid out in a dry run, and a step's graph is
captured there by the code that captures it on a GPU."""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

from executor.base.arguments import whole
from executor.choice.choice import GpuProfile
from executor.device.dry_run import DryRunDevice
from executor.launch.launch import LayerOperation
from executor.launch.modules import Modules
from executor.launch.recorded import NoCode, RecordedLaunch, launches_of
from executor.memory.repacking import Repacking
from executor.memory.weights import TensorFile, load_weights
from executor.model.context import new_cache
from executor.model.decoder import Decoder
from executor.model.engine import PAGE_LEN, Engine
from executor.model.matrices import repacked
from executor.model.row_steps import MOST_ROWS
from executor.model.spec import ModelSpec
from executor.model.split import loaded
from executor.model.step import Row
from executor.model.tensors import expected_tensors
from ptxgen.errors import ArgumentError


class DryModel:
    """A model on a device that is not there, of whose steps each can be recorded. Raises what loading the model would raise,
    but for want of memory.

    flagged: operations whose output has an outlier (executor/layers/outliers.py), which only running the model shows: what
    reads it has an accurate kernel."""

    def __init__(
        self,
        file: TensorFile,
        spec: ModelSpec,
        context: int,
        device: DryRunDevice,
        profile: GpuProfile,
        flagged: Collection[LayerOperation] = (),
    ) -> None:
        file, spec = loaded(file, spec, device.ranks)
        weights = load_weights(device, file, list(expected_tensors(spec)), repacking=Repacking(repacked(file, spec, profile)))
        cache = new_cache(device, spec, context)
        modules = cast(Modules, NoCode(device.as_device))
        self._decoder = _DryDecoder(file, spec, weights, cache, modules, profile)
        self._decoder.flagged = frozenset(flagged)

    def token(self, *, head: bool = True) -> tuple[RecordedLaunch, ...]:
        """What a token of a lone sequence launches, as `generate` decodes it; without `head`, as one of a prompt that is read
        token by token."""
        return launches_of(self._decoder.graph(head=head))

    def prompt(self, tokens: int) -> tuple[RecordedLaunch, ...]:
        """What the first step of a prompt of so many tokens launches: it reads most of them, or one where the context is such
        that prompts are read token by token (Decoder.feed). ArgumentError for more than the context."""
        return launches_of(self._decoder.prompt_graph(tokens))

    def sequences(self, count: int, kv_type: str = "f32") -> tuple[RecordedLaunch, ...]:
        """What a step of so many sequences launches in which each decodes one token, as a scheduler or server runs it. Errors
        as Engine's."""
        count = whole("sequences", count, 1, MOST_ROWS)
        if self._decoder.context < PAGE_LEN:
            raise ArgumentError(f"the context is {self._decoder.context} tokens; for several sequences at least {PAGE_LEN}")
        engine = Engine(self._decoder, slots=count, rows=count, kv_type=kv_type)
        for slot in range(count):
            engine.set_table(slot, [slot])
        launches = launches_of(engine.graph_of([Row(slot, 0, 0, scored=True) for slot in range(count)]))
        engine.free()
        return launches


class _DryDecoder(Decoder):
    """One that cannot look for outliers: nothing runs."""

    def _find_outliers(self) -> None:
        """The operations that it was given are all."""
