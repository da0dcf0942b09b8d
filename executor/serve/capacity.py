"""The scheduler of a model that is served: how many answers run at a time, and in how large a cache."""

from __future__ import annotations

from executor.base.progress import Progress
from executor.model.engine import PAGE_LEN
from executor.model.generation import LanguageModel
from executor.model.row_steps import CHUNK
from executor.model.scheduling.prompt_lookup import PromptLookup
from executor.model.scheduling.scheduler import Scheduler
from ptxgen.errors import ArgumentError


def serving_scheduler(
    model: LanguageModel,
    slots: int,
    cache_tokens: int | None,
    kv_type: str,
    *,
    guesses: bool = False,
    prepares: bool | None = None,
    progress: Progress | None = None,
) -> Scheduler:
    """For `slots` answers at a time. cache_tokens: positions that all of them have together (default: the context for each);
    kv_type: how keys and values are held; guesses: tokens of greedy answers are guessed by what followed before; prepares:
    whether its steps are prepared now (default: on a GPU), reported to `progress`. ArgumentError for a cache in which not
    one answer has room."""
    context = model.context // PAGE_LEN * PAGE_LEN
    if not context:
        raise ArgumentError(f"the context is {model.context} tokens; allowed: at least {PAGE_LEN}")
    pages = slots * context // PAGE_LEN if cache_tokens is None else cache_tokens // PAGE_LEN
    if pages * PAGE_LEN < context:
        raise ArgumentError(f"--cache-tokens {cache_tokens} is less than the context of one answer, {context} tokens")
    scheduler = model.scheduler(
        slots=slots,
        pages=pages,
        page_len=PAGE_LEN,
        context=context,
        rows=max(CHUNK, slots),
        kv_type=kv_type,
        draft=PromptLookup if guesses else None,
    )
    if model.device.kind == "cuda" if prepares is None else prepares:
        scheduler.prepare(progress)
    return scheduler
