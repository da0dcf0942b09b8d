"""Chat templates: what Hugging Face would render, and hostile templates that end in a ModelError within their bounds."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from jinja2.filters import FILTERS

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.text import chat
from executor.text.chat import RenderingLimits, render
from executor.text.rendering import sandbox
from executor.text.rendering.traced import runs
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError
from tests.real_models import smollm2_path

HELLO = [{"role": "user", "content": "Hi"}]


@pytest.mark.slow
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
    ("template", "text"),
    [
        ("{% set m = messages[0] %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}", "Hi<|im_end|>"),
        ("{%- generation -%}\n a {{ messages[0].content }}\n{%- endgeneration -%} b", "a Hib"),
        ("{% for i in [1, 2, 3] %}{% generation %}{{ i }}{% break %}{% endgeneration %}{% endfor %}", "1"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21"),
        ("{{ {'b': '<', 'a': 1} | tojson(indent=1, sort_keys=true, separators=(',', ':')) }}", '{\n "a":1,\n "b":"<"\n}'),
        ("{{ '\u00e9' | tojson(ensure_ascii=true) }}{{ strftime_now('%Y') | length }}", '"\\u00e9"4'),
    ],
)  # fmt: skip
def test_the_extensions_of_hugging_face(template: str, text: str) -> None:
    rendered = sandbox.render(template, HELLO, {}, {})
    assert rendered == text
    assert all(own for run, own in runs(rendered) if "im_end" in run)


@pytest.mark.parametrize(
    "expression",
    [
        "'a' + {}", "{} + 'a'", "'a' - 1", "'a'.replace()", "'a'.upper(1)", "'a'.x.y", "'a'['x'] + 1", "raise_exception()",
        "strftime_now(1, 2)", "1 | tojson(x=1)", "['a'] | join(1, 2, 3, 4)", "'a'()", "messages[0] + 1", "'a' * 'b'",
        "''.join([1])", "('a' | upper) < 1", "'a'.split(1)", "'{}'.format()",
    ],
)  # fmt: skip
def test_errors_name_what_templates_know(expression: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        sandbox.render("{{ " + expression + " }}", HELLO, {}, {})
    assert not re.search(r"Traced|executor|descriptor|\b_", str(caught.value)), caught.value


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% if %}", r"Expected an expression.*\(line 1\)"),
        ("{{ messages[5].content.foo }}", "no element 5"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 'a'._own.hex() }}", "unsafe"),
        ("{{ ('{0.__class__.__name__}' | attr('format'))(1) }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ raise_exception.__globals__.os }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for a in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}", "RecursionError"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "RecursionError"),
        ("{% filter list %}ab{% endfilter %}", "expected str instance, list found"),
        ("{% macro f() %}{% filter list %}ab{% endfilter %}{% endmacro %}{{ f() }}", "expected str instance, list found"),
        ("{{ 'abcde' * 1000000 }}", "more than 4000000 characters of output"),
        ("x" * 1_000_001, "the chat template has 1000001 characters"),
    ],
    ids=lambda value: value[:30],
)
def test_bad_templates_are_model_errors(template: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        render(template, HELLO)


ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{{ ([[1]] * 200000) | sum(start=[]) }}",
    "{{ ('a' * 3000000) | wordwrap(1) }}",
    "{{ a }}" * 140_000,
]
HUGE = [
    "{{ '%999999999d' % 1 }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ ('\t' * 4000000).expandtabs(1000000) }}",
    "{{ ('a' * 4000000) | replace('a', 'b' * 4000000) }}",
    "{{ ('{0:99999}' * 400000).format(1) }}",
    "{{ ([('a' * 4000)] * 4000000) | join | length }}",
    "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
]


@pytest.mark.parametrize("template", ENDLESS + HUGE, ids=lambda value: value[:40])
def test_a_template_takes_no_more_than_it_may(template: str) -> None:
    began, used = time.perf_counter(), cpu_of_children()
    with pytest.raises(ModelError, match=r"more than|MemoryError|OverflowError|Exceeds the limit"):
        render(template, HELLO, limits=RenderingLimits(cpu_seconds=1))
    assert cpu_of_children() - used < 6
    assert time.perf_counter() - began < 90


def cpu_of_children() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


@pytest.mark.slow
def test_no_template_takes_memory() -> None:
    """In a process of its own: what the children of this one took before is no template's."""
    script = f"""
import resource, sys
from executor.base.errors import ModelError
from executor.text import chat
from executor.text.chat import RenderingLimits, render
for template in {HUGE[-3:]!r}:
    try:
        render(template, [], limits=RenderingLimits(cpu_seconds=1))
    except ModelError:
        continue
    sys.exit(template)
(own,) = [int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""
    # Not its ru_maxrss, which begins with what the process had that started it (getrusage(2): kept over execve).
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 560 << 10  # KiB


def test_the_process_that_renders_can_open_nothing() -> None:
    script = """
