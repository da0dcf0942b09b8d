"""`/v1/chat/completions`: a conversation, and the next message of it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from executor.base.errors import ModelError
from executor.model.logprobs import TokenLogprob
from executor.model.scheduling.token_sequence import Usage
from executor.serve.answers import News
from executor.serve.delivery import delivered
from executor.serve.endpoint import Events
from executor.serve.errors import ApiError, blamed
from executor.serve.fields import RequestFields
from executor.serve.messages import messages_of
from executor.serve.parameters import MOST_LOGPROBS, AnswerParameters, common
from executor.serve.service import Served, Service
from executor.serve.tool_calls import CallReader, ToolCall, silent_token
from executor.serve.tool_rules import rules_of
from executor.serve.tools import Tools, tools_of
from executor.serve.wire import FINISH, chat_logprobs, usage_of
from executor.text.call_ids import IdForm
from executor.text.grammar import Grammar, GrammarGuide
from executor.text.template_habits import Habits, habits_of
from ptxgen.errors import ArgumentError

FORMATS: Final = ("text", "json_object", "json_schema")
_UNSUPPORTED: Final = {
    "audio": ((), "the model says nothing aloud"),
    "modalities": ((["text"],), "the answer is text"),
    "functions": (([],), "it is deprecated; tools has taken its place"),
    "function_call": (("none",), "it is deprecated; tool_choice has taken its place"),
    "prediction": ((), "no prediction is used"),
    "reasoning_effort": ((), "what a template knows of it is set by chat_template_kwargs"),
    "verbosity": ((), "no template knows it"),
    "web_search_options": ((), "nothing is searched"),
    "service_tier": (("auto", "default"), "there is one tier"),
    "store": ((False,), "nothing is stored"),
    "moderation": ((), "nothing is moderated"),
}


@dataclass(frozen=True)
class _Form:
    """What the answer must be, made a grammar beside the event loop. param: whose fault it is if that cannot be followed;
    tools: the calls, where there is no schema."""

    param: str
    json_schema: Mapping[str, Any] | bool | None = None
    tools: Tools = field(default_factory=Tools)

    def grammar(self, served: Served, ends: frozenset[int]) -> Grammar | None:
        """None where the answer is free. ApiError for what cannot be followed, as far as its beginning shows it."""
        with blamed(self.param):
            made = self._made(served)
            if made is not None:
                GrammarGuide(made, served.tokenizer, ends).allowed(served.tokenizer.vocab_size)
        return made

    def _made(self, served: Served) -> Grammar | None:
        if self.json_schema is not None:
            return Grammar.json_schema(self.json_schema)
        rules = rules_of(self.tools, served.tokenizer)
        return None if rules is None else Grammar.lark(rules)


async def chat(service: Service, body: Any, events: Events) -> dict[str, Any] | None:
    """Answer a conversation `n` times."""
    served = service.served
    if not served.tokenizer.chat_templates.named:
        raise ApiError("the model has no chat template; use /v1/completions", param="model", code="model_error")
    fields = RequestFields(body)
    asked = common(fields, served, "messages", {"max_completion_tokens": 1, "max_tokens": 1}, None)
    named = fields.text("chat_template")
    tools = tools_of(fields, _template(served, named, tools=True))
    template = _template(served, named, tools=tools.shown is not None)
    messages = messages_of(fields.required("messages", "a list of messages"), template)
    form = _form(fields, tools)
    logprobs = _logprobs(fields)
    variables = fields.take("chat_template_kwargs") or {}
    if not isinstance(variables, Mapping):
        raise fields.wrong("chat_template_kwargs", variables, "an object of variables that the chat template knows")
    fields.only(_UNSUPPORTED)
    fields.finish()

    def prepared() -> tuple[list[int], Habits, Grammar | None]:
        words = served.tokenizer
        calls = tools.convention is not None or any({"tool_calls", "tool_call_id"} & message.keys() for message in messages)
        try:
            habits = habits_of(template, words.bos_token, words.eos_token, calls=calls)
            with blamed("messages"):
                ids = served.chat(habits.fit(messages), tools=tools.shown, variables=dict(variables), template=named)
        except ModelError as error:
            raise ApiError(str(error), param="messages", code="template_error") from error
        ends = frozenset() if asked.ignore_eos else served.tokenizer.eos_ids
        return ids, habits, None if form is None else form.grammar(served, ends)

    with service.places.taking(asked.n):
        ids, habits, grammar = await service.on_host(prepared)
        options = {"logprobs": logprobs, "grammar": grammar, "spelt": _markers(served, tools)}
        prompts = [(ids, asked.options(len(ids), choice, served) | options) for choice in range(asked.n)]
        earlier = sum(len(message.get("tool_calls", ())) for message in messages)
        answer = _Answer(served, asked, tools, logprobs is not None, habits.ids, earlier)
        return await delivered(service, asked, prompts, answer, events, None if form is None else form.param)


def _template(served: Served, name: str | None, *, tools: bool) -> str:
    """The template that a conversation is rendered by. ApiError for a name that the file does not have, and where it has no
    default one and none is named."""
    with blamed("chat_template"):
        try:
            return served.tokenizer.chat_templates.choose(name, tools=tools)
        except ModelError as error:
            raise ArgumentError(str(error).removeprefix(f"{error.path}: ")) from error


@dataclass
class _Choice:
    """One answer so far. end: once it has one, its word for it, and what it took."""

    reader: CallReader | None
    text: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    usage: Usage | None = None

    def read(self, news: News) -> Iterator[str | ToolCall]:
        """The text and the calls in what is new."""
        if self.reader is None:
            if news.text:
                yield news.text
            return
        yield from self.reader.push(news.text)
        if news.end is not None:
            yield from self.reader.finish()


class _Answer:
    """What has come so far, choice by choice."""

    def __init__(
        self, served: Served, asked: AnswerParameters, tools: Tools, logprobs: bool, id_form: IdForm, earlier: int
    ) -> None:
        """id_form: of the ids of calls; earlier: how many calls there were in the conversation."""
        self._served = served
        self._id_form: IdForm = id_form
        self._earlier = earlier
        self._asked = asked
        self._logprobs = logprobs
        self._choices = [
            _Choice(None if tools.convention is None else CallReader(tools, tools.convention)) for _ in range(asked.n)
        ]
        self.head: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk" if asked.stream else "chat.completion",
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": served.fingerprint,
        }

    def opening(self) -> list[dict[str, Any]]:
        """The first chunk of each choice: who speaks."""
        return [self._chunk(at, {"role": "assistant", "content": ""}) for at in range(self._asked.n)]

    def add(self, news: News) -> list[dict[str, Any]]:
        """Keep what is new; the chunks of a stream that say it."""
        choice = self._choices[news.index]
        deltas: list[dict[str, Any]] = []
        for part in choice.read(news):
            if isinstance(part, ToolCall):
                choice.calls.append(part.as_json(len(choice.calls), self._id_form, self._earlier))
                deltas.append({"tool_calls": choice.calls[-1:]})
            elif self._asked.stream:
                deltas.append({"content": part})
            else:
                choice.text.append(part)
        if news.end is not None:
            calls = choice.calls and FINISH[news.end.stopped] == "stop"
            choice.finish, choice.usage = "tool_calls" if calls else FINISH[news.end.stopped], news.end.usage
        if not self._asked.stream:
            choice.logprobs += news.logprobs
            return []
        logprobs = chat_logprobs(self._served.tokenizer, news.logprobs) if news.logprobs else None
        if logprobs is not None and not deltas:
            deltas = [{}]
        chunks = [self._chunk(news.index, delta, logprobs if at == 0 else None) for at, delta in enumerate(deltas)]
        return chunks if choice.finish is None else [*chunks, self._chunk(news.index, {}, None, choice.finish)]

    def whole(self) -> dict[str, Any]:
        """The answer that is no stream."""
        return self.head | {"choices": list(map(self._whole, range(self._asked.n))), "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        """Of all choices; the prompt counts once."""
        used = [choice.usage for choice in self._choices if choice.usage is not None]
        return usage_of(used[:1], used)

    def _whole(self, at: int) -> dict[str, Any]:
        choice = self._choices[at]
        text = "".join(choice.text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if choice.calls:
            calls = [{key: value for key, value in call.items() if key != "index"} for call in choice.calls]
            message |= {"content": text or None, "tool_calls": calls}
        logprobs = chat_logprobs(self._served.tokenizer, choice.logprobs) if self._logprobs else None
        return {"index": at, "message": message, "logprobs": logprobs, "finish_reason": choice.finish}

    def _chunk(self, at: int, delta: Mapping[str, Any], logprobs: Any = None, finish: str | None = None) -> dict[str, Any]:
        choice = {"index": at, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = self.head | {"choices": [choice]}
        return chunk | {"usage": None} if self._asked.include_usage else chunk


def _markers(served: Served, tools: Tools) -> list[int]:
    """The control tokens that mark calls, which texts do not show: what reads the calls needs them."""
    if tools.convention is None:
        return []
    markers = [marker for marker in (tools.convention.opening, tools.convention.closing) if marker]
    found = [silent_token(marker, served.tokenizer) for marker in markers]
    return [token for token in found if token is not None]


def _logprobs(fields: RequestFields) -> int | None:
    """How many of the likeliest tokens are reported at each position; None: no probabilities."""
    wanted, top = fields.flag("logprobs"), fields.whole("top_logprobs", None, 0, MOST_LOGPROBS)
    if top is not None and not wanted:
        raise ApiError("top_logprobs goes with logprobs: true", param="top_logprobs")
    return (top or 0) if wanted else None


def _form(fields: RequestFields, tools: Tools) -> _Form | None:
    """What the answer must be, by response_format or by the tools."""
    given = fields.take("response_format")
    form = _Form("tools", tools=tools) if tools.callable else None
    if given is None:
        return form
    asked = RequestFields(given, "response_format")
    kind = asked.required("type", ", ".join(FORMATS))
    if kind not in FORMATS:
        raise asked.wrong("type", kind, ", ".join(FORMATS))
    schema: Any = {"type": "object"}
    if kind == "json_schema":
        named = RequestFields(asked.required("json_schema", "an object with name and schema"), "response_format.json_schema")
        named.text("name")
        named.text("description")
        named.flag("strict")  # the schema is held in any case
        schema = named.required("schema", "a JSON schema")
        if not isinstance(schema, Mapping | bool):
            raise named.wrong("schema", schema, "a JSON schema")
        named.finish()
    asked.finish()
    if kind == "text":
        return form
    if tools.callable:
        raise ApiError(
            f"response_format {kind} does not go with tools: an answer has one form; leave one of them out, or set tool_choice "
            "to none",
            param="response_format",
        )
    return _Form("response_format", json_schema=schema)
