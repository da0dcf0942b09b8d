"""What of a JSON schema an answer is held to: annotations are dropped, constraints that cannot be held are refused, by the
vocabularies of JSON Schema 2020-12. What a schema means is llguidance's to say (grammar.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from executor.base.arguments import described
from executor.base.errors import GrammarError, shown

FORMATS: Final = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"})
"""Formats that answers are held to. Any other is an annotation, as all of them are by 2020-12 (section 7 of Validation)."""

IN_ONE: Final = ("additionalItems", "additionalProperties", "items")
IN_LIST: Final = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
IN_MAP: Final = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords that hold a schema, a list of schemas, and schemas by name."""

WHOLE: Final = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
"""Keywords whose value is a whole number, which JSON may write as 3.0."""

LARGEST: Final = 10_000
STEPS: Final = 32
"""Schemas in one that is looked at for an end, and steps in which it is found."""

Neutral = Callable[[Any, Mapping[str, Any]], bool]


def _is_true(value: Any, _: Mapping[str, Any]) -> bool:
    return value is True or bool(value == {})


def _is_empty(value: Any, _: Mapping[str, Any]) -> bool:
    return bool(value == {})


def _without(*names: str) -> Neutral:
    return lambda _, schema: not any(name in schema for name in names)


NOT_HELD: Final[Mapping[str, Neutral]] = {
    "$dynamicAnchor": lambda value, _: isinstance(value, str),
    "$dynamicRef": lambda *_: False,
    "$recursiveAnchor": lambda value, _: isinstance(value, bool),
    "$recursiveRef": lambda *_: False,
    "contains": lambda _, schema: schema.get("minContains") == 0 and "maxContains" not in schema,
    "dependencies": _is_empty,
    "dependentRequired": lambda value, _: isinstance(value, Mapping) and not any(value.values()),
    "dependentSchemas": lambda value, _: isinstance(value, Mapping) and all(_is_true(one, {}) for one in value.values()),
    "else": _without("if"),
    "if": _without("then", "else"),
    "maxContains": _without("contains"),
    "minContains": lambda value, schema: "contains" not in schema or value == 0,
    "not": lambda value, _: value is False,
    "propertyNames": _is_true,
    "then": _without("if"),
    "unevaluatedItems": _is_true,
    "unevaluatedProperties": _is_true,
    "uniqueItems": lambda value, _: value is False,
}
"""Keywords that answers are not held to, and when they constrain nothing. Where they do constrain, the schema is refused."""


def held(schema: Any) -> Any:
    """A copy of a schema without what constrains nothing. GrammarError names the keyword that cannot be held, and its path; a
    schema to which no value conforms, or none that has an end; and one that is nested too deep."""
    if isinstance(schema, bool):
        if not schema:
            raise GrammarError("the schema is false, and no value conforms to it")
        return {}
    try:
        root = _copied(schema)
        schemas = dict(reached(root))
    except RecursionError as error:
        raise GrammarError("the schema is nested too deep: it exceeds the recursion limit") from error
    _require_end(root, schemas)
    return root


def moved(schema: Any, place: str) -> Any:
    """A copy of what `held` gives whose references to its own parts lead to its place in a larger schema. One with an `$id` is
    its own place wherever it stands."""
    root = _copied(schema)
    if isinstance(root, dict) and "$id" not in root:
        for _, part in list(reached(root)):
            if pointed(root, part.get("$ref")) is not None:
                part["$ref"] = place + part["$ref"][1:]
    return root


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list | tuple) else value