import socket, subprocess, sys
from executor.text.rendering.child import confine
confine(1, 512 << 20)
for attempt in (lambda: open("/dev/null"), socket.socket, lambda: subprocess.run(["true"])):
    try:
        attempt()
    except OSError:
        continue
    print("opened")
try:
    bytearray(600 << 20)
except MemoryError:
    print("bounded")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert (ran.stdout, ran.returncode) == ("bounded\n", 0), ran.stderr


def test_every_filter_works_where_nothing_can_be_opened() -> None:
    """Nothing that Jinja2 imports late is missed."""
    script = f"""
from executor.text.rendering import child, sandbox
child.confine(20, 512 << 20)
for text in ("'a b'", "[3, 1]", "{{'a': 1}}"):
    for name in {sorted(FILTERS)!r}:
        try:
            sandbox.render("{{{{ " + text + " | " + name + " }}}}", [], {{}}, {{}})
        except (OSError, ImportError) as error:
            print(name, type(error), error)
        except Exception:
            pass
print("all")
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("all\n", 0), ran.stderr


def test_what_a_template_raises_is_harmless_to_a_terminal() -> None:
    with pytest.raises(ModelError) as caught:
        render("{{ raise_exception('\x1b[2Jgone\x07\n\u202eback' + 'x' * 100000) }}", HELLO)
    said = str(caught.value)
    assert said.startswith("the chat template failed:  [2Jgone   back")
    assert said.isprintable()
    assert len(said) < 1100


def test_a_process_that_answers_nothing_in_time_is_ended_and_the_next_one_works() -> None:
    with pytest.raises(ModelError, match=r"more than 0\.01 s"):
        render("{{ messages[0].content }}", HELLO, limits=RenderingLimits(seconds=0.01))
    assert render("{{ messages[0].content }}", HELLO) == "Hi"


def test_a_process_that_dies_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_START", "import os, sys; print('no luck', file=sys.stderr, flush=True); os.abort()")
    with pytest.raises(ModelError, match=r"its process ended with SIGABRT and said no luck"):
        render("a", HELLO)


@pytest.mark.parametrize("said", ["", "[" * 100_000, "{}", '{"runs": [["a", 1]]}', '{"runs": [["a"]]}', "[]"])
def test_an_answer_of_another_form_is_a_model_error(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(chat, "_START", f"print({said!r})")
    with pytest.raises(
        ModelError, match=r"the chat template failed: its process (sent an invalid answer|answered with no JSON)"
    ):
        render("a", HELLO)


def test_an_answer_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "_START", "import sys\nwhile True: sys.stdout.write('x' * 99999)")
    with pytest.raises(ModelError, match="sent too long an answer"):
        render("a", HELLO, limits=RenderingLimits(characters=1000))


def test_a_conversation_that_json_does_not_know_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for content in (object(), loop, {1, 2}):
        with pytest.raises(ArgumentError, match="a conversation may only hold what JSON can"):
            render("a", [{"role": "user", "content": content}])
    with pytest.raises(ArgumentError, match="the conversation has"):
        render("a", [{"role": "user", "content": "x" * 30_000}], limits=RenderingLimits(characters=1000))


def test_ctrl_c_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*files: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.PIPE))
        return started[-1]

    def interrupted(*_: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(chat, "_start", start)
    monkeypatch.setattr(chat, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render("a", HELLO)
    assert started[0].returncode == -signal.SIGKILL
