"""What holds where there is too much: requests that are too many or too long, strangers, clients that leave, and a worker that
fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from executor.base.errors import DeviceFailed
from executor.serve.access import AccessRules, keys_of
from executor.serve.errors import ApiError
from executor.serve.limits import RequestPlaces, ServerLimits
from executor.text.tokenizer import Tokenizer
from ptxgen.errors import ArgumentError
from tests.executor.model.fake_engine import FakeEngine
from tests.executor.serve.local import VOCABULARY, Connection, Local, run

ENDLESS = {"prompt": [5], "max_tokens": 250, "temperature": 0, "stream": True, "ignore_eos": True}


def slow_engine(seconds: float = 0.005) -> FakeEngine:
    engine = FakeEngine(slots=2, vocab=VOCABULARY, context=256, pages=256, page_len=4, rows=64)
    engine.before_step = lambda rows: time.sleep(seconds)
    return engine


async def until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def test_a_full_queue_is_said_with_the_time_to_try_again_and_later_all_are_answered(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        long = [asyncio.create_task(local.post("/v1/completions", ENDLESS | {"stream": False})) for _ in range(3)]
        await until(lambda: local.service.places.taken == 3)
        refused = await local.post("/v1/completions", ENDLESS)
        assert refused.status_code == 429
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.json()["error"]["code"] == "queue_full"
        assert "all 2 places are taken and 1 requests wait; try again in" in refused.json()["error"]["message"]
        alone = local.alone([5], 250)
        assert [(await one).json()["choices"][0]["text"] for one in long] == [alone] * 3
        assert (await local.post("/v1/completions", ENDLESS)).status_code == 200

    run(work, tokenizer, engine=slow_engine(0.001), limits=ServerLimits(running=2, queue=1))


def test_the_time_to_try_again_follows_what_answers_took() -> None:
    places = RequestPlaces(ServerLimits(running=2, queue=2))
    assert places.wait() == 1
    for _ in range(10):
        places.answered(9.0)
    assert places.wait() == 5
    places.answered(10_000.0)
    assert places.wait() == 60
    with pytest.raises(ApiError, match="asks for 5 answers at once; allowed: up to 4"), places.taking(5):
        pass


def test_a_client_that_leaves_is_cancelled_within_a_step(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        for stream in (True, False):
            begun = len(local.engine.steps)
            client = Connection("/v1/completions", ENDLESS | {"stream": stream, "n": 2})
            served = asyncio.create_task(client(local.app))
            await until(lambda begun=begun: len(local.engine.steps) > begun + 10)  # type: ignore[misc]
            client.leave()
            await served
            left = len(local.engine.steps)
            await until(lambda: local.service.worker.status.running == 0)
            assert len(local.engine.steps) <= left + 2  # the one that ran, and the one that was started ahead of it
            assert local.service.worker.status.pages_held == 0
            assert local.service.places.taken == 0
        assert local.service.worker.status.finished == {"cancelled": 4}
        text = (await local.http.get("/metrics")).text
        assert 'ptxrun_requests_total{endpoint="/v1/completions",status="499"} 2.0' in text

    run(work, tokenizer, engine=slow_engine())


def test_many_tokens_are_handed_back_at_once_where_sending_would_take_too_long(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(local: Local) -> None:
        streams = [Connection("/v1/completions", ENDLESS | {"max_tokens": 100}) for _ in range(2)]
        await asyncio.gather(*(stream(local.app) for stream in streams))
        for stream in streams:
            assert "".join(event["choices"][0]["text"] for event in stream.events) == local.alone([5], 100)
            assert 1 < len(stream.events) < 50

    monkeypatch.setattr("executor.serve.worker.PACE", 0.02)
    run(work, tokenizer, engine=slow_engine(0.002))


def test_a_client_that_leaves_the_queue_never_runs(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        first = [asyncio.create_task(local.post("/v1/completions", ENDLESS)) for _ in range(2)]
        await until(lambda: local.service.worker.status.running == 2)
        client = Connection("/v1/completions", {"prompt": [77], "max_tokens": 5})
        served = asyncio.create_task(client(local.app))
        await until(lambda: local.service.worker.status.queued == 1)
        client.leave()
        await served
        await asyncio.gather(*first)
        assert not any(row.token == 77 for rows in local.engine.steps for row in rows[:1] if row.position == 0)

    run(work, tokenizer, engine=slow_engine(0.001))


def test_an_answer_that_takes_too_long_ends_with_an_error(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        whole = await local.post("/v1/completions", ENDLESS | {"stream": False})
        assert whole.status_code == 504
        assert "took more than 1 s, the limit of this server" in whole.json()["error"]["message"]
        client = Connection("/v1/completions", ENDLESS)
        await client(local.app)
        assert client.sent[0]["status"] == 200
        assert len(client.events) > 1
        assert client.events[-1]["error"]["code"] == "timeout"
        await until(lambda: local.service.worker.status.running == 0)

    run(work, tokenizer, engine=slow_engine(0.02), limits=ServerLimits(running=2, queue=2, request_seconds=1))


def test_bodies_have_a_type_a_size_and_a_time(tokenizer: Tokenizer) -> None:
    async def slowly() -> Any:
        yield b"{"
        await asyncio.sleep(10)

    async def endlessly() -> Any:
        for _ in range(100):
            yield b" " * 100

    async def work(local: Local) -> None:
        json = {"content-type": "application/json"}
        post = local.http.post
        for content, status, said in (
            (b"{" + b" " * 2000, 413, "too many bytes; allowed: up to 1000"),
            (endlessly(), 413, "too many bytes; allowed: up to 1000"),
            (slowly(), 408, "the body took more than 0.1 s"),
            (b"{", 400, "the body is no JSON"),
            (b"\xff", 400, "the body is no JSON"),
            (b"[" * 900, 400, "the body is"),
            (b'{"prompt": "a", "temperature": NaN}', 400, "temperature is nan; allowed"),
            (b'{"prompt": "\\ud800"}', 400, "the text is not Unicode"),
        ):
            response = await post("/v1/completions", content=content, headers=json)
            assert (response.status_code, said in response.json()["error"]["message"]) == (status, True), response.text
        plain = await post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
        assert (plain.status_code, plain.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert local.engine.steps == []

    run(work, tokenizer, limits=ServerLimits(running=2, queue=2, body_bytes=1000, read_seconds=0.1))


def test_without_the_key_nothing_is_answered(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic right"}, {"authorization": "right"}):
            for answer in (
                await local.post("/v1/completions", {"prompt": "a"}, **headers),
                await local.http.get("/v1/models", headers=headers),
                await local.http.get("/metrics", headers=headers),
            ):
                assert answer.status_code == 401
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        for key in ("right", "other"):
            allowed = await local.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, authorization=f"Bearer {key}")
            assert allowed.status_code == 200
        assert (await local.http.get("/health")).status_code == 200

    run(work, tokenizer, keys=["right", "other"])


def test_keys_come_from_a_file_or_the_environment_and_are_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    file.chmod(0o600)
    assert keys_of(file, "ignored") == ["one", "two"]
    assert not caplog.records
    file.chmod(0o644)
    keys_of(file, None)
    assert "can be read by other users" in caplog.text
    assert keys_of(None, "three") == ["three"]
    assert keys_of(None, None) == []
    file.write_text("\n")
    with pytest.raises(ArgumentError, match="has no key"):
        keys_of(file, None)
    file.write_text("se cret\n")
    for path, environment in ((file, None), (None, "se cret")):
        with pytest.raises(ArgumentError, match="a character that it may not have") as error:
            keys_of(path, environment)
        assert "cret" not in str(error.value).replace(str(tmp_path), "")


def test_a_key_is_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key by its digest, all of it, in constant time."""
    from starlette.datastructures import Headers

    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr("executor.serve.access.hmac.compare_digest", compare)
    access = AccessRules(["first", "second"], "127.0.0.1")
    access.require_key(Headers({"authorization": "Bearer first"}))
    assert len(compared) == 2
    assert {len(side) for pair in compared for side in pair} == {32}


