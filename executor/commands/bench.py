"""`ptxrun bench`: how fast a model reads prompts and decodes, for one sequence and many, and how that compares; or how fast a
kernel is (bench_kernel.py)."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from executor.base.rules import RULES
from executor.commands import bench_kernel
from executor.commands.session import (
    AskedModel,
    ModelSession,
    device_option,
    devices_option,
    kv_type_option,
    model_dir_option,
    precision_option,
    session,
)
from ptxgen import __version__
from ptxgen.commands import console
from ptxgen.commands.completion import complete_kernels, complete_kernels_or_files
from ptxgen.commands.options import FILE, json_option, options_as, set_option, whole_numbers
from ptxgen.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import DataclassInstance

    from executor.measure.llama_cpp import LlamaCpp
    from executor.measure.speed import Measured, SpeedCase
    from executor.model.context import ContextLimit
    from executor.model.engine import Engine


ROUNDS: Final = 5


@dataclass(frozen=True)
class BenchOptions:
    """The options of kernels and models alike. The fields of all three are named as the command's parameters."""

    subject: str
    rounds: int | None
    plot: Path | None
    device: str
    as_json: bool


@dataclass(frozen=True)
class KernelOptions:
    """The options of kernels alone."""

    settings: tuple[str, ...]
    against: tuple[str, ...]


@dataclass(frozen=True)
class ModelOptions:
    """The options of models alone, lists of numbers as they were written."""

    tokens: int
    prompts: str
    depths: str
    batches: str
    batch_depth: int
    chunk: int
    vs: str | None
    vs_args: str
    vs_env: tuple[str, ...]
    devices: list[str] | None
    precision: str | None
    kv_type: str
    model_dir: Path | None

    def cases(self) -> tuple[SpeedCase, ...]:
        """What is timed. ArgumentError for a list that is not one of numbers."""
        from executor.measure.speed import speed_cases

        return speed_cases(
            whole_numbers("--prompt", self.prompts, "numbers of tokens", "512,8192", low=1),
            self.tokens,
            whole_numbers("--depth", self.depths, "numbers of positions", "0,1024,8192", low=0),
            whole_numbers("--batch", self.batches, "numbers of sequences", "1,2,4,8", low=1),
            self.batch_depth,
        )


