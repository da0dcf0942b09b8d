"""The engine that Dynamo's worker drives: it starts, answers requests with token ids, and ends when the last is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from dynamo._core import Context
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.engine import GenerateChunk, GenerateRequest
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.metrics import register_engine_registry
from dynamo.common.backend.publisher import KvEventSource, PushSource
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument

from executor.base.errors import DeviceError, OutOfMemory
from executor.serve.worker import WorkerStopped
from ptxgen.errors import ArgumentError, PtxGenError
from ptxgen_dynamo.answering import RANK, Answering, Snapshots
from ptxgen_dynamo.chunks import chunk_of
from ptxgen_dynamo.model import LoadedModel, kept_tokenizer, load, name_of
from ptxgen_dynamo.prefixes import PrefixEvents, Publisher
from ptxgen_dynamo.requests import asked
from ptxgen_dynamo.settings import Settings, parsed

_log = logging.getLogger(__name__)


class PtxgenEngine(LLMEngine):
    """One model on one device. tokenizer: the folder that Dynamo tokenises from; failure: why it cannot start. All but
    `from_args` is called by Dynamo's worker, on its event loop."""

    def __init__(self, settings: Settings, tokenizer: Path) -> None:
        self.settings = settings
        self.tokenizer = tokenizer.resolve()
        self.failure: PtxGenError | None = None
        self._started: tuple[LoadedModel, Answering] | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[PtxgenEngine, WorkerConfig]:
        """An engine, and how Dynamo finds it."""
        settings = parsed(argv)
        engine = cls(settings, settings.tokenizer or kept_tokenizer(settings))
        config = WorkerConfig(
            namespace=settings.namespace,
            component=settings.component,
            model_name=str(engine.tokenizer),
            served_model_name=name_of(settings),
            discovery_backend=settings.discovery_backend,
            request_plane=settings.request_plane,
            event_plane=settings.event_plane,
        )
        return engine, config

    async def start(self, worker_id: int) -> EngineConfig:
        """Load the model and begin. Errors as those of `ptxrun serve`."""
        try:
            loaded = await asyncio.to_thread(load, self.settings)
        except PtxGenError as error:
            self.failure = error
            raise
        self._started = loaded, Answering(loaded)
        engine, pool = loaded.scheduler.engine, loaded.scheduler.pool
        _log.info("%s on %s, %d answers at a time", name_of(self.settings), loaded.model.device.name, engine.slots)
        return EngineConfig(
            model=str(self.tokenizer),
            served_model_name=name_of(self.settings),
            llm=LlmRegistration(
                context_length=engine.context,
                kv_cache_block_size=pool.page_len,
                total_kv_blocks=pool.pages,
                max_num_seqs=engine.slots,
                max_num_batched_tokens=engine.rows,
            ),
        )

    async def generate(self, request: GenerateRequest, context: Context) -> AsyncGenerator[GenerateChunk, None]:
        """The answer to a request, chunk by chunk. InvalidArgument for what can never be answered; EngineShutdown where this
        worker answers no more, and the frontend may give the request to another one."""
        loaded, answering = self._require_started()
        tokenizer = loaded.model.tokenizer
        try:
            # On a thread beside the event loop: a grammar takes time.
            wanted = await asyncio.to_thread(asked, request, tokenizer, loaded.scheduler.engine.context)
            with_logprobs = wanted.options["logprobs"] is not None
            async for news in answering.answer(context.id(), wanted.prompt, wanted.options):
                if news.end is not None and news.end.stopped == "cancelled" and not context.is_stopped():
                    raise EngineShutdown("this worker ended before the answer did")
                if chunk := chunk_of(news, tokenizer, with_logprobs=with_logprobs):
                    yield chunk
        except ArgumentError as error:
            raise InvalidArgument(str(error)) from error
        except (WorkerStopped, DeviceError, OutOfMemory) as error:
            raise EngineShutdown(str(error)) from error

    async def abort(self, context: Context) -> None:
        """The client has gone."""
        if self._started is not None:
            self._started[1].cancel(context.id())

    async def cleanup(self) -> None:
        """Let the answers that run end, in the time that the settings say, and give the device back. Again: nothing."""
        started, self._started = self._started, None
        if started is not None:
            await started[1].end(self.settings.drain_seconds)

    async def kv_event_sources(self) -> list[KvEventSource]:
        """The pages that hold beginnings of texts, as the pool knows them."""

        def observe(publisher: Publisher) -> None:
            self._require_started()[0].scheduler.pool.observer = PrefixEvents(publisher)

        return [PushSource(on_ready=observe, dp_rank=RANK)]

    def component_metrics_dp_ranks(self) -> list[int]:
        """One."""
        return [RANK]

    def attach_snapshot_publisher(self, publisher: Snapshots) -> None:
        """Takes what the cache holds."""
        self._require_started()[1].snapshots = publisher

    async def register_prometheus(self, metrics: Any) -> None:
        """The metrics of `ptxrun serve`, on Dynamo's page of them."""
        register_engine_registry(metrics, self._require_started()[1].metrics.registry, prefix_filters=["ptxrun_"])

    async def health_check_payload(self) -> dict[str, Any]:
        """A request for one token."""
        return build_health_check_payload(bos_token_id=self._require_started()[0].model.tokenizer.bos_id or 0)

    def _require_started(self) -> tuple[LoadedModel, Answering]:
        if self._started is None:
            raise EngineShutdown("this worker has not started, or has ended")
        return self._started
