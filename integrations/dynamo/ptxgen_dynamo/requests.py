"""A request as Dynamo's frontend sends it, as options of our scheduler. What would change the answer and is not known here is
refused by its name; what the frontend sees to itself is not looked at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executor.base.errors import shown
from executor.model.sampling import MAX_SEED, Sampler
from executor.text.grammar import Grammar
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError

MOST_LOGPROBS: Final = 20

FRONTENDS: Final = frozenset(
    {
        "model", "mdc_sum", "annotations", "routing", "router_config_override", "router", "tracker", "request_timestamp_ms",
        "migration_state", "migration_link", "jail_seed", "agent_context", "staged_kv_cleanup", "kv_hint", "_HEALTH_CHECK",
        "require_reasoning",
    }
)  # fmt: skip
"""Fields of a request that say how it came here and what happens to its text."""
ROUTING: Final = ("lora_name", "cache_salt")
"""Of `routing`: those that would change what an answer, or a prefix, may be."""

Group = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """prompt: token ids; options: of Scheduler.submit."""

    prompt: list[int]
    options: dict[str, Any]


def asked(request: Group, tokenizer: Tokenizer, context: int) -> Asked:
    """What a request asks for. context: most tokens of a prompt and its answer. ArgumentError for what cannot be."""
    groups = ("sampling_options", "stop_conditions", "output_options")
    _only(request, "the request", {*FRONTENDS, *groups, "token_ids", "eos_token_ids"})
    _refuse(_group(request, "routing"), "routing", ROUTING)
    prompt = list(request.get("token_ids") or ())
    sampling, stop, output = (_group(request, name) for name in groups)
    sampler, seed = _sampler(sampling), sampling.get("seed")
    options = {
        "max_tokens": _max_tokens(stop, len(prompt), context),
        "sampler": sampler,
        "seed": None if seed is None else seed & MAX_SEED,
        "stop": tuple(stop.get("stop") or ()),
        "stop_tokens": _ends(request, stop, tokenizer),
        "grammar": _grammar(sampling.get("guided_decoding")),
        "logprobs": _logprobs(output),
    }
    return Asked(prompt, options)


def _group(request: Group, name: str) -> Group:
    given = request.get(name) or {}
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{name} is {shown(given)}; allowed: an object")
    return given


def _is_asked(value: Any) -> bool:
    """Whether a field asks for anything."""
    return value is not None and value is not False and value != [] and value != {}


def _only(group: Group, where: str, known: set[str]) -> None:
    for name, value in group.items():
        if name not in known and _is_asked(value):
            raise ArgumentError(f"{name} of {where} is not supported by this worker (it is {shown(value)})")


def _refuse(group: Group, where: str, names: Sequence[str]) -> None:
    _only({name: group.get(name) for name in names}, where, set())


def _whole(group: Group, name: str, default: int, low: int, high: int) -> int:
    value = group.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ArgumentError(f"{name} is {shown(value)}; allowed: whole numbers from {low} to {high}")
    return value


def _sampler(sampling: Group) -> Sampler:
    """A setting that is not given is that of OpenAI's API."""
    names = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
    _only(sampling, "sampling_options", {*names, "n", "top_k", "seed", "guided_decoding", "best_of", "length_penalty"})
    for name, neutral in (("n", 1), ("best_of", 1), ("length_penalty", 1)):  # a frontend ends with the first answer
        if sampling.get(name) not in (None, neutral):
            raise ArgumentError(f"{name} is {shown(sampling[name])}; allowed with this worker: {neutral}")
    given = {name: value for name in names if (value := sampling.get(name)) is not None}
    top_k = sampling.get("top_k")
    return Sampler(**({"temperature": 1.0} | given), top_k=0 if top_k in (None, -1) else top_k)


def _max_tokens(stop: Group, prompt: int, context: int) -> int:
    """All that there is room for, if nothing is said."""
    known = {"max_tokens", "stop", "stop_token_ids", "stop_token_ids_hidden", "ignore_eos"}
    _only({name: value for name, value in stop.items() if (name, value) != ("min_tokens", 0)}, "stop_conditions", known)
    room = context - prompt + 1  # the last token of an answer is not computed
    if room < 1:
        raise ArgumentError(f"the prompt has {prompt} tokens; allowed: up to {context}, the context of this worker")
    most = stop.get("max_tokens")
    if most is not None and most > room:
        raise ArgumentError(
            f"the prompt has {prompt} tokens and the answer may have {most}; allowed: together up to {context + 1}, so {room} "
            "for the answer"
        )
    return room if most is None else _whole(stop, "max_tokens", room, 1, room)


def _ends(request: Group, stop: Group, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens that end an answer: those that were asked for, and those of the model unless they are to be ignored."""
    found = {*(stop.get("stop_token_ids") or ()), *(stop.get("stop_token_ids_hidden") or ())}
    if not stop.get("ignore_eos"):
        found |= {*(request.get("eos_token_ids") or ()), *tokenizer.eos_ids}
    return tuple(sorted(found))


def _grammar(guided: Any) -> Grammar | None:
    if not _is_asked(guided):
        return None
    if not isinstance(guided, Mapping):
        raise ArgumentError(f"guided_decoding is {shown(guided)}; allowed: an object")
    _only(guided, "guided_decoding", {"json", "regex", "choice"})
    wanted = {name: value for name, value in guided.items() if _is_asked(value)}
    if len(wanted) != 1:
        raise ArgumentError(f"guided_decoding has {', '.join(sorted(wanted))}; allowed: one of json, regex, choice")
    ((name, value),) = wanted.items()
    if name == "json":
        return Grammar.json_schema(value)
    if name == "regex":
        return Grammar.regex(value)
    return Grammar.lark("start: " + " | ".join(json.dumps(str(one)) for one in value))


def _logprobs(output: Group) -> int | None:
    _only(output, "output_options", {"logprobs", "skip_special_tokens", "formatted_prompt", "return_tokens_as_token_ids"})
    return None if output.get("logprobs") is None else _whole(output, "logprobs", 0, 0, MOST_LOGPROBS)
