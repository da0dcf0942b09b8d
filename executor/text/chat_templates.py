"""The chat templates of a GGUF file: the default one and those with a name, such as `tool_use`. Rendered in chat.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import numpy as np

from executor.base.errors import ModelError, shown
from executor.gguf.gguf_file import GgufFile
from ptxgen.errors import ArgumentError

KEY: Final = "tokenizer.chat_template"
LIST: Final = "tokenizer.chat_templates"
DEFAULT: Final = "default"
WITH_TOOLS: Final = "tool_use"
"""The name of the template that is taken where tools are given, as Hugging Face's apply_chat_template takes it."""


@dataclass(frozen=True)
class ChatTemplates:
    """Jinja2 templates by name; the one without a name is `default`."""

    named: Mapping[str, str]
    path: Path

    @classmethod
    def from_gguf(cls, file: GgufFile) -> ChatTemplates:
        """Read them. ModelError for a template that is no text, and for a name in the list that has no template."""
        named: dict[str, str] = {}
        for key, value in file.metadata.items():
            if key == KEY or key.startswith(f"{KEY}."):
                if not isinstance(value, str):
                    raise ModelError(f"{key} must be a string", file.path)
                named[key[len(KEY) + 1 :] or DEFAULT] = value
        listed = file.metadata.get(LIST, [])
        if isinstance(listed, np.ndarray) and listed.size == 0:
            listed = []
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise ModelError(f"{LIST} must be an array of strings", file.path)
        for name in listed:
            if name not in named:
                raise ModelError(f"{LIST} names {shown(str(name))}, and {KEY}.{shown(str(name))} is missing", file.path)
        return cls(named, file.path)

    @property
    def default(self) -> str | None:
        """The template that is taken where none is named; None if the file has none or several of which none is the default."""
        return self.named.get(DEFAULT)

    def choose(self, name: str | None = None, *, tools: bool = False) -> str:
        """The template of a conversation. tools: whether some are shown to the model. ModelError where the file has none, or
        none for this; ArgumentError for a name that it does not have."""
        if not self.named:
            raise ModelError("the file has no chat template", self.path)
        if name is not None and name not in self.named:
            raise ArgumentError(f"there is no chat template {shown(name)}; allowed: {self._names()}")
        if name is not None:
            return self.named[name]
        chosen = self.named.get(WITH_TOOLS) if tools else None
        chosen = self.default if chosen is None else chosen
        return self._no_default() if chosen is None else chosen

    def _no_default(self) -> NoReturn:
        raise ModelError(f"the file has chat templates and none of them is the default; name one of {self._names()}", self.path)

    def _names(self) -> str:
        return ", ".join(map(shown, sorted(self.named)))
