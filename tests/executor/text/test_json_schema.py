"""What answers are held to of a JSON schema: every keyword of the vocabularies of JSON Schema 2020-12."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.base.errors import GrammarError
from executor.text.grammar import Grammar, GrammarGuide
from executor.text.json_schema import FORMATS, held, moved
from executor.text.tokenizer import Tokenizer
from tests.executor.serve.local import tokenizer_of
from tests.synthetic import Q, write_model

ANNOTATIONS: dict[str, Any] = {
    "$anchor": "a", "$comment": "x", "$defs": {"a": {"type": "string"}}, "$dynamicAnchor": "a", "$id": "http://a/b",
    "$schema": "https://json-schema.org/draft/2020-12/schema", "$vocabulary": {"http://a/v": True}, "contentEncoding": "base64",
    "contentMediaType": "text/html", "contentSchema": {"type": "string"}, "default": 5, "deprecated": True, "description": "x",
    "examples": [5], "format": "password", "readOnly": True, "title": "x", "writeOnly": True,
}  # fmt: skip
"""Keywords that constrain nothing, whatever their value is."""

NEUTRAL: dict[str, Any] = {
    "additionalProperties": True, "allOf": [{}], "anyOf": [{}, False], "contains": {"type": "null"}, "dependentRequired": {},
    "dependentSchemas": {"a": True}, "else": False, "if": {"type": "null"}, "items": {}, "maxContains": 0, "minContains": 9,
    "minItems": 0, "minLength": 0.0, "minProperties": 0, "not": False, "patternProperties": {}, "prefixItems": [],
    "properties": {}, "propertyNames": True, "required": [], "then": False, "unevaluatedItems": {},
    "unevaluatedProperties": True, "uniqueItems": False,
}  # fmt: skip
"""Values that constrain nothing, of keywords that may."""

HELD: list[tuple[str, dict[str, Any], str, str]] = [
    ("$ref", {"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, "1", "2"),
    ("additionalProperties", {"type": "object", "additionalProperties": {"const": 1}}, '{"a":1}', '{"a":2}'),
    ("allOf", {"allOf": [{"type": "integer"}, {"minimum": 3}]}, "3", "2"),
    ("anyOf", {"anyOf": [{"const": 1}, {"const": 3}]}, "3", "2"),
    ("const", {"const": "a"}, '"a"', '"b"'),
    ("enum", {"enum": ["a", 3]}, "3", "4"),
    ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 4}, "3", "4"),
    ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 2}, "3", "2"),
    ("format", {"type": "string", "format": "date"}, '"2024-01-31"', '"2024-01-32"'),
    ("items", {"type": "array", "items": {"const": 1}}, "[1]", "[2]"),
    ("maxItems", {"type": "array", "items": {"const": 1}, "maxItems": 1.0}, "[1]", "[1,1]"),
    ("maxLength", {"type": "string", "maxLength": 1}, '"a"', '"aa"'),
    ("maxProperties", {"type": "object", "additionalProperties": {"const": 1}, "maxProperties": 0}, "{}", '{"a":1}'),
    ("maximum", {"type": "integer", "maximum": 3}, "3", "4"),
    ("minItems", {"type": "array", "items": {"const": 1}, "minItems": 1}, "[1]", "[]"),
    ("minLength", {"type": "string", "minLength": 2}, '"aa"', '"a"'),
    ("minProperties", {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 1}, '{"a":1}', "{}"),
    ("minimum", {"type": "integer", "minimum": 3}, "3", "2"),
    ("multipleOf", {"type": "integer", "multipleOf": 3}, "6", "7"),
    ("oneOf", {"oneOf": [{"const": 1}, {"type": "string"}]}, "1", "2"),
    ("pattern", {"type": "string", "pattern": "^a+$"}, '"aa"', '"b"'),
    ("patternProperties", {"type": "object", "patternProperties": {"^a$": {"const": 1}}}, '{"a":1}', '{"a":2}'),
    ("prefixItems", {"type": "array", "prefixItems": [{"const": 1}], "minItems": 1}, "[1]", "[2]"),
    ("properties", {"type": "object", "properties": {"a": {"const": 1}}}, '{"a":1}', '{"a":2}'),
    ("required", {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, '{"a":1}', "{}"),
    ("type", {"type": ["boolean", "null"]}, "true", "1"),
]
"""A text that conforms, and one that does not."""

REFUSED: dict[str, Any] = {
    "$dynamicRef": "#a", "contains": {"type": "null"}, "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": {"type":
    "null"}}, "if": {"type": "null"}, "not": {"type": "null"}, "propertyNames": {"maxLength": 3}, "unevaluatedItems": False,
    "unevaluatedProperties": {"type": "null"}, "uniqueItems": True,
}  # fmt: skip
"""Constraints that answers cannot be held to. (`then`, `else`, `minContains` and `maxContains` constrain beside `if` and
`contains`.)"""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_of(write_model(tmp_path_factory.mktemp("model") / "m.gguf", types=Q.F32, layers=1, hidden=32, ff=32))


def allows(schema: Any, text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text may be a whole answer, byte by byte."""
    guide = GrammarGuide(Grammar.json_schema(schema), tokenizer, tokenizer.eos_ids)
    ids = {tokenizer.token_bytes(index): index for index in reversed(range(tokenizer.vocab_size))}
    zeros = np.zeros(tokenizer.vocab_size, np.float32)
    for byte in text.encode():
        if guide.finished or guide.restricted(zeros)[ids[bytes([byte])]] != 0:
            return False
        guide.accept(ids[bytes([byte])])
    return guide.finished or bool(guide.restricted(zeros)[min(tokenizer.eos_ids)] == 0)


