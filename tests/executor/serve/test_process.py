"""`ptxrun serve` as a process on loopback: OpenAI's client, curl, two hundred clients at once, and its end."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import uvicorn

from executor.device import open_device
from executor.model.generation import LanguageModel
from executor.serve.server import SignalledServer
from executor.text.tokenizer import Tokenizer
from tests.cli.invoke import invoke, python, refused
from tests.docs.pages import blocks
from tests.executor.model.fake_engine import FakeEngine
from tests.executor.serve.local import Local, run
from tests.executor.serve.process import ServerProcess
from tests.paths import ROOT

CLIENTS = 200
TOKENS = 4
SLOTS = 4
CONTEXT = 96


@pytest.fixture(scope="module")
def server(model: Path, kernels: Path) -> Iterator[ServerProcess]:
    words = ("--slots", SLOTS, "--queue", 100, "--context", CONTEXT)
    with ServerProcess(model, kernels, *words) as running:
        yield running


@pytest.fixture(scope="module")
def alone(model: Path, kernels: Path) -> Iterator[LanguageModel]:
    """The model without any server."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PTXGEN_CACHE_DIR", str(kernels))
        patched.setenv("PTXGEN_BATCH_INVARIANT", "1")
        with open_device("emulator") as device, LanguageModel.load(model, device, context=CONTEXT) as loaded:
            yield loaded


def client_of(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def address(server: ServerProcess) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)


