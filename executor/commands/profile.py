"""`ptxrun profile`: where the time of a token goes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from executor.commands.session import (
    AskedModel,
    ModelSession,
    context_option,
    device_option,
    devices_option,
    model_argument,
    precision_option,
    session,
)
from ptxgen.commands import console
from ptxgen.commands.options import FILE, json_option
from ptxgen.errors import ArgumentError
from ptxgen.files import make_folder, replacing

if TYPE_CHECKING:
    from executor.measure.roofline import NoPlotting
    from executor.model.decode_profile import DecodeProfile

PROMPT: Final = "The capital of France is"
SUMMARY: Final = "summary.json"
TRACE: Final = "trace.json"
PLOT: Final = "roofline.svg"


@click.command("profile")
@model_argument
@click.option("-o", "--output", required=True, metavar="DIR", type=FILE, help="The folder to write.")
@click.option("-p", "--prompt", metavar="TEXT", help=f"What the steps continue (default: {PROMPT!r}).")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Continue N tokens of no meaning instead.")
@click.option("--steps", type=click.IntRange(min=1), default=16, show_default=True, help="How many tokens to time.")
@click.option(
    "--by",
    type=click.Choice(["operation", "kernel", "level", "layer"]),
    default="operation",
    show_default=True,
    help="What a row of the table stands for; a level is Macro (matrices), Midi (attention) or Micro (vectors).",
)
@click.option("--no-plot", is_flag=True, help=f"Do not draw {PLOT}, for which matplotlib is needed.")
@device_option
@devices_option
@precision_option
@context_option
@json_option(f"Print what {SUMMARY} holds instead of the table.")
def profile_command(
    asked: AskedModel,
    output: Path,
    prompt: str | None,
    tokens: int | None,
    steps: int,
    by: str,
    no_plot: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Time every kernel of a decode step, in the very graph of the step, and print where the time goes.

    The kernels leave the times at which they start and end, so they run side by side as ever. `us each` is a launch's own
    time; `us/step` is what the launches add to a step: the time from the end of the one that ended before to their own. With
    what no launch covers, the row `between launches`, that adds up to the step, which is compared with one without stamps.

    Each launch belongs to a level: Macro multiplies matrices, Midi is attention, Micro passes over a vector (norms, RoPE,
    activation functions, quantisation, the choice of a token).

    Writes DIR/summary.json (all figures), DIR/trace.json (open it in ui.perfetto.dev) and, where matplotlib is installed,
    DIR/roofline.svg. On the emulator the times are the CPU's and say nothing about a GPU.

    \b
    Examples:
      ptxrun profile model.gguf -o profile
      ptxrun profile model.gguf -o profile --tokens 4000 --by level
    """
    from executor.measure.roofline import plot_roofline
    from executor.measure.trace import chrome_trace
    from executor.model.decode_profile import limit_of, profile_decoding

    if prompt is not None and tokens is not None:
        raise click.UsageError("give --prompt or --tokens, not both")
    no_plotting = None if no_plot else _no_plotting()  # now: what is found need not load
    make_folder(output)
    with session(asked.path, **options) as running:
        decoder = running.model.decoder
        ids = _ids(running, prompt, tokens)
        with console.progress() as report:
            for number, token in enumerate(ids[:-1], 1):
                decoder.step(token, head=False)
                report("prompt", number, len(ids) - 1)
            limit, timed = limit_of(decoder.device), partial(report, "profile")
            profile = profile_decoding(decoder, ids[-1], steps, limit=limit, progress=timed)
        facts = _facts(asked.path, running, ids, profile)
        _write(output / SUMMARY, facts)
        _write(output / TRACE, chrome_trace(profile.tiles))
        if as_json:
            console.print_json(facts)
        else:
            _show(profile, facts, by)
        if no_plotting is not None:
            console.echo(f"{PLOT} is not drawn: {no_plotting}", err=True)
        elif not no_plot:
            plot_roofline(profile.tiles, output / PLOT)


def _no_plotting() -> NoPlotting | None:
    """Why nothing can be drawn; None where it can."""
    from executor.measure.roofline import NoPlotting, require_plotting

    try:
        require_plotting()
    except NoPlotting as error:
        return error
    return None


def _ids(running: ModelSession, prompt: str | None, tokens: int | None) -> list[int]:
    """What is run before the timed steps, and their first token."""
    model = running.model
    ids = (
        model.tokenizer.encode(PROMPT if prompt is None else prompt)
        if tokens is None
        else [number % model.spec.vocab for number in range(tokens)]
    )
    if not ids:
        raise ArgumentError("the prompt has no tokens; give at least one")
    if len(ids) > model.context:
        raise ArgumentError(f"the prompt has {len(ids)} tokens, the context holds {model.context}")
    return ids


def _facts(path: Path, running: ModelSession, ids: list[int], profile: DecodeProfile) -> dict[str, Any]:
    from executor.measure.tile_summary import tile_facts

    timed = tile_facts(profile.tiles)
    return {
        "model": str(path),
        "precision": running.model.decoder.profile.precision,
        "prompt_tokens": len(ids),
        "untimed_step_us": profile.step_seconds * 1e6,
        "step_to_untimed": timed["step_us"] / (profile.step_seconds * 1e6),
        **timed,
        "device": running.device_facts(),
    }


def _show(profile: DecodeProfile, facts: dict[str, Any], by: str) -> None:
    from executor.measure.profiler import LEGEND
    from executor.measure.tile_summary import tile_table

    console.print_rich(tile_table(profile.tiles, by))
    console.echo(f"\nlevels: {LEGEND}")
    steps, launches = console.counted(facts["steps"], "step"), f"{facts['launches_a_step']:.0f} launches"
    console.echo(f"{steps} of {launches} on {profile.tiles.device.name}")
    stamped, plain, ratio = facts["step_us"], facts["untimed_step_us"], facts["step_to_untimed"]
    console.echo(f"a step: {stamped:.1f} us with stamps, {plain:.1f} us as it is: {ratio:.3f} times as long")
    if profile.tiles.limit is not None:
        console.echo(f"limit: {profile.tiles.limit.source}; above 100 % the caches have served what the memory has not")


def _write(path: Path, facts: dict[str, Any]) -> None:
    with replacing(path) as stream:
        stream.write(json.dumps(facts, allow_nan=False).encode())
