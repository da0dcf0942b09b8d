"""What templates want of messages, found by trial: templates of the kinds that are in use, and what is made of messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executor.base.errors import ModelError
from executor.text import template_habits
from executor.text.chat import TemplateRefusal
from executor.text.rendering import sandbox
from executor.text.template_habits import Habits, habits_of

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
CALLS = "{% for c in m.tool_calls %}<tool_call>"
ENDS = "{% endfor %}{% endfor %}"
AS_JSON = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
BY_NONE = "{{ m.content }}{% endif %}{% endfor %}"
TRIALS: dict[str, tuple[str, Habits]] = {
    "content where there is some, arguments by tojson (Qwen, Hermes)": (
        TURNS + "{% if m.content %}{{ m.content }}{% endif %}" + CALLS + AS_JSON + ENDS,
        Habits(),
    ),
    "arguments are joined to text (DeepSeek V3)": (
        TURNS + CALLS + "{{ c['function']['name'] + '\n```json\n' + c['function']['arguments'] }}" + ENDS,
        Habits(arguments="text"),
    ),
    "calls where content is none (DeepSeek R1)": (
        TURNS
        + "{% if m.role == 'assistant' and m.content is none %}"
        + CALLS
        + "{{ c.function.name + c.function.arguments }}{% endfor %}{% else %}"
        + BY_NONE,
        Habits(arguments="text"),
    ),
    "calls where content is none, arguments as they print": (
        TURNS
        + "{% if m.content is none %}"
        + CALLS
        + "{{ c.function.name ~ c.function.arguments|string }}{% endfor %}{% else %}"
        + BY_NONE,
        Habits(arguments="text"),
    ),
    "either form (Kimi)": (
        TURNS
        + CALLS
        + "{{ c.function.name }}{% if c.function.arguments is string %}{{ c.function.arguments }}"
        + "{% else %}{{ c.function.arguments | tojson }}{% endif %}"
        + ENDS,
        Habits(),
    ),
    "arguments one by one (Qwen3-Coder, GLM)": (
        TURNS
        + CALLS
        + "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<p={{ k }}>{{ v }}</p>{% endfor %}"
        + ENDS,
        Habits(),
    ),
    "the call as a whole (Mistral)": (
        TURNS
        + "{% for c in m.tool_calls %}{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('9') }}{% endif %}"
        + "{{ c.function | tojson }}"
        + ENDS,
        Habits(ids="nine"),
    ),
    "ids of results alone are refused": (
        "{% for m in messages %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('9') }}{% endif %}"
        + CALLS
        + AS_JSON
        + ENDS,
        Habits(ids="nine"),
    ),
    "the end of the id (Mistral Small 3)": (
        "{% for m in messages %}{% if m.role == 'tool' and m.tool_call_id | length < 9 %}{{ raise_exception('9') }}{% endif %}"
        + CALLS
        + AS_JSON
        + "{{ c.id[-9:] }}"
        + ENDS,
        Habits(ids="nine or more"),
    ),
    "the id names the function (Kimi K2)": (
        "{% for m in messages %}{{ m.name }}{{ m.tool_call_id }}"
        + CALLS
        + "{{ c.id }}{{ c.function.arguments | tojson }}"
        + ENDS,
        Habits(ids="function"),
    ),
    "content printed as it is": (TURNS + "{{ m.content }}" + CALLS + AS_JSON + ENDS, Habits(absent="missing")),
    "content joined to text": (TURNS + "{{ m.content + '\n' }}" + CALLS + AS_JSON + ENDS, Habits(absent="empty")),
    "content that is defined": (
        TURNS
        + "{% if m.content is defined %}{{ m.content + '\n' }}{% else %}"
        + CALLS
        + AS_JSON
        + "{% endfor %}{% endif %}{% endfor %}",
        Habits(absent="missing"),
    ),
    "parts alone": (
        TURNS + "{% for part in m.content or [] %}{{ part.text }}{% endfor %}" + CALLS + AS_JSON + ENDS,
        Habits(parts=True),
    ),
    "parts or text (Llama 4)": (
        TURNS
        + "{% if m.content is string %}{{ m.content }}{% else %}"
        + "{% for part in m.content or [] %}{{ part.text }}{% endfor %}{% endif %}"
        + CALLS
        + AS_JSON
        + ENDS,
        Habits(),
    ),
    "no calls at all, and content is text or parts (Kimi K2)": (
        TURNS
        + "{% if m.content is string %}{{ m.content }}{% else %}"
        + "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
        Habits(absent="missing"),
    ),
    "no calls at all (Gemma 2)": (
        TURNS + "{% if m.role == 'tool' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}",
        Habits(),
    ),
}  # fmt: skip


def rendered(template: str, messages: Any, *, bos_token: str, eos_token: str, extra: Any) -> str:
    """As chat.render, without a process."""
    try:
        return str(sandbox.render(template, messages, extra, {"bos_token": bos_token, "eos_token": eos_token}))
    except Exception as error:  # whatever the template does
        raise TemplateRefusal(str(error)) from error


@pytest.mark.parametrize("name", TRIALS)
def test_what_a_template_wants_is_found_by_trial(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_habits, "render", rendered)
    template, habits = TRIALS[name]
    assert habits_of(template, "<s>", "</s>", calls=True) == habits
    assert habits_of(template, "<s>", "</s>", calls=False) == Habits(habits.parts)


def test_habits_are_found_once_and_a_trial_without_an_end_is_no_habit(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def counted(template: str, messages: Any, **options: Any) -> str:
        nonlocal count
        count += 1
        if count == 1:
            raise ModelError("more than 20 s")
        return rendered(template, messages, **options)

    monkeypatch.setattr(template_habits, "render", counted)
    with pytest.raises(ModelError, match="more than"):
        habits_of("{{ messages }} 1", "", "", calls=False)
    for _ in range(3):
        assert habits_of("{{ messages }} 1", "", "", calls=False) == Habits()
    assert count == 2


HISTORY: Any = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": None, "reasoning": "so",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "r"},
]  # fmt: skip


def test_messages_are_fitted_to_the_habits() -> None:
    before = json.dumps(HISTORY)
    _, said, result = Habits().fit(HISTORY)
    assert (said["content"], said["tool_calls"][0]["function"]["arguments"], said["tool_calls"][0]["id"]) == (
        None,
        {"x": 1},
        "c1",
    )
    assert (said["reasoning_content"], said["thinking"], said["reasoning"]) == ("so", "so", "so")
    asked, said, result = Habits(parts=True, arguments="text", absent="missing", ids="nine").fit(HISTORY)
    assert asked["content"] == [{"type": "text", "text": "q"}]
    assert "content" not in said
    assert said["tool_calls"][0]["function"]["arguments"] == '{"x":1}'
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] != "c1"
    assert Habits(absent="empty").fit(HISTORY)[1]["content"] == ""
    assert json.dumps(HISTORY) == before


def test_an_id_that_is_used_again_belongs_to_the_last_call_of_it() -> None:
    _, said, result = HISTORY
    _, first, one, second, two = Habits(ids="function").fit([*HISTORY, said, result])
    assert [first["tool_calls"][0]["id"], one["tool_call_id"]] == ["functions.f:0"] * 2
    assert [second["tool_calls"][0]["id"], two["tool_call_id"]] == ["functions.f:1"] * 2