@click.command("bench")
@click.argument("subject", metavar="MODEL|KERNEL", shell_complete=complete_kernels_or_files)
@set_option
@click.option(
    "--against", multiple=True, metavar="KERNEL", help="Time it, too, with the same --set.", shell_complete=complete_kernels
)
@click.option("--tokens", type=click.IntRange(min=1), default=128, show_default=True, metavar="N", help="Tokens to decode.")
@click.option("--prompt", "prompts", default="512", show_default=True, metavar="P,...", help="Read prompts of so many tokens.")
@click.option(
    "--depth", "depths", default="0", show_default=True, metavar="D,...", help="Decode with so many positions before."
)
@click.option("--batch", "batches", default="1", show_default=True, metavar="B,...", help="Decode so many sequences together.")
@click.option(
    "--batch-depth",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    metavar="D",
    help="Positions before, of each sequence of a batch: what llama-batched-bench calls -npp.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1, max=4096),
    default=512,
    show_default=True,
    metavar="C",
    help="Tokens of a prompt that are read at once; more need more memory.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=None,
    show_default=f"{ROUNDS}; of kernels {bench_kernel.ROUNDS}",
    help="Time everything so often; medians count.",
)
@click.option(
    "--vs", type=click.Choice(["llama.cpp"]), help="Also run llama-bench and llama-batched-bench, found on PATH, in turn."
)
@click.option("--vs-args", default="", metavar="WORDS", help="More options for both programs, such as '-ub 2048'.")
@click.option("--vs-env", multiple=True, metavar="NAME=VALUE", help="Set for both, such as GGML_CUDA_GRAPH_OPT=1.")
@click.option("--plot", metavar="FILE", type=FILE, help="Draw what was measured: .png or .svg.")
@model_dir_option
@device_option
@devices_option
@precision_option
@kv_type_option
@json_option("All figures as JSON, with machine, versions and command.")
@click.pass_context
def bench_command(ctx: click.Context, /, **given: Any) -> None:
    """Time a model, or a kernel. A name that `ptxgen list` has is a kernel; a path (with a folder or an ending, such as
    ./model) or hf://... is a model.

    Of a model prompts and decoding are timed, in tokens a second, on random tokens. The answer to each step is read back, as
    as soon as it ends, while the next one runs. "Of limit" is the share of the speed at which a step would only
    read weights and cache from the GPU's memory.

    Of a kernel launches are timed, in graphs, each on random arguments that the GPU's cache does not hold; "of roofline" is the
    share of what the device allows for the kernel's own `work`. Times of the emulator are the CPU's and say nothing of a GPU.

    With --vs all is run in turn with llama.cpp, ours first in one round and llama.cpp in the next, on the same file and GPU:
    the same prompts, depths, batches and tokens; its cache in f16 unless --kv-type says q8_0.

    \b
    Examples:
      ptxrun bench model.gguf
      ptxrun bench model.gguf --prompt 512,8192 --depth 0,1024,8192 --batch 1,2,4,8,16,32 --vs llama.cpp --plot speed.svg
      ptxrun bench model.gguf --prompt 2048 --vs llama.cpp --vs-args '-ub 2048' --vs-env GGML_CUDA_GRAPH_OPT=1
      ptxrun bench my_q4k_gemv --set k=4096 --set n=14336 --against q4k_gemv --against mwv_q4k_gemv
    """
    options = options_as(BenchOptions, given)
    kernel = bench_kernel.kernel_named(options.subject)
    _refuse_options(ctx, of_kernel=kernel is not None)
    if kernel is None:
        _bench_model(options, options_as(ModelOptions, given))
        return
    alone = options_as(KernelOptions, given)
    rounds = options.rounds or bench_kernel.ROUNDS
    bench_kernel.bench_kernel(
        kernel, alone.settings, alone.against, rounds, options.device, options.plot, as_json=options.as_json
    )


