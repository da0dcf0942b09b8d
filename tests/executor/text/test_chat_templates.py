"""Which of a file's chat templates a conversation is rendered by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.base.errors import ModelError
from executor.gguf.gguf_file import GgufFile
from executor.text.chat import chat_ids
from executor.text.chat_templates import ChatTemplates
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError
from tests.synthetic import Q, write_model

FILE = {
    "tokenizer.chat_templates": ["tool_use", "rag"],
    "tokenizer.chat_template": "default",
    "tokenizer.chat_template.tool_use": "tools",
    "tokenizer.chat_template.rag": "documents",
}


def templates(metadata: Mapping[str, Any]) -> ChatTemplates:
    file = GgufFile.__new__(GgufFile)
    file.metadata, file.path = dict(metadata), Path("m.gguf")
    return ChatTemplates.from_gguf(file)


@pytest.mark.parametrize(
    ("name", "tools", "chosen"),
    [(None, False, "default"), (None, True, "tools"), ("rag", True, "documents"), ("default", True, "default")],
)
def test_tools_take_their_template_where_none_is_named(name: str | None, tools: bool, chosen: str) -> None:
    assert templates(FILE).choose(name, tools=tools) == chosen


def test_one_template_is_that_of_tools_too() -> None:
    only = templates({"tokenizer.chat_template": "default", "tokenizer.chat_templates": np.zeros(0)})
    assert only.choose(tools=True) == only.choose() == "default"


def test_names_are_told_where_none_can_be_chosen() -> None:
    without = templates({key: value for key, value in FILE.items() if key != "tokenizer.chat_template"})
    assert without.default is None
    assert without.choose(tools=True) == "tools"
    with pytest.raises(ModelError, match="none of them is the default; name one of rag, tool_use"):
        without.choose()
    with pytest.raises(ArgumentError, match="there is no chat template nosuch; allowed: rag, tool_use"):
        without.choose("nosuch")
    with pytest.raises(ModelError, match="the file has no chat template"):
        templates({}).choose()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.chat_template.x": 5}, r"tokenizer\.chat_template\.x must be a string"),
        ({"tokenizer.chat_templates": ["x"]}, r"names x, and tokenizer\.chat_template\.x is missing"),
        ({"tokenizer.chat_templates": "x"}, r"tokenizer\.chat_templates must be an array of strings"),
    ],
)
def test_templates_that_cannot_be(metadata: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        templates(metadata)


@pytest.mark.slow
def test_a_conversation_with_tools_is_rendered_by_their_template(tmp_path: Path) -> None:
    small = {"layers": 1, "hidden": 32, "heads": 1, "kv_heads": 1, "ff": 32, "types": Q.F32}
    tokenizer = Tokenizer.from_gguf(GgufFile.open(write_model(tmp_path / "m.gguf", metadata=FILE, **small)))
    hello = [{"role": "user", "content": "x"}]
    said = [
        chat_ids(tokenizer, hello, extra={"tools": tools}, template=name)
        for tools, name in ((None, None), ([], None), ([], "rag"))
    ]
    assert [tokenizer.decode(ids) for ids in said] == ["default", "tools", "documents"]