def test_a_page_from_elsewhere_cannot_use_another_name_for_this_machine(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        for host, status in (
            ("evil.example", 403), ("evil.example:8000", 403), ("", 403), ("127.0.0.1:8000", 200), ("localhost", 200),
            ("[::1]:8000", 200),
        ):  # fmt: skip
            for path in ("/", "/health", "/v1/models"):
                assert (await local.http.get(path, headers={"host": host})).status_code == status, host
            assert (await local.post("/v1/completions", {"prompt": "a"}, host=host)).status_code == status

    run(work, tokenizer)

    async def anywhere(local: Local) -> None:
        assert (await local.http.get("/health", headers={"host": "my.example"})).status_code == 200

    run(anywhere, tokenizer, host="0.0.0.0")


def test_paths_and_methods_that_there_are_not_have_openais_errors(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        missing = await local.http.get("/v1/nothing")
        assert (missing.status_code, "/v1/completions" in missing.json()["error"]["message"]) == (404, True)
        wrong = await local.http.get("/v1/completions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert "GET is not allowed at /v1/completions; allowed: POST" in wrong.json()["error"]["message"]

    run(work, tokenizer)


def test_a_step_that_fails_fails_its_answers_and_no_others(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        def fail(rows: object) -> None:
            raise ValueError("the device is tired")

        local.engine.before_step = fail
        failed = await local.post("/v1/completions", {"prompt": [5], "max_tokens": 3})
        assert failed.status_code == 500
        assert "the device is tired" not in failed.text  # the log has it
        local.engine.before_step = lambda rows: None
        assert (await local.post("/v1/completions", {"prompt": [5], "max_tokens": 3})).status_code == 200
        assert (await local.http.get("/health")).status_code == 200

    run(work, tokenizer)


def test_a_device_that_has_failed_is_told_to_all_and_by_health(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        def fail(rows: object) -> None:
            raise DeviceFailed("the device has failed", "a fault")

        local.engine.before_step = fail
        failed = await asyncio.gather(*(local.post("/v1/completions", {"prompt": [5, at]}) for at in range(6)))
        assert {one.status_code for one in failed} == {503}
        health = await local.http.get("/health")
        assert (health.status_code, "the device has failed" in health.json()["status"]) == (503, True)
        assert (await local.post("/v1/completions", {"prompt": [5]})).status_code == 503

    run(work, tokenizer)


def test_a_device_that_answers_no_more_is_said_by_health_and_to_who_comes_until_it_does(tokenizer: Tokenizer) -> None:
    awake, engine = threading.Event(), slow_engine()

    def hang(rows: object) -> None:
        awake.wait(20)

    engine.before_step = hang

    async def work(local: Local) -> None:
        assert (await local.http.get("/health")).status_code == 200
        running = asyncio.create_task(local.post("/v1/completions", {"prompt": [5], "max_tokens": 3}))
        await until(lambda: local.service.trouble != "")
        health = await local.http.get("/health")
        assert (health.status_code, "has not ended a step for" in health.json()["status"]) == (503, True)
        assert (await local.post("/v1/completions", {"prompt": [5]})).status_code == 503
        awake.set()
        assert (await running).status_code == 200
        assert (await local.http.get("/health")).status_code == 200

    run(work, tokenizer, engine=engine, limits=ServerLimits(running=2, queue=2, step_seconds=0.2))


def test_a_worker_that_has_ended_leaves_nobody_waiting(tokenizer: Tokenizer) -> None:
    async def work(local: Local) -> None:
        running = asyncio.create_task(local.post("/v1/completions", ENDLESS | {"stream": False}))
        await until(lambda: local.service.worker.status.running == 1)
        stopping = threading.Thread(target=local.service.worker.stop, args=(10,))
        stopping.start()
        assert (await running).status_code == 503
        await asyncio.get_running_loop().run_in_executor(None, stopping.join)
        assert (await local.post("/v1/completions", {"prompt": [5]})).status_code == 503
        local.service.worker.failure = ""  # as if it had ended just now
        assert (await local.post("/v1/completions", {"prompt": [5]})).status_code == 503
        assert (await local.post("/v1/embeddings", {"input": "a"})).status_code == 503

    run(work, tokenizer, engine=slow_engine())
