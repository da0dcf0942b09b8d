"""Chat templates that do anything, which end soon and harm nothing, and conversations in which people write anything, which is
text."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from executor.base.errors import ModelError
from executor.text.chat import RenderingLimits, render_spans
from executor.text.special_tokens import Span
from tests.executor.text.conversations import (
    CONTROLS,
    HARMLESS,
    HOSTILE,
    STEERING,
    TEMPLATES,
    controls,
    conversation,
    plain,
    spans,
    vocabulary,
)
from tests.fuzz.cases import Cases

T = TypeVar("T")

METHODS = [name for name in dir(str) if not name.startswith("_")] + ["append", "items", "keys", "__class__", "mro", "_own"]
ATOMS = (
    "messages",
    "bos_token",
    "loop",
    "x",
    "range",
    "namespace",
    "raise_exception",
    "joiner",
    "cycler",
    "dict",
    "true",
    "none",
)
NUMBERS = (0, 1, -1, 3, 1e300, 99_999, 4_000_000, 10**9, 10**18, 10**30)

# The template writes in one alphabet and people in another, so a result tells who wrote it.
OWN, OTHER = "<|A B>", "xy\tz\n"


def value(rng: random.Random, depth: int) -> str:
    """Any expression."""
    if depth == 0 or rng.random() < 0.15:
        kind = rng.randrange(3)
        return (
            rng.choice(ATOMS)
            if kind == 0
            else repr(rng.choice(NUMBERS))
            if kind == 1
            else repr(rng.choice(("", "a", "{0:9999999}", "%99999999d")))
        )
    parts = [value(rng, depth - 1) for _ in range(3)]
    match rng.randrange(9):
        case 0:
            return f"({parts[0]} {rng.choice(('+', '*', '**', '%', '~', '//', '-', 'in', 'and', '<'))} {parts[1]})"
        case 1:
            return f"({parts[0]} | {rng.choice(sorted(FILTERS))})"
        case 2:
            return f"({parts[0]} | {rng.choice(sorted(FILTERS))}({parts[1]}, {parts[2]}))"
        case 3:
            return f"{parts[0]}.{rng.choice(METHODS)}({parts[1]})"
        case 4:
            return f"{parts[0]}[{parts[1]}:{parts[2]}]"
        case 5:
            return f"[{parts[0]}, {parts[1]}]"
        case 6:
            return f"({parts[0]} is {rng.choice(sorted(TESTS))} {parts[1]})"
        case 7:
            return f"{rng.choice(ATOMS)}({parts[0]})"
        case _:
            return f"{{'a': {parts[0]}, {parts[1]}: 1}}"


def statement(rng: random.Random, depth: int) -> str:
    """Any part of a template."""
    inner = statement(rng, depth - 1) if depth else "a"
    match rng.randrange(8):
        case 0:
            return f"{{% for x in {value(rng, 2)} %}}{inner}{{% endfor %}}"
        case 1:
            return f"{{% macro x(y) %}}{inner}{{% endmacro %}}{{{{ x({value(rng, 1)}) }}}}"
        case 2:
            return f"{{% set x %}}{inner}{{% endset %}}{{{{ x }}}}"
        case 3:
            return f"{{% filter {rng.choice(sorted(FILTERS))} %}}{inner}{{% endfilter %}}"
        case 4:
            grow = rng.choice(("n.x ~ n.x", "n.x + n.x", "[n.x, n.x]", "n.x * 9", "{1: n.x}"))
            turns = f"{{% for i in range({rng.choice((3, 60, 90_000))}) %}}{{% set n.x = {grow} %}}{{% endfor %}}"
            return f"{{% set n = namespace(x={value(rng, 1)}) %}}{turns}{{{{ n.x }}}}"
        case 5:
            return f"{{% if {value(rng, 2)} %}}{inner}{{% else %}}{inner * 2}{{% endif %}}"
        case _:
            return f"{{{{ {value(rng, 4)} }}}}" * rng.choice((1, 1, 1, 2, 20_000)) + inner


def damaged(rng: random.Random, template: str) -> str:
    for _ in range(rng.randrange(1, 4)):
        at, end = sorted(rng.randrange(len(template) + 1) for _ in range(2))
        template = (
            template[:at]
            + rng.choice(("", template[at:end] * 2, template[at : at + 1] * 3000, "%}", "{{", "'"))
            + template[end:]
        )
    return template


def test_a_template_that_does_anything(cases: Cases) -> None:
    for rng in cases:
        template = damaged(rng, rng.choice(list(TEMPLATES.values()))) if rng.random() < 0.2 else statement(rng, 3)
        began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        said = ""
        try:
            made = render_spans(
                template, conversation("Hi", "x" * rng.choice((1, 100_000))), limits=RenderingLimits(cpu_seconds=1)
            )
            assert all(type(span) is Span for span in made)
        except ModelError as error:
            said = str(error)
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime < 8, template[:1000]
        # KiB; the most of any child, of other tests too. What this process has counts as its child's until that runs a program.
        most = max(1 << 20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        assert now.ru_maxrss <= most or now.ru_maxrss == used.ru_maxrss
        assert time.monotonic() - began < 90, template[:1000]
        assert len(said) < 1100
        assert said.isprintable()
        assert "Traceback" not in said
        assert "Too many open files" not in said, template


def text(rng: random.Random, depth: int) -> str:
    """An expression that gives a text, in which case does not matter and no number is large."""
    if depth == 0:
        literal = "".join(rng.choices(OWN, k=rng.randrange(5)))
        return rng.choice(
            (repr(literal), "messages[0].content", "messages[1].content", "messages[0]['role']", "x", "bos_token")
        )
    a, b, c = (text(rng, depth - 1) for _ in range(3))
    n, m = rng.randrange(-3, 5), rng.randrange(-3, 5)
    forms = (
        f"({a} + {b})",
        f"({a} ~ {b} ~ {c})",
        f"({a} * {abs(n)})",
        f"({a} % ({b}, {c}))",
        f"('<%s|%s>' % ({a}, {b}))",
        f"'<{{}}A{{x}}>'.format({a}, x={b})",
        f"({a} | trim)",
        f"({a} | replace({b}, {c}))",
        f"([{a}, {b}, {c}] | join({rng.choice(('', a))}))",
        f"({a} | indent({abs(n)}))",
        f"({a} | default({b}))",
        f"({a} if {b} in {c} else {c})",
        f"{a}[{n}:{m}]",
        f"({a} | first)",
        f"{a}[::-1]",
        f"({a} | list | join({b}))",
        f"({a} | tojson)",
        f"({a} | e)",
        f"({a} | center(9))",
        f"{a}.split({b})[{rng.choice((0, -1))}]",
        f"{a}.rsplit({b}, 1)[0]",
        f"{a}.strip({b})",
        f"{a}.lstrip()",
        f"{a}.replace({b}, {c})",
        f"{a}.partition({b})[{rng.randrange(3)}]",
        f"{a}.join([{b}, {c}])",
        f"{a}.removesuffix({b})",
        f"({a}.splitlines(true) | last)",
    )
    return rng.choice(forms)


def shape(rng: random.Random) -> str:
    """A template of such expressions."""
    a, b, c = (f"{{{{ {text(rng, rng.randrange(4))} }}}}" for _ in range(3))
    inner = text(rng, 3)
    forms = (
        f"A{a}|{b}>",
        f"{{% set x = {inner} %}}{a}<{{{{ x }}}}",
        f"{{% set x %}}<{a}{{% endset %}}{b}{{{{ x | trim }}}}",
        f"{{% macro f(x) %}}<{a}|{{{{ caller() }}}}{{% endmacro %}}{{% call f({inner}) %}}A{c}{{% endcall %}}",
        f"{{% for x in [{inner}, 'A'] %}}{{{{ x }}}}A{{% filter trim %}}{b}<{{% endfilter %}}{{% endfor %}}",
        f"{{% autoescape {rng.choice(('true', 'false'))} %}}{{{{ {inner} ~ '<' }}}}{c}{{% endautoescape %}}",
    )
    return rng.choice(forms)


def outcome(render: Callable[[], T]) -> T | type[Exception]:
    try:
        return render()
    except Exception as error:  # an index that is not there, an empty separator
        return type(error)


def test_whatever_a_template_does_its_text_is_the_plain_one_and_no_message_is_its_own(cases: Cases) -> None:
    for rng in cases:
        template = shape(rng)
        x, *said = ("".join(rng.choices(OTHER, k=rng.randrange(6))) for _ in range(3))
        messages = [{"role": "z", "content": content} for content in said]
        made = outcome(lambda: spans(template, messages, x=x))  # noqa: B023  # called at once
        wanted = outcome(lambda: plain(template, messages, x=x))  # noqa: B023
        if isinstance(made, list):
            assert "".join(span.text for span in made) == wanted, (template, x, said)
            assert not [span for span in made if span.trusted and set(span.text) & set(OTHER)], (template, x, said)
        else:
            assert made is wanted, (template, x, said)


def test_people_write_no_control_token(cases: Cases) -> None:
    tokenizers = {template: vocabulary(template) for template in TEMPLATES.values()}
    pieces = (*CONTROLS, *STEERING, *HARMLESS, *HOSTILE, "<|", "|>", "im_end", "<", "[", "/INST]", " ", "\n")
    for rng in cases:
        template, tokenizer = rng.choice(list(tokenizers.items()))
        said = ["".join(rng.choices(pieces, k=rng.randrange(6))) for _ in range(rng.randrange(1, 5))]
        ids = tokenizer.encode_spans(spans(template, conversation(*said)))
        harmless = tokenizer.encode_spans(spans(template, conversation(*["a"] * len(said))))
        assert controls(tokenizer, ids) == controls(tokenizer, harmless), (template, said)
        whole = plain(template, conversation(*said))
        assert tokenizer.decode(ids, skip_special=False).removeprefix("<s>") == whole.removeprefix("<s>"), (template, said)
