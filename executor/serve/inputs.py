"""What a request has the model read: text or token ids, one or several, as completions and embeddings take them."""

from __future__ import annotations

from typing import Any

from executor.base.arguments import described, tokens
from executor.serve.errors import ApiError, blamed
from executor.serve.service import Served

Text = str | list[int]


def texts_of(name: str, given: Any, most: int, allowed: str) -> list[Text]:
    """One or several of a parameter. ApiError says what is allowed; token ids are looked at by `ids_of`."""
    if isinstance(given, str) or (isinstance(given, list) and given and _is_number(given[0])):
        return [given]
    if not isinstance(given, list) or not 0 < len(given) <= most:
        what = f"a list of {len(given)}" if isinstance(given, list) else described(given)
        raise ApiError(f"{name} is {what}; allowed: {allowed}", param=name)
    for at, one in enumerate(given):
        if not isinstance(one, str | list) or isinstance(one, str) != isinstance(given[0], str):
            raise ApiError(f"{name}[{at}] is {described(one)}; allowed for {name}: {allowed}", param=name)
    return given


def ids_of(name: str, text: Text, served: Served, param: str) -> list[int]:
    """Token ids of one of them, at least one. Control tokens are not looked for in a text."""
    with blamed(param):
        if isinstance(text, str):
            ids = served.tokenizer.encode(text, parse_special=False)
        else:
            ids = tokens(name, text, served.tokenizer.vocab_size)
    if not ids:
        raise ApiError(f"{name} has no tokens; allowed: at least one", param=param)
    return ids


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