def reached(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas of a schema, with their paths, once each: those that stand in it, and those that references of it lead to,
    wherever they stand. Each is cleaned before it is given."""
    waiting: list[tuple[str, Any]] = [("#", root)]
    seen: set[int] = set()
    while waiting:
        path, schema = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        _clean(schema, path)
        yield path, schema
        parts = [(f"{path}/{place}", part) for place, part in _parts(schema)]
        if (target := pointed(root, schema.get("$ref"))) is not None:
            waiting.append((str(schema["$ref"]), target))  # after the parts, which have a path of their own
        waiting += reversed(parts)


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas that stand in one, with the rest of their paths."""
    for key in IN_ONE:
        if isinstance(schema.get(key), Mapping | bool):
            yield key, schema[key]
    for key in IN_LIST:
        if isinstance(schema.get(key), list):
            yield from ((f"{key}/{at}", one) for at, one in enumerate(schema[key]))
    for key in IN_MAP:
        if isinstance(schema.get(key), Mapping):
            names = ((name.replace("~", "~0").replace("/", "~1"), one) for name, one in schema[key].items())
            yield from ((f"{key}/{name}", one) for name, one in names)


def pointed(root: Any, reference: Any) -> Any:
    """What a reference by a JSON pointer (RFC 6901) leads to in the same schema; None for any other, which llguidance follows
    or refuses."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return None
    found = root
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _clean(schema: dict[str, Any], path: str) -> None:
    """Take out what constrains nothing."""
    for key in [key for key in schema if key in NOT_HELD]:
        if not NOT_HELD[key](schema[key], schema):
            raise GrammarError(f"{shown(f'{path}/{key}')} constrains the answer, and answers cannot be held to {key}")
    for key in NOT_HELD:
        schema.pop(key, None)
    if not isinstance(schema.get("items"), list):  # of older drafts, where a list of items goes with it
        schema.pop("additionalItems", None)
    if "format" in schema:
        if not isinstance(schema["format"], str):
            raise GrammarError(f"{shown(f'{path}/format')} is {described(schema['format'])}; allowed: text")
        if schema["format"] not in FORMATS:
            del schema["format"]
    for key in WHOLE:
        if isinstance(schema.get(key), float) and schema[key].is_integer():
            schema[key] = int(schema[key])


def _require_end(root: Any, schemas: Mapping[str, dict[str, Any]]) -> None:
    """GrammarError for a schema all values of which would be without end. What has values that end is found step by step: first
    what needs nothing else, then what needs that alone. Not looked for in a schema that is very large."""
    if len(schemas) > LARGEST or not any("$ref" in schema for schema in schemas.values()):
        return
    ending: set[int] = set()
    for _ in range(STEPS):
        before = len(ending)
        for schema in reversed(list(schemas.values())):
            if id(schema) not in ending and _ends(schema, root, ending):
                ending.add(id(schema))
        if len(ending) == before:
            break
    else:
        return
    if isinstance(root, dict) and id(root) not in ending:
        path = next(path for path, schema in schemas.items() if id(schema) not in ending and "$ref" in schema)
        raise GrammarError(f"no value of the schema has an end: the reference at {shown(path)} leads back to itself")


def _ends(schema: Mapping[str, Any], root: Any, ending: Collection[int]) -> bool:
    """Whether a schema can have a value that ends, by what is known of others to do so."""

    def ends(part: Any) -> bool:
        return not isinstance(part, dict) or id(part) in ending

    def all_end(parts: Iterable[Any]) -> bool:
        return all(map(ends, parts))

    if "const" in schema or "enum" in schema:
        return True
    choices = [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list) and schema[key]]
    if not (ends(pointed(root, schema.get("$ref"))) and all_end(_listed(schema, "allOf"))):
        return False
    if not all(any(map(ends, choice)) for choice in choices):
        return False
    types = schema.get("type")
    if types == "array" or types == ["array"]:
        first = _listed(schema, "prefixItems") or _listed(schema, "items")
        least = schema.get("minItems", 0)
        if not isinstance(least, int):
            return True
        return all_end(first[:least]) and (least <= len(first) or ends(schema.get("items")))
    if types == "object" or types == ["object"]:
        named = schema.get("properties", {})
        if not isinstance(named, Mapping):
            return True
        others = schema.get("additionalProperties")
        needed = [named.get(name, others) for name in _listed(schema, "required") if isinstance(name, str)]
        is_bare = schema.get("minProperties", 0) and "patternProperties" not in schema and not any(map(ends, named.values()))
        return all_end(needed) and (not is_bare or ends(others))
    return True


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