KEYWORDS = """
$anchor $comment $defs $dynamicAnchor $dynamicRef $id $ref $schema $vocabulary
additionalProperties allOf anyOf contains dependentSchemas else if items not oneOf patternProperties prefixItems properties
propertyNames then unevaluatedItems unevaluatedProperties
const dependentRequired enum exclusiveMaximum exclusiveMinimum maxContains maxItems maxLength maxProperties maximum minContains
minItems minLength minProperties minimum multipleOf pattern required type uniqueItems
default deprecated description examples readOnly title writeOnly format contentEncoding contentMediaType contentSchema
"""


def test_every_keyword_of_the_vocabularies_is_looked_at() -> None:
    known = {keyword for keyword, *_ in HELD} | ANNOTATIONS.keys() | NEUTRAL.keys() | REFUSED.keys()
    assert known == set(KEYWORDS.split())


@pytest.mark.parametrize("keyword", [*ANNOTATIONS, *(key for key in NEUTRAL if key not in ANNOTATIONS)])
def test_what_constrains_nothing_is_ignored(keyword: str, tokenizer: Tokenizer) -> None:
    schema = {"enum": [True, "x"], keyword: ANNOTATIONS.get(keyword, NEUTRAL.get(keyword))}
    schema |= {"minContains": 0} if keyword == "contains" else {}
    inner = {"type": "object", "properties": {"a": {"anyOf": [schema, False]}}, "required": ["a"]}
    assert allows(schema, "true", tokenizer)
    assert allows(inner, '{"a":"x"}', tokenizer)
    assert not allows(inner, '{"a":1}', tokenizer)


@pytest.mark.parametrize(("keyword", "schema", "right", "wrong"), HELD, ids=[keyword for keyword, *_ in HELD])
def test_what_constrains_is_held(keyword: str, schema: Any, right: str, wrong: str, tokenizer: Tokenizer) -> None:
    assert allows(schema, right, tokenizer)
    assert not allows(schema, wrong, tokenizer)


@pytest.mark.parametrize("keyword", REFUSED)
def test_a_constraint_that_cannot_be_held_is_refused_by_name_and_path(keyword: str) -> None:
    schema = {keyword: REFUSED[keyword]} | ({"then": {"type": "string"}} if keyword == "if" else {})
    inner = {"$ref": "#/x-parts/0", "x-parts": [{"type": "array", "items": {"properties": {keyword: schema}}}]}
    for given_schema, path in ((schema, "#"), (inner, f"#/x-parts/0/items/properties/{keyword}")):
        with pytest.raises(GrammarError) as caught:
            Grammar.json_schema(given_schema)
        assert f"{path}/{keyword} constrains the answer, and answers cannot be held to {keyword}" in str(caught.value)


def test_names_and_values_that_are_spelt_as_keywords_are_none(tokenizer: Tokenizer) -> None:
    schema = {
        "type": "object", "properties": {"not": {"const": {"format": "x", "uniqueItems": True}}}, "required": ["not"],
        "additionalProperties": False, "default": {"not": {}}, "x-more": {"contains": 1},
    }  # fmt: skip
    assert allows(schema, '{"not":{"format":"x","uniqueItems":true}}', tokenizer)


