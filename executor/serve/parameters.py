"""The parameters that completions and chat have in common: how tokens are chosen, what ends an answer, how it is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from executor.base.arguments import described
from executor.base.errors import shown
from executor.model.sampling import MAX_SEED, Sampler
from executor.serve.errors import ApiError, blamed
from executor.serve.fields import RequestFields
from executor.serve.service import Served

MOST_CHOICES: Final = 128
"""Answers of one request."""
MOST_STOPS: Final = 16
MOST_BIASES: Final = 1024
MOST_LOGPROBS: Final = 20


@dataclass(frozen=True)
class AnswerParameters:
    """n: answers to each prompt; seed: of the first, each further one has the next; stream: as events, with the tokens counted
    in a last one if include_usage; prompt, limit: the parameters that say what is answered, and max_tokens if one does."""

    sampler: Sampler
    seed: int | None
    n: int
    stop: tuple[str, ...]
    ignore_eos: bool
    max_tokens: int | None
    stream: bool
    include_usage: bool
    prompt: str
    limit: str | None

    def options(self, prompt_tokens: int, choice: int, served: Served) -> dict[str, Any]:
        """What Scheduler.submit is given for one answer. ApiError if prompt and answer are longer than the context."""
        context, room = served.context, served.context - prompt_tokens + 1  # the last token of an answer is not computed
        if prompt_tokens > context:
            raise ApiError(
                f"the prompt has {prompt_tokens} tokens; allowed: up to {context}, the context of this server",
                param=self.prompt,
                code="context_length_exceeded",
            )
        if self.max_tokens is not None and self.max_tokens > room:
            raise ApiError(
                f"the prompt has {prompt_tokens} tokens and the answer may have {described(self.max_tokens)}; allowed: "
                f"together up to {context + 1}, so {room} for the answer",
                param=self.limit or self.prompt,
                code="context_length_exceeded",
            )
        return {
            "max_tokens": room if self.max_tokens is None else self.max_tokens,
            "sampler": self.sampler,
            "seed": None if self.seed is None else (self.seed + choice) & MAX_SEED,
            "stop": self.stop,
            "stop_tokens": () if self.ignore_eos else None,
        }


def common(
    fields: RequestFields, served: Served, prompt: str, most_tokens: Mapping[str, int], default_tokens: int | None
) -> AnswerParameters:
    """Take what both kinds of completions have. prompt: the parameter that is answered; most_tokens: those that say how many
    tokens an answer may have, of which one may be given, and the least that each may be; default_tokens: None where an answer
    may be as long as the context."""
    require_model(fields, served)
    stream = fields.flag("stream")
    include_usage = _stream_options(fields, stream)
    limits = {name: limit for name, least in most_tokens.items() if (limit := fields.whole(name, None, least)) is not None}
    if len(set(limits.values())) > 1:
        raise ApiError(f"{' and '.join(limits)} differ; give one of them", param=next(iter(limits)))
    asked = AnswerParameters(
        sampler=_sampler(fields, served),
        seed=fields.whole("seed", None, -(1 << 63), MAX_SEED),
        n=fields.whole("n", 1, 1, MOST_CHOICES) or 1,
        stop=fields.texts("stop", MOST_STOPS),
        ignore_eos=fields.flag("ignore_eos"),
        max_tokens=next(iter(limits.values()), default_tokens),
        stream=stream,
        include_usage=include_usage,
        prompt=prompt,
        limit=next(iter(limits), None),
    )
    return asked


def require_model(fields: RequestFields, served: Served) -> None:
    """ApiError 404 for another model than the one that is served."""
    name = fields.text("model", served.name)
    if name != served.name:
        raise ApiError(
            f"there is no model {shown(name)}; allowed: {served.name}", status=404, param="model", code="model_not_found"
        )


def _sampler(fields: RequestFields, served: Served) -> Sampler:
    """OpenAI's settings, and those that other servers have beside them."""
    settings: dict[str, Any] = {
        "temperature": fields.number("temperature", 1.0, 0, 2),
        "top_p": fields.number("top_p", 1.0, 0, 1),
        "presence_penalty": fields.number("presence_penalty", 0.0, -2, 2),
        "frequency_penalty": fields.number("frequency_penalty", 0.0, -2, 2),
        "top_k": fields.whole("top_k", 0, 0),
        "min_p": fields.number("min_p", 0.0, 0, 1),
        "typical_p": fields.number("typical_p", 1.0),
        "repetition_penalty": fields.number("repetition_penalty", 1.0),
        "logit_bias": _biases(fields, served.tokenizer.vocab_size),
    }
    if settings["top_p"] == 0:  # the likeliest token, as temperature 0
        settings |= {"top_p": 1.0, "temperature": 0.0}
    for name, value in settings.items():  # each alone, so that an error has its name
        with blamed(name):
            Sampler(**{name: value})
    return Sampler(**settings)


def _biases(fields: RequestFields, vocab: int) -> Mapping[int, float]:
    """-100 forbids a token, as OpenAI has it: no logits differ by so much."""
    given = fields.take("logit_bias")
    if given is None:
        return {}
    if not isinstance(given, Mapping) or len(given) > MOST_BIASES:
        raise fields.wrong("logit_bias", given, f"an object of up to {MOST_BIASES} numbers from -100 to 100, by token id")
    found: dict[int, float] = {}
    for token, bias in given.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10 and int(token) < vocab):
            raise ApiError(
                f"logit_bias names token {shown(token)}; allowed: whole numbers from 0 to {vocab - 1}", param="logit_bias"
            )
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise fields.wrong("logit_bias", bias, "numbers from -100 to 100, by token id")
        found[int(token)] = float("-inf") if bias == -100 else float(bias)
    return found


def _stream_options(fields: RequestFields, stream: bool) -> bool:
    """Whether the tokens are counted at the end of a stream."""
    given = fields.take("stream_options")
    if given is None:
        return False
    if not stream:
        raise ApiError("stream_options goes with stream: true", param="stream_options")
    options = RequestFields(given, "stream_options")
    include_usage = options.flag("include_usage")
    options.only({"include_obfuscation": ((False,), "no padding is sent")})
    options.finish()
    return include_usage
