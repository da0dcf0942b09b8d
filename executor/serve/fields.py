"""The parameters of a request, taken one by one out of its JSON: what no field takes is refused, so nothing is ignored that
would change the answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from executor.base.arguments import described, number, one_of, whole
from executor.base.errors import shown
from executor.serve.errors import ApiError, blamed

WITHOUT_EFFECT: Final = (
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
)
"""Of OpenAI's parameters, those that say who asks, and change no answer."""

CACHE_MARKS: Final = ("prompt_cache_breakpoint", "cache_control")
"""Keys of messages, parts and tools that say what is worth caching: OpenAI's and Anthropic's. They change no answer."""


class RequestFields:
    """The members of a JSON object; null counts as not given. ApiError names the parameter, its value and what is allowed."""

    def __init__(self, body: object, name: str = "the body") -> None:
        if not isinstance(body, Mapping):
            raise ApiError(f"{name} is {described(body)}; allowed: a JSON object", param=None if name == "the body" else name)
        self._prefix = "" if name == "the body" else f"{name}."
        self._left = {key: value for key, value in body.items() if value is not None}
        self._known: list[str] = []

    def path(self, name: str) -> str:
        """What a parameter is called in an error."""
        return f"{self._prefix}{name}"

    def take(self, name: str) -> Any:
        """A parameter as it is, None if it is not given."""
        self._known.append(name)
        return self._left.pop(name, None)

    def required(self, name: str, allowed: str) -> Any:
        """A parameter that must be given."""
        value = self.take(name)
        if value is None:
            raise ApiError(f"{self.path(name)} is missing; allowed: {allowed}", param=self.path(name))
        return value

    def whole(self, name: str, default: int | None = None, low: int | None = None, high: int | None = None) -> int | None:
        """A whole number in a range."""
        value = self.take(name)
        with blamed(self.path(name)):
            return default if value is None else whole(self.path(name), value, low, high)

    def number(self, name: str, default: float, low: float | None = None, high: float | None = None) -> float:
        """A finite number in a range."""
        value = self.take(name)
        with blamed(self.path(name)):
            return default if value is None else number(self.path(name), value, low, high)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return default if value is None else value

    def text(self, name: str, default: str | None = None) -> str | None:
        """Text."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, value, "text")
        return default if value is None else value

    def choice(self, name: str, default: str, allowed: Collection[str]) -> str:
        """One of some words."""
        value = self.take(name)
        with blamed(self.path(name)):
            return default if value is None else one_of(self.path(name), value, allowed)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """One text or a list of up to `most`, none of them empty."""
        value = self.take(name)
        many = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(many, list) or len(many) > most or not all(isinstance(one, str) and one for one in many):
            raise self.wrong(name, value, f"text of at least one character, or a list of up to {most} such texts")
        return tuple(many)

    def wrong(self, name: str, value: object, allowed: str) -> ApiError:
        """The error for a value that is not allowed."""
        return ApiError(f"{self.path(name)} is {described(value)}; allowed: {allowed}", param=self.path(name))

    def only(self, neutral: Mapping[str, tuple[Iterable[Any], str]]) -> None:
        """Parameters that are known and not supported: by name the values that change nothing, and what to say of others."""
        for name, (values, why) in neutral.items():
            value = self.take(name)
            self._known.pop()
            if value is not None and not any(type(value) is type(one) and value == one for one in values):
                raise ApiError(
                    f"{self.path(name)} is not supported: {why}; leave it out",
                    param=self.path(name),
                    code="unsupported_parameter",
                )

    def ignore(self, *names: str) -> None:
        """Parameters that change no answer."""
        for name in names:
            self._left.pop(name, None)

    def finish(self) -> None:
        """Refuse what is left."""
        for name in self._left:
            if self._prefix or name not in WITHOUT_EFFECT:
                raise ApiError(
                    f"there is no parameter {self.path(shown(name))}; allowed: {', '.join(self._known)}",
                    param=self.path(shown(name)),
                    code="unknown_parameter",
                )