def test_formats_that_are_held_are_those_that_llguidance_knows() -> None:
    standard = (
        "date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri iri-reference"
    )
    standard += " uuid uri-template json-pointer relative-json-pointer regex"
    from llguidance import LLMatcher

    def known(name: str) -> bool:
        rules = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "format": name}))
        return not LLMatcher.validate_grammar_with_warnings(rules)[0]

    assert {name for name in standard.split() if known(name)} == FORMATS
    for name in (*standard.split(), "byte", "google-datetime"):
        Grammar.json_schema({"type": "string", "format": name})


ENDLESS: list[Any] = [
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
    {"type": "object", "properties": {"x": {"type": "boolean"}, "a": {"$ref": "#"}}, "required": ["x", "a"]},
    {"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "null"}, {"allOf": [{"$ref": "#"}]}], "minItems": 2},
]
ENDING: list[tuple[Any, str]] = [
    (
        {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "$defs": {"a": {"type": "array", "items": {"$ref": "#"}}}},
        "[[null]]",
    ),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, '{"a":{"a":{}}}'),
    ({"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "items": False, "minItems": 1}, "[null,[null]]"),
    ({"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, '{"a":null}'),
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_a_schema_whose_values_have_no_end_is_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="no value of the schema has an end: the reference at #"):
        Grammar.json_schema(schema)


@pytest.mark.parametrize(("schema", "text"), ENDING)
def test_a_schema_that_refers_to_itself_is_followed_where_values_end(schema: Any, text: str, tokenizer: Tokenizer) -> None:
    assert allows(schema, text, tokenizer)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (False, "the schema is false"),
        ({"enum": []}, r"Unsatisfiable schema: .* \(at #\)"),
        ({"type": "object", "properties": {"a/%": {"minLength": 5, "maxLength": 3, "type": "string"}}, "required": ["a/%"]},
         r"minLength \(5\) is greater than maxLength \(3\) \(at #/properties/a~1%\)"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, r"incompatible types \(at #\)"),
        ({"anyOf": [{"items": {"pattern": "("}}]}, r"unclosed group \(at #/anyOf/0/items\)"),
        ({"type": "array", "items": {"oneOf": [{"type": "integer"}, {"minimum": 2}]}}, r"oneOf .*\(at #/items\)"),
        ({"$ref": "#/nowhere"}, r"'/nowhere' does not exist \(at #\)"),
        ({"format": 5}, "#/format is 5; allowed: text"),
    ],
)  # fmt: skip
def test_a_schema_that_nothing_conforms_to_is_refused_with_the_place(schema: Any, said: str) -> None:
    with pytest.raises(GrammarError, match=said):
        Grammar.json_schema(schema)


def test_a_schema_moves_with_its_references_and_not_with_data_that_looks_like_them() -> None:
    schema = {"properties": {"$ref": {"$ref": "#/properties/a"}, "a": {"const": {"$ref": "#"}}, "b": {"$ref": "#"}}}
    moved_one = moved(held(schema), "#/$defs/t")
    assert moved_one["properties"] == {
        "$ref": {"$ref": "#/$defs/t/properties/a"}, "a": {"const": {"$ref": "#"}}, "b": {"$ref": "#/$defs/t"},
    }  # fmt: skip
    assert schema["properties"]["b"] == {"$ref": "#"}


def larger(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    array = {"type": st.just("array"), "items": parts, "minItems": st.integers(0, 2), "uniqueItems": st.just(False)}
    named = {"type": st.just("object"), "properties": st.fixed_dictionaries({"a": parts}), "required": st.just(["a"])}
    either = {"anyOf": st.lists(parts, min_size=1, max_size=2)}
    return st.one_of(*map(st.fixed_dictionaries, (array, named, either)))


NESTED: list[Any] = [{"$ref": "#"}, {"$ref": "#/$defs/a"}]
SMALL: list[Any] = [True, {"type": "null"}, {"const": 1}, {"type": "string", "format": "x"}, *NESTED]
SCHEMAS = st.recursive(st.sampled_from(SMALL), larger, max_leaves=6)


@pytest.mark.slow
@given(one=SCHEMAS, other=SCHEMAS)
def test_what_is_held_has_an_end_and_is_a_grammar(one: Any, other: Any) -> None:
    schema = {"anyOf": [one], "$defs": {"a": other}}
    try:
        once = held(schema)
    except GrammarError as error:
        assert "no value of the schema has an end" in str(error)  # noqa: PT017
        return
    assert held(once) == once == moved(once, "#")
    Grammar.json_schema(schema)