def curl(*words: str) -> str:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not on PATH")
    return subprocess.run([program, "-sS", *words], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.slow
def test_openais_client_gets_what_the_model_says_alone(server: ServerProcess, alone: LanguageModel) -> None:
    client = client_of(server)
    made = client.completions.create(model="tiny", prompt="once", max_tokens=6, temperature=0, logprobs=1)
    said = alone.generate("once", max_tokens=6, logprobs=1)
    assert made.choices[0].text == said.text
    told = made.choices[0].logprobs
    assert told is not None
    assert told.token_logprobs == pytest.approx([one.logprob for one in said.logprobs])
    messages: Any = [{"role": "user", "content": "the"}]
    stream = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == alone.chat(messages, max_tokens=6).text
    drawn: Any = {"model": "tiny", "prompt": "once", "max_tokens": 6, "seed": 3, "top_p": 0.9}
    assert client.completions.create(**drawn).choices[0].text == client.completions.create(**drawn).choices[0].text
    vectors = client.embeddings.create(model="tiny", input=["the", "once upon"])
    expected = alone.embed(["the", "once upon"])
    assert np.array_equal(np.asarray([one.embedding for one in vectors.data], np.float32), expected)
    form: Any = {"type": "json_schema", "json_schema": {"name": "f", "schema": {"enum": ["yes", "no"]}}}
    held = client.chat.completions.create(model="tiny", messages=messages, response_format=form, temperature=0)
    assert json.loads(held.choices[0].message.content or "") in ("yes", "no")
    with pytest.raises(openai.BadRequestError, match="temperature is -1; allowed"):
        client.completions.create(model="tiny", prompt="once", temperature=-1)


@pytest.mark.slow
def test_curl_gets_an_answer_and_a_stream(server: ServerProcess, alone: LanguageModel) -> None:
    kind, url = ("-H", "Content-Type: application/json"), f"{server.url}/v1/completions"
    body = {"prompt": "once", "max_tokens": 4, "temperature": 0}
    answer = json.loads(curl(url, *kind, "-d", json.dumps(body)))
    assert answer["choices"][0]["text"] == alone.generate("once", max_tokens=4).text
    stream = curl("-N", url, *kind, "-d", json.dumps(body | {"stream": True}))
    events = stream.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    text = "".join(json.loads(event.removeprefix("data: "))["choices"][0]["text"] for event in events[:-2])
    assert text == answer["choices"][0]["text"]
    assert json.loads(curl(f"{server.url}/health")) == {"status": "ok"}
    assert "ptxrun_steps_total" in curl(f"{server.url}/metrics")


@pytest.mark.slow
def test_what_the_page_shows_is_run(server: ServerProcess) -> None:
    """At this server's address, and with its model's name."""
    shown = {block.language: block.text for block in blocks(ROOT / "docs" / "serving.md") if "run by" in block.above}
    here = {name: text.replace("http://127.0.0.1:8000", server.url) for name, text in shown.items()}
    if shutil.which("curl") is None:
        pytest.skip("curl is not on PATH")
    said = subprocess.run(["/bin/sh", "-c", here[""]], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(said)["choices"][0]["message"]["role"] == "assistant"
    assert 'model="model"' in here["python"]
    done = python(here["python"].replace('model="model"', 'model="tiny"'))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_two_hundred_clients_lose_nothing(server: ServerProcess, alone: LanguageModel) -> None:
    """Each answer is what the model says alone, greedily; who is told to wait is answered at last; the counts add up."""
    prompts = [[7 + at % 5, 11 + at // 5] for at in range(CLIENTS)]
    before = counted(server)

    async def ask(client: openai.AsyncOpenAI, at: int) -> tuple[str, Any]:
        asked: Any = {"model": "tiny", "prompt": prompts[at], "max_tokens": TOKENS, "temperature": 0}
        if at % 2:
            made = await client.completions.create(**asked)
            return made.choices[0].text, made.usage
        text, usage = "", None
        async for chunk in await client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
            text += "".join(choice.text for choice in chunk.choices)
            usage = chunk.usage or usage
        return text, usage

    async def all_of_them() -> list[tuple[str, Any]]:
        http = httpx2.AsyncClient(limits=httpx2.Limits(max_connections=None), timeout=300)
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=1000, http_client=http
        ) as client:
            return await asyncio.gather(*(ask(client, at) for at in range(CLIENTS)))

    answers = asyncio.run(all_of_them())
    for prompt, (text, usage) in zip(prompts, answers, strict=True):
        said = alone.generate(prompt, max_tokens=TOKENS)
        assert text == said.text
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(said.tokens))
    after = counted(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["ptxrun_answer_tokens_total"] == sum(usage.completion_tokens for _, usage in answers)
    assert grown["ptxrun_prompt_tokens_total"] == 2 * CLIENTS
    assert grown['ptxrun_requests_total{endpoint="/v1/completions",status="200"}'] == CLIENTS
    assert grown['ptxrun_requests_total{endpoint="/v1/completions",status="429"}'] > 0
    assert after["ptxrun_places_taken"] == after["ptxrun_pages_held"] == 0


def counted(server: ServerProcess) -> dict[str, float]:
    """The server's metrics by their names."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


@pytest.mark.slow
def test_sigterm_lets_answers_end_and_takes_no_more(model: Path, kernels: Path, alone: LanguageModel) -> None:
    body = {"model": "tiny", "prompt": "once", "max_tokens": 60, "temperature": 0, "extra_body": {"ignore_eos": True}}
    with ServerProcess(model, kernels, "--slots", SLOTS, "--context", CONTEXT) as server:
        client, texts = client_of(server), list[str]()
        stream = client.completions.create(**body, stream=True)  # type: ignore[call-overload]
        texts.append(next(stream).choices[0].text)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(openai.APIConnectionError):
            client_of(server).models.list()
        texts += [chunk.choices[0].text for chunk in stream]
        assert "".join(texts) == alone.generate("once", max_tokens=60, stop_tokens=()).text
        assert server.process.wait(30) == 0


@pytest.fixture(scope="module")
def guarded(model: Path, kernels: Path) -> Iterator[ServerProcess]:
    """One with a key and little time."""
    words = ("--name", "mine", "--slots", SLOTS, "--read-seconds", 0.5, "--drain-seconds", 0.5, "--draft", "lookup")
    with ServerProcess(model, kernels, *words, environment={"PTXGEN_API_KEY": "secret"}) as running:
        yield running


@pytest.mark.slow
def test_a_key_opens_the_server_and_heads_have_a_time(guarded: ServerProcess) -> None:
    listed = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="secret").models.list()
    assert [one.id for one in listed] == ["mine"]
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong").models.list()
    for head in (b"", b"GET /health HTTP/1.1\r\n"):  # who never sends the whole of it
        with socket.create_connection(address(guarded), timeout=20) as connection:
            connection.sendall(head)
            assert connection.recv(100) == b""


@pytest.mark.slow
def test_the_end_is_bounded_and_what_is_cut_off_is_told(guarded: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="secret", max_retries=0)
    stream = client.completions.create(
        model="mine", prompt="once", max_tokens=500, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    start = time.monotonic()
    guarded.process.send_signal(signal.SIGINT)
    with pytest.raises(openai.APIError, match="the server is shutting down"):
        list(stream)
    assert guarded.end() == 1
    assert time.monotonic() - start < 10
    assert "some answers were cut off" in guarded.said[-1]
    assert "secret" not in "".join(guarded.said)


@pytest.mark.slow
def test_hostile_bytes_leave_the_server_as_it_is(server: ServerProcess) -> None:
    for sent in (b"\0" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                 b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000):  # fmt: skip
        with socket.create_connection(address(server), timeout=20) as connection:
            connection.sendall(sent)
            answer = connection.recv(4096)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert json.load(urllib.request.urlopen(f"{server.url}/health", timeout=20)) == {"status": "ok"}


@pytest.mark.gpu
def test_on_a_gpu_the_workers_thread_answers_what_the_model_says_alone(model: Path, kernels: Path) -> None:
    with open_device("cuda") as device, LanguageModel.load(model, device, context=CONTEXT) as loaded:
        said, vector = loaded.generate("once", max_tokens=6).text, loaded.embed("the")
    with ServerProcess(model, kernels, "--slots", SLOTS, "--context", CONTEXT, device="cuda") as server:
        client = client_of(server)
        assert client.completions.create(model="tiny", prompt="once", max_tokens=6, temperature=0).choices[0].text == said
        made = client.embeddings.create(model="tiny", input="the").data[0].embedding
        assert np.array_equal(np.asarray(made, np.float32), vector)
        assert server.end() == 0


def test_a_second_signal_cuts_answers_off_and_a_third_ends_the_process(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("executor.serve.server.os._exit", codes.append)

    async def work(local: Local) -> None:
        server = SignalledServer(uvicorn.Config(local.app), local.service, lambda: None)
        body = {"prompt": [5], "max_tokens": 250, "ignore_eos": True}
        asked = asyncio.create_task(local.post("/v1/completions", body))
        while local.service.worker.status.running == 0:
            await asyncio.sleep(0.001)
        server._leave(signal.SIGTERM)
        assert server.should_exit
        assert (await local.post("/v1/completions", body)).status_code == 503
        assert not asked.done()
        server._leave(signal.SIGTERM)
        assert (await asked).status_code == 503
        assert server.cut
        assert codes == []
        server._leave(signal.SIGTERM)
        assert codes == [128 + signal.SIGTERM]

    engine = FakeEngine(slots=2, vocab=512, context=256, pages=256, page_len=4, rows=64)
    engine.before_step = lambda rows: time.sleep(0.01)
    run(work, tokenizer, engine=engine)


def test_help_has_an_example_and_bad_words_are_refused(model: Path, tmp_path: Path) -> None:
    said = invoke("ptxrun", "serve", "--help").stdout
    assert "ptxrun serve model.gguf --slots 64" in said
    assert "127.0.0.1" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "Address already in use" in refused("ptxrun", "serve", model, "--port", port)
    assert "none: cannot be read" in refused("ptxrun", "serve", model, "--api-key-file", tmp_path / "none")
    assert "--host nowhere.invalid" in refused("ptxrun", "serve", model, "--host", "nowhere.invalid")


def test_without_the_extra_the_command_says_what_to_install(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (("starlette",), ("prometheus_client", "starlette", "uvicorn")):
        for name in missing:
            monkeypatch.setitem(sys.modules, name, None)
        said = " ".join(refused("ptxrun", "serve", model).split())
        assert f'serve needs {", ".join(missing)}, not installed here; pip install "prometheus-client' in said
        assert '"starlette>=' in said
        assert '"uvicorn>=' in said


def test_the_command_is_there_without_importing_the_server() -> None:
    code = "import sys, executor.commands.cli; print({'starlette', 'uvicorn', 'prometheus_client'} & set(sys.modules))"
    assert python(code).stdout.strip() == "set()"


def test_threads_end_with_the_server() -> None:
    """None that other tests of this process started is left."""
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ptxrun-worker")]
