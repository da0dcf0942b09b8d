"""docs/serving.md says all that the server has: its paths, options, metrics, parameters, and what it refuses."""

from __future__ import annotations

import re

import click
import pytest

from executor.commands.serve import serve_command
from executor.serve import chat, completions
from executor.serve.fields import WITHOUT_EFFECT
from executor.serve.tools import CONVENTIONS
from executor.text.tokenizer import Tokenizer
from tests.executor.serve.local import Local, run
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
UNSAID = {"model", "model_dir", "host", "port", "name", "draft", "device", "devices", "precision"}
"""Options that the page need not put into its table of limits."""


def test_every_path_and_metric_is_on_the_page(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        paths = {getattr(route, "path", "").replace("{name:path}", "NAME") for route in local.app.routes}
        assert [path for path in paths if path not in PAGE] == []
        await local.client.completions.create(model="tiny", prompt="a")
        lines = (await local.http.get("/metrics")).text.splitlines()
        names = {line.split()[2] for line in lines if line.startswith("# HELP")}
        assert [name for name in names if name not in PAGE and not name.endswith("_created")] == []

    run(work, tokenizer)


def test_every_parameter_is_on_the_page(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        for path in ("/v1/completions", "/v1/chat/completions"):
            needed = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}["messages" if "chat" in path else "prompt"]
            body = {"messages" if "chat" in path else "prompt": needed, "nonsense": 1}
            said = (await local.post(path, body)).json()["error"]["message"]
            known = said.partition("allowed: ")[2].split(", ")
            assert len(known) > 15
            assert [name for name in known if f"`{name}" not in PAGE and name not in ("prompt", "messages")] == []

    run(work, tokenizer)


def test_what_is_refused_and_what_has_no_effect_is_on_the_page() -> None:
    refused = [*completions._UNSUPPORTED, *chat._UNSUPPORTED, "dimensions"]
    assert [name for name in (*refused, *WITHOUT_EFFECT) if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("option", [parameter for parameter in serve_command.params if parameter.name not in UNSAID])
def test_every_limit_is_on_the_page_with_its_default(option: click.Parameter) -> None:
    (name,) = option.opts
    row = re.search(rf"^\| `{name}` \| (.*?) \|", PAGE, re.MULTILINE)
    if name == "--api-key-file":
        assert f"`{name}`" in PAGE
        return
    assert row is not None, name
    if isinstance(option.default, int | float | str) and not isinstance(option.default, bool):
        assert row[1] == (option.default if isinstance(option.default, str) else f"{option.default:g}")


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda convention: convention.name)
def test_every_way_to_call_is_on_the_page(convention: object) -> None:
    assert any(sign.replace("|", r"\|") in PAGE for sign in convention.signs)  # type: ignore[attr-defined]
