"""Decodes for long and loads often, and says whether memory grew: of the host (resident bytes) and of the device (what the
driver has given out).

python -m benchmarks.soak --model SmolLM2.gguf --device cuda:0 --tokens 10000 --cycles 200 -o benchmarks/results/soak.json
"""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.record import write
from executor.device import open_device
from executor.device.protocol import Device
from executor.launch.modules import Modules
from executor.model.generation import LanguageModel
from executor.model.sampling import Sampler

PARTS = 10
WARM_UPS = 3  # cycles, and generations: pools fill, modules are loaded


@click.command()
@click.option("--model", type=click.Path(path_type=Path), required=True, help="A GGUF file.")
@click.option("--device", default="auto")
@click.option("--tokens", default=10_000)
@click.option("--cycles", default=200, help="Times that the model is loaded and given back.")
@click.option("--commit", help="What ran; found from git if there is one.")
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(model: Path, device: str, tokens: int, cycles: int, commit: str | None, output: Path) -> None:
    """Decode and load, and write the growth of memory as JSON."""
    with open_device(device) as opened:
        modules = Modules(opened)
        record = {
            "what": "growth of memory",
            "model": model.name,
            "decoding": _decoding(model, opened, modules, tokens),
            "loading": _loading(model, opened, modules, cycles),
        }
        write(output, record, opened.describe(), commit)
    click.echo(json.dumps({"decoding": record["decoding"], "loading": record["loading"]}))


def _decoding(path: Path, device: Device, modules: Modules, tokens: int) -> dict[str, Any]:
    with LanguageModel.load(path, device, modules=modules, context=1024) as model:
        count = 0

        def generate() -> int:
            nonlocal count
            count += len(model.generate([1, 2, 3, 4], max_tokens=1000, sampler=Sampler(), stop_tokens=()).tokens)
            return count

        for _ in range(WARM_UPS):
            generate()
        count = 0
        return {"tokens": tokens} | _watched(device, generate, tokens)


def _loading(path: Path, device: Device, modules: Modules, cycles: int) -> dict[str, Any]:
    done = -WARM_UPS

    def cycle() -> int:
        nonlocal done
        with LanguageModel.load(path, device, modules=modules, context=256) as model:
            model.generate([1, 2, 3, 4], max_tokens=4, sampler=Sampler(), stop_tokens=())
        done += 1
        return done

    while done < 0:
        cycle()
    return {"cycles": cycles} | _watched(device, cycle, cycles)


def _watched(device: Device, work: Callable[[], int], until: int) -> dict[str, Any]:
    """Do the work until it says that so much is done, and take memory at the start and after each of PARTS parts."""
    samples, start = [_memory(device)], time.perf_counter()
    for part in range(1, PARTS + 1):
        while work() * PARTS < until * part:
            pass
        samples.append(_memory(device))
    host, on_device = zip(*samples, strict=True)
    return {
        "seconds": time.perf_counter() - start,
        "host_bytes": host,
        "device_bytes": on_device,
        "host_growth_second_half_bytes": host[-1] - host[PARTS // 2],
        "device_growth_bytes": on_device[-1] - on_device[0],
    }


def _memory(device: Device) -> tuple[int, int]:
    """Bytes of the host and of the device that are in use."""
    gc.collect()
    device.synchronize()
    memory = device.memory()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, memory.total - memory.free


if __name__ == "__main__":
    main()