def _bench_model(options: BenchOptions, model: ModelOptions) -> None:
    from executor.device.cuda import CudaDevice
    from executor.gguf.gguf_file import GgufFile
    from executor.measure.llama_cpp import LlamaCpp
    from executor.measure.speed import room_for
    from executor.measure.speed_plot import plot_speeds, require_speed_plot
    from executor.model.context import ContextLimit
    from executor.model.decode_profile import require_unwatched
    from executor.model.engine import PAGE_LEN
    from executor.model.matrices import matrices
    from executor.model.model_file import read_spec

    cases = model.cases()
    if options.plot is not None:
        require_speed_plot(options.plot)
    words, environment = _words(model.vs_args), _variables(model.vs_env)
    if model.vs is None and (words or environment):
        raise ArgumentError("--vs-args and --vs-env are for the programs that --vs runs; add --vs llama.cpp, or leave them out")
    if model.vs is not None and model.devices is not None:
        raise ArgumentError("--vs runs llama.cpp on the GPU of --device; leave it or --devices out")
    path = AskedModel(options.subject, model.model_dir).path
    peer = (
        None
        if model.vs is None
        else LlamaCpp.find(path, kv_type="q8_0" if model.kv_type == "q8_0" else None, words=words, environment=environment)
    )
    room = room_for(cases)
    with GgufFile.open(path) as file:
        weight_bytes = sum(matrix.nbytes * tensors for matrix in matrices(file) for _, tensors in matrix.roles)
        context = _context(max(room), PAGE_LEN, ContextLimit.of(read_spec(file)))
    with session(path, options.device, devices=model.devices, context=context, precision=model.precision) as running:
        if peer is not None and isinstance(running.model.device, CudaDevice):
            peer = peer.on(running.model.device.ordinal)
        pages = sum(-(-positions // PAGE_LEN) for positions in room)
        shape: dict[str, Any] = {"pages": pages, "page_len": PAGE_LEN, "context": context, "kv_type": model.kv_type}
        engine = running.model.engine(slots=len(room), rows=max(model.chunk, len(room)), **shape)
        require_unwatched(engine.launcher)
        measured = _measure(engine, cases, options.rounds or ROUNDS, peer, weight_bytes)
        facts = _facts(path, running, engine, peer, measured, weight_bytes)
    if options.as_json:
        console.print_json(facts)
    else:
        _show(facts, measured)
    if options.plot is not None:
        plot_speeds(measured, f"{path.name} on {facts['machine']['name']}, {facts['precision']}", options.plot)


def _refuse_options(ctx: click.Context, *, of_kernel: bool) -> None:
    """ArgumentError for an option that says nothing of what is timed."""
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE or name in _names(BenchOptions):
            continue
        if (name in _names(KernelOptions)) != of_kernel:
            what, other = ("models", "kernel") if of_kernel else ("kernels", "model")
            raise ArgumentError(f"{parameter.opts[0]} is for {what}, and {ctx.params['subject']} is a {other}")


def _names(kind: type[DataclassInstance]) -> set[str]:
    return {field.name for field in fields(kind)}


def _context(needed: int, page_len: int, limit: ContextLimit) -> int:
    """Positions of a sequence: what is needed, in whole pages."""
    context = -(-needed // page_len) * page_len
    if context > limit.tokens:
        raise ArgumentError(
            f"a sequence needs room for {context} tokens, and the model has a context of {limit.tokens} ({limit.reason}); "
            f"choose a smaller --prompt, --depth, --batch-depth or --tokens"
        )
    return context


def _words(text: str) -> list[str]:
    """The words of --vs-args, as a shell takes them apart."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ArgumentError(f"--vs-args {text[:80]!r} is not what a shell could read: {error}") from error


def _variables(settings: Sequence[str]) -> dict[str, str]:
    """Of --vs-env."""
    for setting in settings:
        if not setting.partition("=")[0].isidentifier() or "=" not in setting:
            raise ArgumentError(f"--vs-env {setting[:80]!r} is not NAME=VALUE, such as GGML_CUDA_GRAPH_OPT=1")
    return dict(setting.split("=", 1) for setting in settings)


def _measure(
    engine: Engine, cases: Sequence[SpeedCase], rounds: int, peer: LlamaCpp | None, weight_bytes: int
) -> list[Measured]:
    """All cases in turn, `rounds` times, and the peer's after ours in one round, before ours in the next: a GPU that becomes
    warm favours neither."""
    from executor.measure.bandwidth import bandwidth
    from executor.measure.speed import Measured, Speed
    from executor.model.engine_speed import EngineSpeed

    speeds: dict[SpeedCase, list[float]] = {case: [] for case in cases}
    others: dict[SpeedCase, list[float]] = {case: [] for case in cases}
    limit = bandwidth(engine.device) if engine.device.kind == "cuda" else None
    timed = EngineSpeed(engine, cases)
    with console.progress() as report:
        timed.prepare(partial(report, "filling caches"))
        total = rounds * (len(cases) + (peer is not None))
        steps = count(1)

        def time_ours() -> None:
            for case in cases:
                speeds[case].append(timed.tokens_per_second(case))
                report("rounds", next(steps), total)

        def time_peer() -> None:
            if peer is not None:
                for case, speed in peer.speeds(cases).items():
                    others[case].append(speed)
                report("rounds", next(steps), total)

        for number in range(rounds):
            for side in (time_peer, time_ours) if number % 2 else (time_ours, time_peer):
                side()
    weight_bytes //= engine.device.ranks
    a_position = engine.cache.nbytes / (engine.pages * engine.page_len)  # the page tables in it are some bytes a page

    def step_bytes(case: SpeedCase) -> float | None:
        return None if case.kind == "prompt" else weight_bytes + case.read_positions * a_position

    return [
        Measured(
            case,
            Speed(tuple(speeds[case])),
            peer=None if peer is None else Speed(tuple(others[case])),
            step_bytes=step_bytes(case),
            limit=limit,
        )
        for case in cases
    ]


def _facts(
    path: Path, running: ModelSession, engine: Engine, peer: LlamaCpp | None, measured: Sequence[Measured], weight_bytes: int
) -> dict[str, Any]:
    """In the form of the files in benchmarks/results."""
    return {
        "what": "prompts, decoding at depths, decoding in batches",
        "model": path.name,
        "weight_bytes_a_step": weight_bytes,
        "ranks": engine.device.ranks,
        "precision": running.model.decoder.profile.precision,
        "rules": [name for name in RULES if running.model.decoder.profile.allows(name)],
        "kv_type": engine.cache.shape.kv_type,
        "page_len": engine.page_len,
        "rows_of_a_prompt_step": engine.rows,
        "attention": engine.attention.facts(),
        "read_limit_bytes_per_second": measured[0].limit,
        "llama_cpp": None if peer is None else {**peer.facts, "commands": peer.commands},
        "load_seconds": running.load_seconds,
        "machine": running.device_facts(),
        "ptxgen": __version__,
        "commit": _commit(),
        "command": shlex.join(["ptxrun", *(path.name if word == str(path) else word for word in sys.argv[1:])]),
        "results": [one.facts() for one in measured],
    }


def _commit() -> str | None:
    """The commit of a source tree that this package is run from; None where it is installed without one."""
    root = Path(__file__).parents[2]
    if shutil.which("git") is None or not (root / ".git").exists():
        return None
    git = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or None


def _show(facts: dict[str, Any], measured: Sequence[Measured]) -> None:
    limit, peer = facts["read_limit_bytes_per_second"], facts["llama_cpp"]
    columns = ["work", "sequences", "depth", "tokens", "tokens/s", "spread"]
    columns += ([] if limit is None else ["of limit"]) + ([] if peer is None else ["llama.cpp tokens/s", "ratio"])
    rows = [_cells(one) for one in measured]
    console.print_table(columns, rows, numeric=columns[1:], bold="tokens/s" if peer is None else "ratio")
    how = facts["precision"] + (", weights repacked" if "repack" in facts["rules"] else "")
    console.echo(f"\n{facts['model']}, {how}, cache in {facts['kv_type']}, {facts['machine']['name']}; medians", err=True)
    if limit is None:
        console.echo("times of the emulator are the CPU's; it has no memory of its own, so no limit of reading", err=True)
    else:
        console.echo(
            f"limit: weights, as in the file, and cache read once a step at {limit / 1e9:.0f} GB/s (measured)", err=True
        )
    if peer is not None:
        said = ", ".join(f"{name} {value}" for name, value in peer.items() if value and name != "commands")
        console.echo(f"llama.cpp: {said or 'said nothing of itself'}", err=True)


def _cells(one: Measured) -> list[str]:
    case, speeds = one.case, one.speed.rounds
    spread = f"{(max(speeds) - min(speeds)) / one.speed.median:.1%}"
    cells = ["prompt" if case.kind == "prompt" else "decode", str(case.sequences), str(case.depth), str(case.tokens)]
    cells += [_rounded(one.speed.median), spread]
    if one.limit is not None:
        cells.append("" if one.share is None else f"{one.share:.0%}")
    if one.peer is not None:
        cells += [_rounded(one.peer.median), f"{one.ratio:.2f}"]
    return cells


def _rounded(speed: float) -> str:
    """Four digits or all before the point."""
    return f"{speed:.0f}" if speed >= 1000 else f"{speed:.4g}"
