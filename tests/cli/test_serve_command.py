"""What `ptxrun serve` hands to the server; that itself is tested in tests/executor/serve."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from executor.model.engine import Engine
from executor.serve import server
from executor.serve.access import AccessRules
from executor.serve.service import Service
from tests.cli.invoke import invoke
from tests.synthetic import Q, write_model


@pytest.mark.parametrize(("parts", "words", "name"), [(0, (), "m"), (6, (), "m"), (6, ("--name", "mine"), "mine")])
def test_a_model_is_called_as_its_file_without_the_number_of_a_part(
    parts: int, words: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    def serve(service: Service, access: AccessRules, listener: socket.socket, ready: Callable[[], None]) -> bool:
        served.append(service.served.name)
        return True

    monkeypatch.setattr(server, "serve", serve)
    path = write_model(
        tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=64, context=64, tensors_a_file=parts
    )
    assert ("-of-" in path.name) == bool(parts)
    done = invoke("ptxrun", "serve", path, "--device", "emulator", "--port", "0", "--slots", "1", *words)
    assert (done.exit_code, served) == (0, [name])


@pytest.mark.parametrize(("words", "prepared"), [((), 0), (("--no-warmup",), 0), (("--warmup",), 1)])
def test_steps_are_made_ready_where_that_is_asked_for_and_not_on_the_emulator_by_itself(
    words: tuple[str, ...], prepared: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Engine] = []
    monkeypatch.setattr(server, "serve", lambda *_: True)
    monkeypatch.setattr(Engine, "prepare", lambda engine, progress: made.append(engine))
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=1, hidden=64, heads=2, kv_heads=1, ff=64, context=64)
    done = invoke("ptxrun", "serve", path, "--device", "emulator", "--port", "0", "--slots", "1", *words)
    assert (done.exit_code, len(made)) == (0, prepared)
