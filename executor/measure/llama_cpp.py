"""llama.cpp's own benchmark programs as a peer on the same file: found on PATH, run, and what they print read. They time by
themselves; nothing here is timed."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from executor.measure.speed import SpeedCase
from ptxgen.errors import PtxGenError

BENCH: Final = "llama-bench"
BATCHED: Final = "llama-batched-bench"
ALL_LAYERS: Final = 99
"""What people write for `every layer on the GPU`."""
CELLS: Final = 256
"""llama.cpp rounds the room of a sequence up to a multiple of this."""
REPEATED: Final = 3
"""Times that llama-bench decodes in a run, the middle one of which counts: its warm-up is one token, so the first time it also
captures its CUDA graphs. A prompt it warms up with as a whole."""
TWICE: Final = 2
"""Times that llama-batched-bench, which warms up with nothing of the kind, runs each number of sequences; the second counts."""
SHOWN_LINES: Final = 12
FACTS: Final = ("build_commit", "build_number", "backends", "gpu_info", "type_k", "type_v", "n_batch", "n_ubatch")

_log = logging.getLogger(__name__)


class LlamaCppError(PtxGenError):
    """llama.cpp's programs are not there, fail, or print what cannot be read."""


@dataclass
class LlamaCpp:
    """Both programs, on one model. gpu: the number of the GPU to use, as the CUDA driver counts; None lets them choose.
    kv_type: how keys and values are held; None is their default (f16). words: more options for both; environment: variables
    that are set for them. facts: what they said of themselves in a run; commands: all that was run last, without folders."""

    bench: str
    batched: str
    model: Path
    gpu: int | None = None
    kv_type: str | None = None
    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    @classmethod
    def find(
        cls,
        model: Path,
        *,
        kv_type: str | None = None,
        words: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> LlamaCpp:
        """The programs on PATH. LlamaCppError, with what to install, if one is missing."""
        missing = [name for name in (BENCH, BATCHED) if shutil.which(name) is None]
        if missing:
            raise LlamaCppError(
                f"{' and '.join(missing)} of llama.cpp not found on PATH: build it (cmake -B build -DGGML_CUDA=ON; "
                f"cmake --build build --target {BENCH} {BATCHED}) and add build/bin to PATH, or leave out --vs"
            )
        bench, batched = shutil.which(BENCH), shutil.which(BATCHED)
        assert bench is not None
        assert batched is not None
        return cls(bench, batched, model, kv_type=kv_type, words=tuple(words), environment=environment or {})

    def on(self, gpu: int) -> LlamaCpp:
        """The same on this GPU. LlamaCppError if llama.cpp does not see it: it would time the CPU then, and not say so."""
        said = _run([self.bench, "--list-devices"], self.environment)
        if not re.search(rf"\bCUDA{gpu}\b", said):
            raise LlamaCppError(
                f"{self.bench} cannot use GPU {gpu}: its --list-devices names no CUDA{gpu}, but says{_shown(said)}"
            )
        return replace(self, gpu=gpu)

    def speeds(self, cases: Sequence[SpeedCase]) -> dict[SpeedCase, float]:
        """Run what the cases need once; tokens a second of each, of all its sequences. LlamaCppError if that fails."""
        self.commands.clear()
        kinds: dict[str, list[SpeedCase]] = {"prompt": [], "depth": [], "batch": []}
        for case in cases:
            kinds[case.kind].append(case)
        # Prompts alone, since llama-bench would run each of them at each depth, too.
        return self._single(kinds["prompt"]) | self._single(kinds["depth"]) | self._batches(kinds["batch"])

    def _single(self, cases: Sequence[SpeedCase]) -> dict[SpeedCase, float]:
        """Prompts, or one sequence at depths."""
        if not cases:
            return {}
        lengths, prompts = _listed(case.tokens for case in cases), cases[0].kind == "prompt"
        words = ["-r", str(1 if prompts else REPEATED), "-fa", "1", "-o", "jsonl", *self._common()]
        words += ["-p", lengths, "-n", "0"] if prompts else ["-p", "0", "-n", lengths]
        words += ["-d", _listed(case.depth for case in cases)]
        rows, printed = self._rows(self.bench, words)
        self.facts |= {name: rows[0][name] for name in FACTS if rows and name in rows[0]}

        def speed(case: SpeedCase) -> float:
            prompt, answer = (case.tokens, 0) if prompts else (0, case.tokens)
            wanted = {"n_prompt": prompt, "n_gen": answer, "n_depth": case.depth}
            return _speed(BENCH, rows, printed, wanted, "samples_ts")

        return {case: speed(case) for case in cases}

    def _batches(self, cases: Sequence[SpeedCase]) -> dict[SpeedCase, float]:
        if not cases:
            return {}
        most = max(case.sequences for case in cases)
        room = max(-(-case.positions // CELLS) * CELLS for case in cases)
        words = ["-fa", "on", "--output-format", "jsonl", *self._common(), "-c", str(most * room)]
        words += ["-npp", _listed(case.depth for case in cases), "-ntg", _listed(case.tokens for case in cases)]
        words += ["-npl", ",".join(str(case.sequences) for case in cases for _ in range(TWICE))]
        rows, printed = self._rows(self.batched, words)

        def speed(case: SpeedCase) -> float:
            wanted = {"pl": case.sequences, "pp": case.depth, "tg": case.tokens}
            return _speed(BATCHED, rows, printed, wanted, "speed_tg", TWICE)

        return {case: speed(case) for case in cases}

    def _common(self) -> list[str]:
        words = ["-m", str(self.model), "-ngl", str(ALL_LAYERS)]
        if self.gpu is not None:
            words += ["-dev", f"CUDA{self.gpu}"]
        if self.kv_type is not None:
            words += ["-ctk", self.kv_type, "-ctv", self.kv_type]
        return [*words, *self.words]

    def _rows(self, program: str, words: Sequence[str]) -> tuple[list[Mapping[str, Any]], str]:
        """The JSON objects that it printed, a line each, and all that it printed."""
        self.commands.append(self._command(program, words))
        printed = _run([program, *words], self.environment)
        rows = []
        for line in printed.splitlines():
            if line.startswith("{"):
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise LlamaCppError(f"{program} printed a line that is no JSON ({error}):{_shown(line)}") from error
        return rows, printed

    def _command(self, program: str, words: Sequence[str]) -> str:
        """The command as a shell takes it, its variables first, without the folders of program and model."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        named = [self.model.name if word == str(self.model) else word for word in words]
        return " ".join([*variables, shlex.join([Path(program).name, *named])])


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Its stdout, with these variables set beside our own. LlamaCppError, with the end of its stderr, if it fails."""
    _log.info("%s", shlex.join(command))
    variables = os.environ | environment
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=variables)
    except OSError as error:
        raise LlamaCppError(f"{command[0]} cannot be started: {error}") from error
    if run.returncode:
        said = (run.stderr or run.stdout).decode(errors="replace")
        raise LlamaCppError(f"{shlex.join(command)} ended with exit code {run.returncode}:{_shown(said)}")
    return run.stdout.decode(errors="replace")


def _speed(
    program: str, rows: Sequence[Mapping[str, Any]], printed: str, wanted: Mapping[str, int], name: str, times: int = 1
) -> float:
    """A field of the last of the `times` rows that have these values: a number, or several whose median counts."""
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    value = found[-1].get(name) if len(found) == times else None
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, int | float) and not isinstance(one, bool) and one > 0 for one in values):
        which = ", ".join(f"{key} {value}" for key, value in wanted.items())
        count = "one row" if times == 1 else f"{times} rows"
        raise LlamaCppError(f"{program} did not print {count} with {which} and a speed {name}:{_shown(printed)}")
    return float(statistics.median(values))


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, dict.fromkeys(numbers)))


def _shown(text: str) -> str:
    """The end of what a program said, in lines of their own."""
    lines = [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
    return "".join(f"\n  {line[:200]}" for line in lines) or " nothing"
