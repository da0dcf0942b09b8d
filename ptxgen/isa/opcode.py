"""The words of an opcode: a row's template taken apart, the modifiers that a text spells, and the decorators that hold a row's
modifiers and operands where these have no room in its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class OpcodeSlot:
    """A place in the opcode: a fixed word (`values` of one, no name) or a modifier."""

    name: str
    values: tuple[str, ...]
    optional: bool = False


def slots_of(template: str, places: Mapping[str, str | tuple[str, ...]]) -> tuple[str, tuple[OpcodeSlot, ...]]:
    """The mnemonic of a template, and its other words."""
    slots = []
    mnemonic, *words = template.split(".")
    for word in words:
        if word.startswith("{"):
            slot, optional = word.strip("{}?"), word.endswith("?}")
            values = places[slot]
            if isinstance(values, str):
                raise ValueError(f"{template}: the values of {slot} must be a tuple")
            slots.append(OpcodeSlot(slot, values, optional))
        else:
            slots.append(OpcodeSlot("", (word,)))
    return mnemonic, tuple(slots)


def match(slots: tuple[OpcodeSlot, ...], words: tuple[str, ...]) -> dict[str, str] | None:
    """The modifiers that `words` (the opcode after its mnemonic) spell, or None if they do not fit the slots."""
    if not slots:
        return {} if not words else None
    slot, rest = slots[0], slots[1:]
    for value in slot.values:  # a value may be of several words (`xorsign.abs`)
        length = value.count(".") + 1
        if words[:length] == tuple(value.split(".")):
            modifiers = match(rest, words[length:])
            if modifiers is not None:
                return {slot.name: value, **modifiers} if slot.name else modifiers
    return match(rest, words) if slot.optional else None


def modifiers(**values: tuple[str, ...]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The values of modifiers of the row whose decorator stands above, where they have no room in it."""
    return _more_places(values)


def operands(**specs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The operands of the row whose decorator stands above, where they have no room in it."""
    return _more_places(specs)


_PLACES: Final = "_places"


def _more_places(places: Mapping[str, str | tuple[str, ...]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def keep(meaning: Callable[..., Any]) -> Callable[..., Any]:
        vars(meaning).setdefault(_PLACES, {}).update(places)
        return meaning

    return keep


def taken_places(meaning: Callable[..., Any]) -> dict[str, str | tuple[str, ...]]:
    """What these decorators hold for the row above them; the next row above gets none of it."""
    taken: dict[str, str | tuple[str, ...]] = vars(meaning).pop(_PLACES, {})
    return taken
