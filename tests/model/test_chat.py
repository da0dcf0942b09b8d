"""Chat templates: what Hugging Face would render, and hostile templates that end in a ModelError within seconds."""

from __future__ import annotations

import time

import pytest

from executor.errors import ModelError
from executor.model.chat import render
from executor.model.gguf_file import GgufFile
from executor.model.tokenizer import Tokenizer
from tests.smollm2 import smollm2_path

HELLO = [{"role": "user", "content": "Hi"}]


def test_smollm2_puts_its_system_message_first() -> None:
    template = Tokenizer.from_gguf(GgufFile.open(smollm2_path())).chat_template
    assert template is not None
    assert render(template, HELLO) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(template, HELLO, add_generation_prompt=False).endswith("Hi<|im_end|>\n")


def test_the_variables_and_functions_that_templates_use() -> None:
    template = (
        "{{ bos_token }}{% if tools is none %}-{% endif %}\n"
        "  {% for m in messages %}\n"
        "{{ loop.index }}/{{ loop.length }} {{ m | tojson }}{{ m.content.strip() ~ eos_token }}\n"
        "    {% if loop.first %}{% continue %}{% endif %}\n"
        "  {% endfor %}\n"
        "{{ strftime_now('%Y') | length }}{{ thinking }}"
    )
    messages = [{"role": "user", "content": "<\u00e9>"}, {"role": "user", "content": " b "}]
    assert render(template, messages, bos_token="<s>", eos_token="</s>", extra={"thinking": True}) == (
        '<s>-1/2 {"role": "user", "content": "<\u00e9>"}<\u00e9></s>\n2/2 {"role": "user", "content": " b "}b</s>\n4True'
    )


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", r"Expected an expression.*\(line 1\)"),
        ("{{ messages[5].content.foo }}", "no element 5"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ raise_exception.__globals__.os }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "recursive loops"),
        ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "RecursionError"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "powers"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "loop turns and calls"),
        ("{% for i in range(99999) %}" + "{{ 'a' * 100 }}" * 2 + "{% endfor %}", "of output"),
        ("{{ 'a' * 999999999 }}", "a product that is too large"),
        ("{{ '%999999999d' % 1 }}", "a format with a width"),
        ("{{ '%*d' % (999999999, 1) }}", "a number over"),
        ("{{ '{:999999999}'.format(1) }}", "a format with a width"),
        ("{{ '%999999999d' | format(1) }}", "a format with a width"),
        ("{{ 'a' | center(999999999) }}", "a number over"),
        ("{{ 'a'.ljust(999999999) }}", "a number over"),
        ("{{ ('\t' * 4000000).expandtabs(1000000) }}", "texts too long"),
        ("{{ ('a' * 4000000) | replace('a', 'b' * 4000000) }}", "texts too long"),
        (
            "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "a value of more than",
        ),
        (
            "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
            "a value of more than",
        ),
        ("x" * 1_000_001, "the chat template has 1000001 characters"),
    ],
    ids=lambda value: value[:30],
)
def test_bad_templates_are_model_errors_and_soon(template: str, message: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ModelError, match=message):
        render(template, HELLO)
    assert time.perf_counter() - began < 5
