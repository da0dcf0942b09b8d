"""Ids of calls in the forms that chat templates take them. Which one a template takes is found out in template_habits.py."""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from typing import Final, Literal

IdForm = Literal["any", "nine", "nine or more", "function"]
"""`any`: as OpenAI's; `nine`: that many letters and digits, as Mistral's; `nine or more`: of others the template takes the end;
`function`: functions.NAME:INDEX, as Kimi's, whose template writes no other name."""
NINE: Final = 9
_ALPHABET: Final = string.ascii_letters + string.digits


def fitted_id(id: str, form: IdForm, name: str, index: int) -> str:
    """The id of call `index` of a conversation, from 0, or one made of it where it has not this form. name: of its function."""
    if form == "function":
        return id if re.fullmatch(rf"functions\.{re.escape(name)}:\d+", id) else f"functions.{name}:{index}"
    long_enough = form == "any" or (form == "nine or more" and len(id) >= NINE)
    return id if long_enough or (len(id) == NINE and set(id) <= set(_ALPHABET)) else _nine_of(id)


def new_id(form: IdForm, name: str, index: int) -> str:
    """An id for a call of an answer."""
    id = f"call_{secrets.token_hex(12)}"
    return _nine_of(id) if form == "nine or more" else fitted_id(id, form, name, index)


def _nine_of(id: str) -> str:
    number = int.from_bytes(hashlib.sha256(id.encode(errors="surrogatepass")).digest())
    return "".join(_ALPHABET[number // len(_ALPHABET) ** at % len(_ALPHABET)] for at in range(NINE))
