"""The engine as Dynamo's worker calls it, on the emulator, without a frontend: how answers end before their time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from dynamo._core import Context
from dynamo.common.backend.engine import GenerateChunk, GenerateRequest
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument
from ptxgen_dynamo.engine import PtxgenEngine

MOST = 300


class Asker:
    """What is used of Dynamo's Context."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gone = False

    def id(self) -> str:
        return self.name

    def is_stopped(self) -> bool:
        return self.gone


def request(tokens: int = MOST, **sampling: Any) -> GenerateRequest:
    return {
        "token_ids": [5, 6, 7],
        "stop_conditions": {"max_tokens": tokens, "ignore_eos": True},
        "sampling_options": {"temperature": 0.0} | sampling,
    }


async def chunks_of(engine: PtxgenEngine, wanted: GenerateRequest, asker: Asker, seen: list[GenerateChunk]) -> None:
    async for chunk in engine.generate(wanted, cast(Context, asker)):
        seen.append(chunk)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def run(work: Callable[[PtxgenEngine], Awaitable[None]], model: Path, kernels: Path, drain: float) -> None:
    """With an engine that has started; the work ends it."""

    async def main() -> None:
        words = [str(model), "--device", "emulator", "--slots", "4", "--drain-seconds", str(drain)]
        engine, config = await PtxgenEngine.from_args(words)
        assert config.served_model_name == model.stem
        told = await engine.start(1)
        assert told.llm is not None
        assert (told.llm.context_length, told.llm.kv_cache_block_size, told.llm.total_kv_blocks) == (512, 32, 64)
        try:
            await work(engine)
        finally:
            await engine.cleanup()

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PTXGEN_CACHE_DIR", str(kernels))
        patched.setenv("PTXGEN_BATCH_INVARIANT", "1")
        asyncio.run(main())


def test_an_abort_ends_one_answer_and_harms_no_other(model: Path, kernels: Path) -> None:
    async def work(engine: PtxgenEngine) -> None:
        seen: dict[str, list[GenerateChunk]] = {"gone": [], "stays": []}
        askers = {name: Asker(name) for name in seen}
        asking = [asyncio.create_task(chunks_of(engine, request(), askers[name], seen[name])) for name in seen]
        await until(lambda: len(seen["gone"]) > 2)
        askers["gone"].gone = True
        await engine.abort(cast(Context, askers["gone"]))
        await asyncio.gather(*asking)
        assert seen["gone"][-1]["finish_reason"] == "cancelled"
        assert seen["gone"][-1]["completion_usage"]["completion_tokens"] < MOST
        ids = [token for chunk in seen["stays"] for token in chunk["token_ids"]]
        assert len(ids) == MOST
        assert seen["stays"][-1]["finish_reason"] == "length"
        assert [token for chunk in seen["gone"] for token in chunk["token_ids"]] == ids[: sum(
            len(chunk["token_ids"]) for chunk in seen["gone"]
        )]  # fmt: skip
        with pytest.raises(InvalidArgument, match="n is 2; allowed with this worker: 1"):
            await chunks_of(engine, request(n=2), Asker("two"), [])

    run(work, model, kernels, drain=30)


def test_what_is_not_answered_by_the_end_of_the_drain_is_left_for_other_workers(model: Path, kernels: Path) -> None:
    """EngineShutdown is what a frontend gives requests to others for."""

    async def work(engine: PtxgenEngine) -> None:
        seen: list[GenerateChunk] = []
        asking = asyncio.create_task(chunks_of(engine, request(), Asker("late"), seen))
        await until(lambda: len(seen) > 2)
        await engine.cleanup()
        with pytest.raises(EngineShutdown, match="this worker ended before the answer did"):
            await asking
        assert "finish_reason" not in seen[-1]
        with pytest.raises(EngineShutdown, match="has ended"):
            await chunks_of(engine, request(), Asker("later"), [])

    run(work, model, kernels, drain=0.01)
