"""Answers that a JSON schema, a regular expression or a Lark grammar allows, whatever the logits are."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.base.errors import GrammarError, ModelError
from executor.device import open_device
from executor.gguf.gguf_file import GgufFile
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler
from executor.text.grammar import Grammar, GrammarGuide, compute_together
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError
from tests.synthetic import Q, write_model

SHAPE: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "ff": 96, "context": 256}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "b": {"enum": ["x", "yes"]},
        "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
LARK = 'start: "the " ("cat" | "dog") (" and " NAME)? "."\nNAME: /[a-z]{1,3}/'


def conforms(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["a", "b", "c"]
        and value["a"] in range(100)
        and value["b"] in ("x", "yes")
        and len(value["c"]) <= 2
        and all(isinstance(item, bool) for item in value["c"])
    )


FORMS = [
    (Grammar.json_schema(SCHEMA), conforms),
    (Grammar.json_schema(json.dumps(SCHEMA)), conforms),
    (Grammar.regex("[0-9]{3}-[a-f]{2,5}"), lambda text: bool(re.fullmatch("[0-9]{3}-[a-f]{2,5}", text))),
    (Grammar.lark(LARK), lambda text: bool(re.fullmatch(r"the (cat|dog)( and [a-z]{1,3})?\.", text))),
]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", types=Q.Q8_0, tokenizer=request.param, **SHAPE)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile.open(path))


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LanguageModel]:
    with open_device("emulator") as device, LanguageModel.load(path, device) as loaded:
        yield loaded


@pytest.mark.parametrize("form", range(len(FORMS)))
@given(seed=st.integers(0, 2**32 - 1))
def test_whatever_the_logits_are_the_text_has_its_form(form: int, seed: int, tokenizer: Tokenizer) -> None:
    grammar, is_right = FORMS[form]
    rng, guide, answer = np.random.default_rng(seed), GrammarGuide(grammar, tokenizer, tokenizer.eos_ids), list[int]()
    while not guide.finished:
        token = int(guide.restricted(rng.standard_normal(tokenizer.vocab_size).astype(np.float32)).argmax())
        if token in tokenizer.eos_ids:
            break
        guide.accept(token)
        answer.append(token)
        assert len(answer) < 200
    assert is_right("".join(tokenizer.token_bytes(token).decode() for token in answer))


def test_nothing_but_what_continues_the_text_is_left(tokenizer: Tokenizer) -> None:
    guide = GrammarGuide(Grammar.regex("ab?"), tokenizer, tokenizer.eos_ids)
    logits = np.zeros(tokenizer.vocab_size + 7, np.float32)  # a model may have more rows than its vocabulary has tokens
    texts = {tokenizer.token_bytes(int(id)) for id in np.flatnonzero(guide.restricted(logits) == 0)}
    assert texts <= {b"a", b"ab"}
    assert b"a" in texts
    a = next(id for id in range(tokenizer.vocab_size) if tokenizer.token_bytes(id) == b"a")
    guide.accept(a)
    allowed = set(np.flatnonzero(guide.restricted(logits) == 0).tolist())
    assert tokenizer.eos_ids <= allowed
    without_end = GrammarGuide(Grammar.regex("ab?"), tokenizer, ())
    without_end.accept(a)
    assert not tokenizer.eos_ids & set(np.flatnonzero(without_end.restricted(logits) == 0).tolist())


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5, "seed": 3}, {"repetition_penalty": 1.2}])
@pytest.mark.parametrize("form", range(len(FORMS)))
def test_a_model_answers_in_the_form_alone_and_among_others(
    form: int, settings: dict[str, Any], model: LanguageModel
) -> None:  # fmt: skip
    grammar, is_right = FORMS[form]
    made = model.generate([5, 6], max_tokens=100, grammar=grammar, sampler=Sampler(**settings))
    assert made.stopped in ("grammar", "eos")
    assert is_right(made.text)
    with model.scheduler(slots=2, context=256) as scheduler:
        free = scheduler.submit([5, 6], max_tokens=8, stop_tokens=())
        bound = scheduler.submit([5, 6], max_tokens=100, grammar=grammar, sampler=Sampler(**settings))
        scheduler.run()
    assert (bound.tokens, bound.text) == (made.tokens, made.text)
    assert free.tokens == model.generate([5, 6], max_tokens=8, stop_tokens=()).tokens


def test_a_grammar_that_is_given_up_fails_nobody_elses_request(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def given_up(_: GrammarGuide, size: int) -> None:
        raise GrammarError("the grammar cannot be followed: given up")

    expected = model.generate([5, 6], max_tokens=8, stop_tokens=()).tokens
    with model.scheduler(slots=2, context=256) as scheduler:
        free = scheduler.submit([5, 6], max_tokens=8, stop_tokens=())
        bound = scheduler.submit([5, 6], max_tokens=8, grammar=Grammar.regex("[0-9]{8}"))
        monkeypatch.setattr(GrammarGuide, "allowed", given_up)
        scheduler.run()
        with pytest.raises(GrammarError, match="the grammar cannot be followed: given up"):
            bound.result()
        assert (free.tokens, free.error) == (expected, None)


def test_what_is_found_out_together_is_what_each_finds_alone(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size + 40  # a model may have more rows than its vocabulary has tokens

    def guides() -> list[GrammarGuide]:
        made = [GrammarGuide(grammar, tokenizer, tokenizer.eos_ids) for grammar, _ in FORMS]
        made[1].accept(int(made[1].restricted(np.zeros(size, np.float32)).argmax()))
        return made

    apart, together = guides(), guides()
    compute_together(together)
    compute_together([])
    for one, other in zip(apart, together, strict=True):
        assert one.allowed(size).tolist() == other.allowed(size).tolist()
    assert len({tuple(one.allowed(size).tolist()) for one in apart}) > 1


def test_probabilities_are_those_before_the_grammar(model: LanguageModel) -> None:
    made = model.generate([5, 6], max_tokens=3, grammar=Grammar.regex("[0-9]{9}"), logprobs=1)
    free = model.generate([5, 6], max_tokens=1, logprobs=1, stop_tokens=())
    assert made.logprobs[0].top == free.logprobs[0].top
    assert made.logprobs[0].logprob <= made.logprobs[0].top[0][1]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Grammar.regex("("), "the grammar cannot be used: .*unclosed group"),
        (lambda: Grammar.regex(5), "the pattern is 5; allowed: a str"),  # type: ignore[arg-type]
        (lambda: Grammar.lark("start: x"), "the grammar cannot be used: .*unknown name"),
        (lambda: Grammar.json_schema({"type": "nonsense"}), "the grammar cannot be used: Invalid type: nonsense"),
        (lambda: Grammar.json_schema("{"), "the schema is no JSON"),
        (lambda: Grammar.json_schema({"enum": [object()]}), "the schema is no JSON"),
        (lambda: Grammar.json_schema([1]), "the schema is a list; allowed: a mapping"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_grammar_is_refused_when_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Grammar.json_schema("[" * 100_000), "recursion limit"),
        (lambda: Grammar.json_schema('{"items":' * 3000 + "true" + "}" * 3000), "recursion limit"),
        (lambda: Grammar.json_schema({"enum": list(range(100_000))}), "too big"),
        (lambda: Grammar.json_schema({"$ref": "http://127.0.0.1:9/x"}), "not present in a registry"),
    ],
    ids=["deep", "deep schema", "large", "somewhere else"],
)
def test_a_hostile_schema_is_refused_soon_and_fetches_nothing(make: Any, said: str) -> None:
    start = time.process_time()
    with pytest.raises(ArgumentError, match=said):
        make()
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    ("pattern", "given_up"), [("(a{1000}){1000}", True), ("((a{100}){100}){100}", True), ("(a|aa|aaa)*b", False)]
)
def test_a_hostile_pattern_is_followed_or_given_up_soon(pattern: str, given_up: bool, tokenizer: Tokenizer) -> None:
    guide = GrammarGuide(Grammar.regex(pattern), tokenizer, tokenizer.eos_ids)
    start = time.process_time()

    def follow() -> None:
        for _ in range(60):
            guide.accept(int(guide.restricted(np.zeros(tokenizer.vocab_size, np.float32)).argmax()))
            if guide.finished:
                return

    with pytest.raises(GrammarError, match=r"^the grammar cannot be followed: .{1,200}$") if given_up else nullcontext():
        follow()
    assert time.process_time() - start < 60


def test_a_model_says_what_it_takes(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"grammar is 'x'; allowed: a Grammar, which Grammar\.json_schema"):
        model.generate([5], grammar="x")  # type: ignore[arg-type]
    silent = write_model(tmp_path / "m.gguf", types=Q.Q8_0, tokenizer="none", **SHAPE)
    with open_device("emulator") as device, LanguageModel.load(silent, device) as wordless:
        with pytest.raises(ModelError, match="no vocabulary"):
            wordless.generate([5], grammar=Grammar.regex("a"))
        assert wordless.generate([5], max_tokens=1).tokens is not None
