"""Functions that a model may call: shown by the template, held to their form where that is asked for, read out of answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.serve.errors import ApiError
from executor.serve.fields import RequestFields
from executor.serve.messages import messages_of
from executor.serve.tool_calls import CallReader, ToolCall
from executor.serve.tool_rules import rules_of
from executor.serve.tools import CONVENTIONS, Convention, Tools, tools_of
from executor.text.grammar import Grammar, GrammarGuide
from executor.text.template_habits import Habits
from executor.text.tokenizer import Tokenizer
from tests.executor.model.fake_engine import FakeEngine
from tests.executor.serve.conftest import TEMPLATE, model_file
from tests.executor.serve.local import NAME, VOCABULARY, Local, run, tokenizer_of
from tests.synthetic import Q, write_model

CHAT: Any = [{"role": "user", "content": "hello"}]
HERMES, MISTRAL, LLAMA = CONVENTIONS


def roomy() -> FakeEngine:
    """With room for the tools in a prompt."""
    return FakeEngine(vocab=VOCABULARY, context=512, pages=512, page_len=4, rows=64)


def function(name: str = "f", kind: str = "integer", **more: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/X"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    parameters["$defs"] = {"X": {"type": kind}}
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": parameters, **more}}


def tools(*functions: Any, template: str = TEMPLATE, **more: Any) -> Tools:
    return tools_of(RequestFields({"tools": list(functions) or [function()], **more}), template)


def read(convention: Convention, *texts: str) -> list[str | tuple[str, Any]]:
    """What is read of an answer that comes in these pieces: texts, joined, and calls."""
    reader = CallReader(tools(function("f"), function("g")), convention)
    parts = [part for text in texts for part in reader.push(text)] + list(reader.finish())
    found: list[str | tuple[str, Any]] = []
    for part in parts:
        if isinstance(part, ToolCall):
            found.append((part.name, json.loads(part.arguments)))
        elif found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


F1 = ("f", {"x": 1})
CASES: list[tuple[Convention, str, list[Any]]] = [
    (HERMES, 'so <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', ["so", F1]),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>\n',
        [F1, ("g", {})],
    ),
    (HERMES, "a <tool_cal", ["a <tool_cal"]),
    (HERMES, "just text \n", ["just text \n"]),
    (
        HERMES,
        '<tool_call>{"name": "h", "arguments": {}}</tool_call>',
        ['<tool_call>{"name": "h", "arguments": {}}</tool_call>'],
    ),
    (HERMES, '<tool_call>{"name": "f", "arg', ['<tool_call>{"name": "f", "arg']),
    (
        HERMES,
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>!',
        ['<tool_call>{"name": "f", "arguments": "x"}</tool_call>!'],
    ),
    (HERMES, "<tool_call>[1]</tool_call>", ["<tool_call>[1]</tool_call>"]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": 1}}', [F1]),  # the end of the answer ends the call
    (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]', [F1, ("g", {})]),
    (MISTRAL, "[TOOL", ["[TOOL"]),
    (LLAMA, '{"name": "f", "parameters": {"x": 1}}', [F1]),
    (LLAMA, '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}', [F1, ("g", {})]),
    (LLAMA, '{"answer": 42}', ['{"answer": 42}']),
    (LLAMA, 'It is {"name": "f", "parameters": {"x": 1}}', ['It is {"name": "f", "parameters": {"x": 1}}']),
    (LLAMA, " \n", [" \n"]),
    (HERMES, '<tool_call>{"name": "f"}<tool_call>{"name": "g"}</tool_call> so', [("f", {}), ("g", {}), " so"]),
    (HERMES, '<tool_call>\n{"name": "f"}\n{"name": "g"}\n</tool_call>', [("f", {}), ("g", {})]),
    (HERMES, '<tool_call>{"name": "f"} so </tool_call>', ['<tool_call>{"name": "f"} so </tool_call>']),
    (HERMES, '<tool_call>so <tool_call>{"name": "f"}</tool_call>', ["<tool_call>so", ("f", {})]),
    (HERMES, '<tool_call>{</tool_call><tool_call>{"name": "g"}</tool_call>', ["<tool_call>{</tool_call>", ("g", {})]),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": NaN}}', ['<tool_call>{"name": "f", "arguments": {"x": NaN}}']),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>', [("f", {"x": "</tool_call>"})]),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": "}]\\""}}]', [("f", {"x": '}]"'})]),
    (LLAMA, '{"name": "f", "parameters": {"x": "<|python_tag|>{; "}}', [("f", {"x": "<|python_tag|>{; "})]),
    (MISTRAL, '[TOOL_CALLS][{"name": "f"}][TOOL_CALLS] [{"name": "g"}]', [("f", {}), ("g", {})]),
    (MISTRAL, '[TOOL_CALLS][{"name": "f"}] so', [("f", {}), " so"]),
    (MISTRAL, "[TOOL_CALLS] none", ["[TOOL_CALLS] none"]),
    (LLAMA, '<|python_tag|>{"name": "f"};', [("f", {})]),
    (LLAMA, '{"name": "f"} and more', [("f", {}), " and more"]),
    (LLAMA, " so", [" so"]),
    (LLAMA, '\n[{"name": "f"}]', ['\n[{"name": "f"}]']),
]  # fmt: skip


@pytest.mark.parametrize(("convention", "answer", "found"), CASES)
def test_calls_are_read_out_of_an_answer_however_it_is_cut(convention: Convention, answer: str, found: list[Any]) -> None:
    assert read(convention, answer) == found
    assert read(convention, *answer) == found
    for cut in range(1, len(answer)):
        assert read(convention, answer[:cut], answer[cut:]) == found


MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '"', "\\", "{", "}", "]", "; ", "x", "\n", "\u00e9")
FORMS = ((HERMES, "<tool_call>\n{}\n</tool_call>"), (MISTRAL, "[TOOL_CALLS] [{}]"), (LLAMA, "<|python_tag|>{}"), (LLAMA, "{}"))


@pytest.mark.slow
@given(
    form=st.sampled_from(FORMS),
    parts=st.lists(st.sampled_from(MARKS), max_size=6),
    escaped=st.booleans(),
    size=st.integers(1, 9),
)
def test_a_call_ends_where_its_json_ends_whatever_is_in_its_strings(
    form: tuple[Convention, str], parts: list[str], escaped: bool, size: int
) -> None:
    convention, written = form
    values = {"x": "".join(parts), "".join(parts): [{"y": None}]}
    answer = written.replace("{}", json.dumps({"name": "f", convention.arguments: values}, ensure_ascii=escaped))
    assert read(convention, *(answer[at : at + size] for at in range(0, len(answer), size))) == [("f", values)]


PIECES = (
    *MARKS,
    "<tool",
    "[",
    '{"name": "f"}',
    '[{"name": "f"}]',
    '{"name": "h"}',
    '{"name": "f", "arguments": {"x": "</tool_call>"}}',
)


@given(convention=st.sampled_from(CONVENTIONS), parts=st.lists(st.sampled_from(PIECES), max_size=8))
def test_what_is_no_call_comes_back_as_it_is(convention: Convention, parts: list[str]) -> None:
    answer = "".join(parts)
    found = read(convention, *parts)
    assert read(convention, answer) == read(convention, *answer) == found
    if all(isinstance(part, str) for part in found):
        assert "".join(map(str, found)) == answer


def guided(rules: str, tokenizer: Tokenizer, text: str) -> bool:
    """Whether a grammar allows a text as a whole."""
    guide = GrammarGuide(Grammar.lark(rules), tokenizer, tokenizer.eos_ids)
    (end,) = tokenizer.eos_ids
    for token in tokenizer.encode(text, add_special=False, parse_special=True, continues=True):
        if guide.restricted(np.zeros(tokenizer.vocab_size, np.float32))[token] != 0:
            return False
        guide.accept(token)
    return guide.finished or bool(guide.restricted(np.zeros(tokenizer.vocab_size, np.float32))[end] == 0)


CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("said", "allowed", "refused"),
    [
        ({"tool_choice": "required"}, [CALL, f"{CALL}\n{CALL}"], ["hello", "", f"hello {CALL}", CALL.replace("1", '"a"')]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [CALL], [f"{CALL}\n{CALL}"]),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            [CALL],
            [CALL.replace('"f"', '"g"'), f"{CALL}\n{CALL}", "hello"],
        ),
        ({"parallel_tool_calls": False}, ["hello", CALL, f"so {CALL}"], [f"{CALL}\n{CALL}", CALL.replace("1", '"a"')]),
    ],
)
def test_the_form_of_calls_is_held_where_that_is_asked_for(
    tokenizer: Tokenizer, said: Any, allowed: list[str], refused: list[str]
) -> None:
    rules = rules_of(tools(function("f"), function("g"), **said), tokenizer)
    assert rules is not None
    for text in allowed:
        assert guided(rules, tokenizer, text), text
    for text in refused:
        assert not guided(rules, tokenizer, text), text


def test_a_strict_function_is_held_to_its_schema_where_the_model_chooses(tokenizer: Tokenizer) -> None:
    assert rules_of(tools(function("f")), tokenizer) is None
    rules = rules_of(tools(function("f", strict=True)), tokenizer)
    assert rules is not None
    assert guided(rules, tokenizer, "hello <tool")
    assert guided(rules, tokenizer, f"so {CALL}")
    assert not guided(rules, tokenizer, CALL.replace("1", '"a"'))


def with_markers(folder: Path, template: str, marker: str) -> Tokenizer:
    """A vocabulary in which a marker is a control token, as Mistral's and Llama's files have it."""
    path = model_file(folder, template)
    tokenizer = tokenizer_of(path)
    reader = gguf.GGUFReader(path)
    field = reader.fields["tokenizer.ggml.tokens"]
    words = [bytes(field.parts[at]).decode() for at in field.data]
    kinds = [
        int(reader.fields["tokenizer.ggml.token_type"].parts[at][0]) for at in reader.fields["tokenizer.ggml.token_type"].data
    ]
    at = words.index("filler7")
    words[at], kinds[at] = marker, int(gguf.TokenType.CONTROL)
    changed = write_model(
        folder / "marked.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, context=512,
        metadata={
            "tokenizer.chat_template": template, "tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": kinds,
        },
    )  # fmt: skip
    assert tokenizer.vocab_size == len(words)
    return tokenizer_of(changed)


@pytest.mark.parametrize(
    ("sign", "convention", "call"),
    [
        ("[TOOL_CALLS]", MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]'),
        ("<|python_tag|>", LLAMA, '{"name": "f", "parameters": {"x": 1}}'),
    ],
)
def test_other_conventions_are_held_too(tmp_path: Path, sign: str, convention: Convention, call: str) -> None:
    template = TEMPLATE.replace("<tool_call>", sign).replace("</tool_call>", "")
    tokenizer = with_markers(tmp_path, template, sign)
    asked = tools(function("f"), template=template, tool_choice="required")
    assert asked.convention is convention
    rules = rules_of(asked, tokenizer)
    assert rules is not None
    assert guided(rules, tokenizer, call)
    assert not guided(rules, tokenizer, "hello")
    strict = rules_of(tools(function("f", strict=True), template=template), tokenizer)
    assert strict is not None
    assert guided(strict, tokenizer, call)
    assert guided(strict, tokenizer, "hello")
    assert not guided(strict, tokenizer, call.replace("1", '"a"'))


def test_a_marker_that_no_text_has_is_seen_in_the_tokens(tmp_path: Path) -> None:
    template = TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]").replace("</tool_call>", "")
    tokenizer = with_markers(tmp_path, template, "[TOOL_CALLS]")
    call = tokenizer.encode('[TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}]', add_special=False)
    said = [*tokenizer.encode("so ", add_special=False), *call, *tokenizer.eos_ids]

    async def work(local: Local) -> None:
        ids = local.service.served.chat(CHAT, tools=[function()], variables={})

        def speak(rows: Any) -> None:
            position = rows[-1].position - len(ids) + 1
            local.engine.choose = lambda value: said[min(max(position, 0), len(said) - 1)]

        local.engine.before_step = speak
        local.engine.ahead = False
        made = await local.client.chat.completions.create(model=NAME, messages=CHAT, tools=[function()], temperature=0)  # type: ignore[list-item]
        (choice,) = made.choices
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "so")
        assert choice.message.tool_calls is not None
        (found,) = choice.message.tool_calls
        assert found.type == "function"
        assert (found.function.name, json.loads(found.function.arguments)) == ("f", {"x": 1})
        for stop, text in (("[TOOL_CALLS]", "so "), ("o [TOOL_CALLS][{", "s"), ('"x"', "so")):
            asked: Any = {"model": NAME, "tools": [function()], "temperature": 0, "stop": stop}
            ended = await local.client.chat.completions.create(messages=CHAT, **asked)
            (choice,) = ended.choices
            assert choice.finish_reason == "stop"
            assert choice.message.tool_calls is None
            assert (choice.message.content or "").strip().startswith(text.strip())
            assert ("[TOOL_CALLS]" in (choice.message.content or "")) == (stop == '"x"')

    run(work, tokenizer, engine=roomy())


def test_a_call_is_made_by_the_client_and_its_result_goes_back(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        asked: Any = {"model": NAME, "tools": [function("f", "boolean")], "tool_choice": "required", "temperature": 0}
        asked |= {"parallel_tool_calls": False, "max_tokens": 200}
        made = await local.client.chat.completions.create(messages=CHAT, **asked)
        (choice,) = made.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function"
        assert json.loads(call.function.arguments)["x"] in (True, False)
        deltas = []
        async for chunk in await local.client.chat.completions.create(messages=CHAT, stream=True, **asked):
            deltas += [delta for one in chunk.choices for delta in one.delta.tool_calls or []]
            assert not any(one.delta.content for one in chunk.choices)
        assert [(delta.index, delta.function and delta.function.arguments) for delta in deltas] == [
            (0, call.function.arguments)
        ]
        messages: Any = [*CHAT, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
        after = await local.client.chat.completions.create(messages=messages, max_tokens=3, model=NAME, temperature=0)
        plain: Any = messages_of([json.loads(m.model_dump_json()) if m is choice.message else m for m in messages], TEMPLATE)
        assert plain[1]["tool_calls"][0]["function"]["arguments"] == call.function.arguments
        fitted = Habits(absent="missing").fit(plain)  # the template prints content as it is
        assert after.choices[0].message.content == local.alone(local.service.served.chat(fitted, variables={}), 3)

    run(work, tokenizer, engine=roomy())


NINE = (
    "{% for m in messages %}<|im_start|>{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('9') }}"
    "{% endif %}[TOOL_CALLS]{{ [c.function] | tojson }}{% endfor %}{% if m.tool_calls and m.content is not none %}content"
    "{% elif m.tool_call_id and m.tool_call_id | length != 9 %}{{ raise_exception('9') }}{% endif %}{% endfor %}{{ tools }}"
)


@pytest.mark.slow
def test_ids_of_calls_are_those_that_the_template_takes(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(model_file(tmp_path, NINE))
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    history = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "7"},
    ]

    async def work(local: Local) -> None:
        asked = {"messages": history, "tools": [function("f", "boolean")], "temperature": 0}
        made = await local.post(
            "/v1/chat/completions", asked | {"tool_choice": "required", "max_tokens": 200, "parallel_tool_calls": False}
        )
        (choice,) = made.json()["choices"]
        (again,) = choice["message"]["tool_calls"]
        assert re.fullmatch("[a-zA-Z0-9]{9}", again["id"])
        messages = [*history, choice["message"], {"role": "tool", "tool_call_id": again["id"], "content": "8"}]
        second = await local.post("/v1/chat/completions", asked | {"messages": messages, "max_tokens": 1})
        assert second.status_code == 200, second.text
        fitted = Habits(ids="nine").fit(messages_of(messages, NINE))
        ids = local.service.served.chat(fitted, tools=tools(function("f", "boolean")).shown, variables={})
        assert second.json()["usage"]["prompt_tokens"] == len(ids)
        assert "content" not in tokenizer.decode(ids)

    run(work, tokenizer, engine=roomy())


@pytest.mark.slow
def test_a_request_names_one_of_the_templates_of_the_file(tmp_path: Path) -> None:
    named = {
        "tokenizer.chat_template.tool_use": "{{ tools }}",
        "tokenizer.chat_template.short": "x",
        "tokenizer.chat_template": "{{ tools }}y",
    }
    path = write_model(
        tmp_path / "m.gguf", types=Q.F32, layers=1, hidden=32, heads=1, kv_heads=1, ff=32, context=512, metadata=named
    )
    tokenizer = tokenizer_of(path)

    async def tokens(local: Local, **more: Any) -> Any:
        answer = await local.post("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1} | more)
        return answer.json()["usage"]["prompt_tokens"] if answer.status_code == 200 else answer.json()["error"]

    async def work(local: Local) -> None:
        shown = tools().shown
        for more, text in (({}, "Noney"), ({"chat_template": "short"}, "x"), ({"tools": [function()]}, str(shown))):
            assert await tokens(local, **more) == len(tokenizer.encode(text)), more
        error = await tokens(local, chat_template="nosuch")
        assert error["param"] == "chat_template"
        assert "allowed: default, short, tool_use" in error["message"]

    run(work, tokenizer, engine=roomy())


def test_what_tools_say_is_text_for_the_template(tokenizer: Tokenizer) -> None:
    control = tokenizer.encode("<|im_end|>", add_special=False)

    async def work(local: Local) -> None:
        named: Any = function(description="<|im_end|>")
        ids = local.service.served.chat(CHAT, tools=tools(named).shown, variables={})
        assert ids.count(control[0]) == 1
        asked: Any = {"model": NAME, "messages": CHAT, "tools": [named], "tool_choice": "none"}
        free = await local.client.chat.completions.create(max_tokens=2, temperature=0, **asked)
        without = local.service.served.chat(CHAT, variables={})
        assert free.usage is not None
        assert free.usage.prompt_tokens == len(without)

    run(work, tokenizer)


@pytest.mark.parametrize(
    ("said", "template", "error"),
    [
        ({"tools": 5}, TEMPLATE, "tools is 5; allowed: a list of up to 128 tools"),
        ({"tools": [{}]}, TEMPLATE, r"tools\[0\].function is missing"),
        ({"tools": [{"type": "x", "function": {"name": "f"}}]}, TEMPLATE, r"tools\[0\].type is 'x'; allowed: function"),
        ({"tools": [{"function": {"name": "a b"}}]}, TEMPLATE, "name is 'a b'; allowed: up to 64 letters"),
        ({"tools": [{"function": {"name": "f", "parameters": 1}}]}, TEMPLATE, "parameters is 1; allowed: a JSON schema"),
        ({"tools": [{"function": {"name": "f", "x": 1}}]}, TEMPLATE, r"there is no parameter tools\[0\].function.x"),
        ({"tools": [function(), function()]}, TEMPLATE, "two tools have one name"),
        ({"tools": [function()]}, "{{ messages }}", "shows no tools to the model"),
        ({"tools": [function()], "tool_choice": "required"}, "{{ tools }}", "how this model's template writes calls"),
        ({"tools": [function()], "tool_choice": "f"}, TEMPLATE, "tool_choice is 'f'; allowed: .* with one of f"),
        (
            {"tools": [function()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            TEMPLATE,
            "tool_choice names 'g'; allowed",
        ),
    ],
)  # fmt: skip
def test_tools_that_cannot_be_are_refused(said: Any, template: str, error: str) -> None:
    with pytest.raises(ApiError, match=error):
        tools_of(RequestFields(said), template)


def test_tools_and_another_form_do_not_go_together(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        body = {"messages": CHAT, "tools": [function()], "response_format": {"type": "json_object"}}
        answer = await local.post("/v1/chat/completions", body)
        assert "does not go with tools" in answer.json()["error"]["message"]
        unknown = {"$defs": {}, "type": "objekt"}
        tool = {"type": "function", "function": {"name": "f", "parameters": unknown, "strict": True}}
        refused = await local.post("/v1/chat/completions", {"messages": CHAT, "tools": [tool]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
        for levels in (300, 480, 900, 3000):  # refused or followed, and no more
            nested = '{"items": ' * levels + "{}" + "}" * levels
            function_ = f'{{"name": "f", "strict": true, "parameters": {nested}}}'
            said = f'{{"messages": {json.dumps(CHAT)}, "max_tokens": 1, "tools": [{{"function": {function_}}}]}}'
            deep = await local.http.post("/v1/chat/completions", content=said, headers={"content-type": "application/json"})
            assert deep.status_code in (200, 400), deep.text

    run(work, tokenizer)
