"""The page at /: what it may do, and what it does in a headless Chromium where one is installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from executor.serve.page import content
from executor.text.tokenizer import Tokenizer
from tests.executor.serve.browser import Browser, found
from tests.executor.serve.local import Local, run
from tests.executor.serve.process import ServerProcess

HTML = "<b>a</b><img src=x onerror=document.title=1>"


def test_the_page_is_one_file_under_a_strict_policy(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        answer = await local.http.get("/")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["connect-src"] == "'self'"
        for kind in ("script-src", "style-src"):
            assert re.fullmatch(r"'sha256-[\w+/=]{44}'", policy[kind])
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"

    run(work, tokenizer)


def test_the_page_fetches_nothing_and_writes_no_html() -> None:
    page = content()[0].decode()
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?:""", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|\son\w+=", page)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found()
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def server(model: Path, kernels: Path) -> Iterator[ServerProcess]:
    with ServerProcess(model, kernels, "--context", 96, environment={"PTXGEN_API_KEY": "secret"}) as running:
        yield running


def say(browser: Browser, text: str) -> Any:
    """Type a message, send it, and wait for the end of the answer."""
    browser.value("document.getElementById('message').focus()")
    browser.type(text)
    browser.press_enter()
    return browser.wait_for("document.getElementById('send').textContent == 'Send' && document.body.innerText")


@pytest.mark.slow
def test_people_talk_to_the_model_and_what_is_said_is_never_html(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url)
    browser.wait_for("!document.getElementById('keyed').hidden")  # a key is asked for, so the page asks for it, too
    browser.value("document.getElementById('key').focus()")
    browser.type("secret")
    browser.press_enter()
    assert browser.wait_for("document.title == 'tiny' && document.title") == "tiny"
    browser.value("document.getElementById('most').value = 5; document.getElementById('temperature').value = 0; 1")
    say(browser, HTML)
    articles = browser.value("[...document.querySelectorAll('article')].map(a => [a.className, a.textContent])")
    assert articles[0] == ["user", HTML]
    assert [kind for kind, _ in articles] == ["user", "assistant"]
    asked: Any = {"messages": [{"role": "user", "content": HTML}], "max_tokens": 5, "temperature": 0}
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret")
    answer = client.chat.completions.create(model="tiny", **asked)
    assert articles[1][1] == answer.choices[0].message.content
    assert "5 tokens in" in browser.value("document.getElementById('about').textContent")
    # An answer that is HTML, as a model may say it.
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": HTML}, "finish_reason": "stop"}]})
    said = json.dumps(f"data: {event}\n\ndata: [DONE]\n\n")
    browser.value(f"window.fetch = async () => new Response({said}); 1")
    say(browser, "again")
    last = browser.value("[...document.querySelectorAll('article')].at(-1).textContent")
    assert last == HTML
    assert browser.value("document.querySelectorAll('main img, main b, main script').length") == 0
    assert browser.value("document.title") == "tiny"


@pytest.mark.slow
def test_the_policy_stops_what_a_page_must_not_do(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url)
    browser.value("window.ran = 0; 1")
    for attack in (
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')",
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))",
        "new Function('window.ran = 1')()",
    ):
        browser.ask("Runtime.evaluate", expression=attack, allowUnsafeEvalBlockedByCSP=False)
    assert browser.value("new Promise(done => setTimeout(() => done(window.ran), 200))") == 0
    blocked = browser.value("fetch('http://127.0.0.1:1/').then(() => 'sent', error => error.message)")
    assert "Failed to fetch" in blocked
    assert any("Content Security Policy" in said for said in browser.said)
