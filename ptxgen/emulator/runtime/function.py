"""The functions of the runtime by their parts, and what makes one of the Python function that builds its body. No llvmlite
here, so that what only reads the layout of the shadow, say, does not import it."""

from __future__ import annotations

from collections.abc import Callable

from ptxgen.emulator.runtime.builder import RuntimeFunction

KERNEL = "kernel"
"""The part that a compiled kernel is: what it has for the runtime to call."""

parts: dict[str, dict[str, RuntimeFunction]] = {}
"""The functions of each part by name."""


def runtime_function(
    result: str, *, name: str = "", part: str = "", is_hot: bool = False, **arguments: str
) -> Callable[[Callable[..., None]], RuntimeFunction]:
    """Makes a runtime function of the Python function that builds it, with its name and, as its part, its module's."""

    def decorate(body: Callable[..., None]) -> RuntimeFunction:
        function = RuntimeFunction(name or body.__name__, result, arguments, part or body.__module__, body, is_hot)
        # Two threads may need the same helper first; `setdefault` is atomic, so both get the one that was first.
        first = parts.setdefault(function.part, {}).setdefault(function.name, function)
        if first.body.__code__ is not body.__code__:
            raise TypeError(f"{function.part} has another runtime function called {function.name}")
        return first

    return decorate
