"""Stand-ins for llama.cpp's benchmark programs, which print what the real ones print: fields and types as those of
llama.cpp 0c1e570 (October 2026) on a CPU, numbers from its READMEs. No test."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

BENCH_ROW: dict[str, Any] = {
    "build_commit": "8cf427ff",
    "build_number": 5163,
    "cpu_info": "AMD Ryzen 7 7800X3D 8-Core Processor",
    "gpu_info": "NVIDIA GeForce RTX 4080",
    "backends": "CUDA",
    "model_filename": "models/Qwen2.5-7B-Instruct-Q4_K_M.gguf",
    "model_type": "qwen2 7B Q4_K - Medium",
    "model_size": 4677120000,
    "model_n_params": 7615616512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_threads": 8,
    "cpu_mask": "0x0",
    "cpu_strict": False,
    "poll": 50,
    "type_k": "f16",
    "type_v": "f16",
    "n_gpu_layers": 99,
    "n_cpu_moe": 0,
    "split_mode": "layer",
    "main_gpu": 0,
    "no_kv_offload": False,
    "flash_attn": 1,
    "devices": "auto",
    "tensor_split": "0.00",
    "tensor_buft_overrides": "none",
    "load_mode": "auto",
    "lazy_mode": "auto",
    "embeddings": False,
    "no_op_offload": 0,
    "no_host": False,
    "repack": True,
    "fit_target": 0,
    "fit_min_ctx": 0,
    "n_prompt": 512,
    "n_gen": 0,
    "n_depth": 0,
    "test_time": "2025-04-24T11:58:50Z",
    "avg_ns": 72135640,
    "stddev_ns": 0,
    "avg_ts": 7100.002165,
    "stddev_ts": 0.0,
    "samples_ns": [72135640],
    "samples_ts": [7100.0],
}
"""A line of `llama-bench -o jsonl`: a prompt."""

BATCHED_ROW: dict[str, Any] = {
    "n_kv_max": 2048, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 1, "is_pp_shared": 0, "n_gpu_layers": 99,
    "n_threads": 8, "n_threads_batch": 8, "pp": 512, "tg": 128, "pl": 1, "n_kv": 640, "t_pp": 0.233810,
    "speed_pp": 547.453064, "t_tg": 3.503684, "speed_tg": 36.532974, "t": 3.737494, "speed": 68.495094,
}  # fmt: skip
"""A line of `llama-batched-bench --output-format jsonl`: one sequence."""

DEVICES = "Available devices:\n  CUDA0: NVIDIA GeForce RTX 4080 (16376 MiB, 15063 MiB free)\n"


def bench_rows(prompt: int = 512, tokens: int = 128) -> list[dict[str, Any]]:
    """Of a prompt, and of decoding at depths 0 and 1024; llama-bench runs the prompt at every depth, too."""

    def row(n_prompt: int, n_gen: int, n_depth: int, speed: float) -> dict[str, Any]:
        samples = [0.9 * speed, 1.1 * speed, speed] if n_gen else [speed]
        return BENCH_ROW | {"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": n_depth, "samples_ts": samples}

    return [
        row(prompt, 0, 0, 7100.002165),
        row(0, tokens, 0, 118.881588),
        row(prompt, 0, 1024, 6425.91),
        row(0, tokens, 1024, 110.5),
    ]


def batched_rows(prompt: int = 512, tokens: int = 128) -> list[dict[str, Any]]:
    """Of one and of four sequences, each twice."""

    def row(sequences: int, speed: float) -> dict[str, Any]:
        n_kv = sequences * (prompt + tokens)
        return BATCHED_ROW | {"pp": prompt, "tg": tokens, "pl": sequences, "n_kv": n_kv, "speed_tg": speed}

    return [row(1, 30.1), row(1, 36.532974), row(4, 60.2), row(4, 73.35)]


def stand_in(folder: Path, *, bench: str | None = None, batched: str | None = None) -> None:
    """Write both programs; bench, batched: lines of shell in place of what they print for a prompt of 512 and 128 tokens."""
    rows = {"llama-bench": bench_rows(), "llama-batched-bench": batched_rows()}
    for name, given in (("llama-bench", bench), ("llama-batched-bench", batched)):
        printed = "".join(f"{json.dumps(row)}\n" for row in rows[name])
        body = f"\ncat <<'END'\n\n{printed}END" if given is None else given
        listed = f"if [ \"$1\" = --list-devices ]; then cat <<'END'\n{DEVICES}END\nexit; fi"
        noise = "echo 'llama_model_loader: loaded meta data with 26 key-value pairs' >&2"
        path = folder / name
        path.write_text(f'#!/bin/bash\n{listed}\necho "${{@@Q}}" >>{shlex.quote(str(folder / name))}.asked\n{noise}\n{body}\n')
        path.chmod(0o755)


def asked(folder: Path, name: str) -> list[str]:
    """What a program was given each time, as a shell takes it."""
    return [shlex.join(shlex.split(line)) for line in (folder / f"{name}.asked").read_text().splitlines()]
