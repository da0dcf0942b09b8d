"""`ptxrun generate --prompts` and `--draft`: what a line of a file of prompts may say, and answers by the scheduler, which are
printed as they come."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from executor.base.arguments import described, whole
from executor.base.errors import shown
from executor.commands.sampling import SAMPLING
from executor.commands.session import ModelSession, write_text
from ptxgen.commands import console
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from executor.model.sampling import Sampler
    from executor.model.scheduling.request import Request
    from executor.model.scheduling.scheduler import Scheduler
    from executor.text.grammar import Grammar

KEYS: Final = ("prompt", "id", "max_tokens", "stop", *SAMPLING)

MakeSampler = Callable[[Mapping[str, Any]], "Sampler"]
"""Takes the settings of a line, by their names in SAMPLING."""


@dataclass(frozen=True)
class Prompt:
    """A line of the file. line: counted from 1, and the id of one that has none."""

    line: int
    id: str | int
    text: str
    max_tokens: int
    stop: tuple[str, ...]
    sampler: Sampler


def read_prompts(name: str, content: bytes, max_tokens: int, sampler: MakeSampler) -> list[Prompt]:
    """The prompts of a file of JSON lines, empty lines left out. ArgumentError names file and line for what no line may say:
    other keys, values out of range, an id that an earlier line has; and for no prompt at all."""
    prompts: list[Prompt] = []
    lines: dict[str | int, int] = {}  # by id
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        with _blamed(name, number):
            prompt = _prompt(number, _fields(line), max_tokens, sampler)
            first = lines.setdefault(prompt.id, number)
            if first != number:
                raise ArgumentError(f"the id {described(prompt.id)} is that of line {first}, too; each needs its own")
        prompts.append(prompt)
    if not prompts:
        raise ArgumentError(f'{name} has no prompts; a line of it is such as {{"prompt": "Hello", "max_tokens": 16}}')
    return prompts


def answer_all(
    running: ModelSession,
    name: str,
    prompts: Sequence[Prompt],
    *,
    chat: bool,
    special: bool,
    grammar: Grammar | None,
    draft: str | None,
    batch: int,
    as_json: bool,
) -> None:
    """Answer all prompts, up to `batch` at a time, and print each when it is there: a line of JSON, or its text under its id.
    Raises what made the first of those fail that failed, when all others are done; before any has run ArgumentError, with file
    and line, for one that is too long."""
    ids = [running.prompt_ids(prompt.text, chat=chat, special=special) for prompt in prompts]
    needs = [len(tokens) + prompt.max_tokens for tokens, prompt in zip(ids, prompts, strict=True)]
    start = time.perf_counter()
    with running.scheduler(needs, batch, draft) as scheduler:
        waiting: dict[Request, Prompt] = {}
        for tokens, prompt in zip(ids, prompts, strict=True):
            with _blamed(name, prompt.line):
                request = scheduler.submit(
                    tokens,
                    max_tokens=prompt.max_tokens,
                    sampler=prompt.sampler,
                    seed=prompt.sampler.seed,
                    stop=prompt.stop,
                    grammar=grammar,
                )
            waiting[request] = prompt
        failed: list[Exception] = []
        with _progress() as report:
            for done, request in enumerate(_finished(scheduler, list(waiting)), 1):
                _print(waiting[request], request, as_json)
                report("prompts", done, len(waiting))
                if request.error is not None:
                    failed.append(request.error)
        _print_sum(running, scheduler, list(waiting), time.perf_counter() - start)
    if failed:
        raise failed[0]


def _progress() -> AbstractContextManager[console.Report]:
    """A bar, unless the answers go to a terminal: they are the progress there, and a bar would stand in them."""
    return nullcontext(lambda stage, done, total: None) if sys.stdout.isatty() else console.progress()


def accepted_drafts(accepted: int, drafted: int) -> str:
    """What is said of guesses."""
    return f"drafts: {accepted} of {console.counted(drafted, 'token')} accepted"


def _finished(scheduler: Scheduler, requests: list[Request]) -> Iterator[Request]:
    """Run all; each as soon as it has finished."""
    seen = 0
    while requests:
        scheduler.step()
        count = sum(scheduler.status().finished.values())
        if count == seen:
            continue
        seen = count
        yield from [request for request in requests if request.state == "finished"]
        requests = [request for request in requests if request.state != "finished"]


def _print(prompt: Prompt, request: Request, as_json: bool) -> None:
    if as_json:
        facts: dict[str, Any] = {
            "id": prompt.id,
            "line": prompt.line,
            "text": request.text,
            "token_ids": request.tokens,
            "stopped": request.stopped,
            "seed": None if prompt.sampler.is_greedy else request.seed,
            "usage": asdict(request.usage),
        }
        console.print_json_line(facts | ({} if request.error is None else {"error": str(request.error)}))
        return
    count = console.counted(len(request.tokens), "token")
    console.echo(f"{prompt.id}: {count}, stopped: {request.stopped}", bold=True)
    write_text(request.text)
    console.echo("\n")


def _print_sum(running: ModelSession, scheduler: Scheduler, requests: Sequence[Request], seconds: float) -> None:
    tokens = sum(len(request.tokens) for request in requests)
    console.echo(
        f"{console.counted(len(requests), 'prompt')}, {console.counted(tokens, 'token')}, {tokens / seconds:.1f} tokens/s, "
        f"{running.model.device.name}",
        err=True,
    )
    status = scheduler.status()
    if status.drafted_tokens:
        console.echo(accepted_drafts(status.accepted_tokens, status.drafted_tokens), err=True)


class _blamed:
    """A block whose ArgumentErrors are those of a line of a file."""

    def __init__(self, name: str, line: int) -> None:
        self.place = f"{name}:{line}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ArgumentError):
            raise ArgumentError(f"{self.place}: {error}") from error


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"not JSON ({error}); allowed: an object a line, with the keys {', '.join(KEYS)}") from error
    if not isinstance(fields, dict):
        raise ArgumentError(f"{described(fields)}; allowed: an object with the keys {', '.join(KEYS)}")
    for key in fields:
        if key not in KEYS:
            raise ArgumentError(f"there is no key {shown(key)}; allowed: {', '.join(KEYS)}")
    return fields


def _prompt(line: int, fields: dict[str, Any], max_tokens: int, sampler: MakeSampler) -> Prompt:
    text, id, stop = fields.get("prompt"), fields.get("id", line), fields.get("stop", ())
    if not isinstance(text, str):
        missing = "is missing" if "prompt" not in fields else f"is {described(text)}"
        raise ArgumentError(f"prompt {missing}; allowed: text")
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise ArgumentError(f"id is {described(id)}; allowed: text or a whole number")
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence) or not all(isinstance(one, str) and one for one in stops):
        raise ArgumentError(f"stop is {shown(stop)}; allowed: text of at least one character, or a list of such")
    return Prompt(
        line,
        id,
        text,
        whole("max_tokens", fields.get("max_tokens", max_tokens), 1),
        tuple(stops),
        sampler({name: fields[name] for name in SAMPLING if name in fields}),
    )
