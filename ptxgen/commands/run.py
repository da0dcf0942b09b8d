"""`ptxgen run`: launches an entry of a PTX file on the CPU emulator, with arguments from the command line."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ptxgen.commands import console
from ptxgen.commands.options import FILE, json_option
from ptxgen.commands.start import FAILED
from ptxgen.errors import ArgumentError, ParseError
from ptxgen.files import replacing

if TYPE_CHECKING:
    from ptxgen.commands.arguments import RunArgument
    from ptxgen.emulator.sanitizer import Finding

HEAD: Final = 8  # elements of an array that are shown


def _dimensions(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """`4`, `4,2` or `4,2,1`."""
    if not re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10}){0,2}", value):
        raise click.BadParameter(f"{value!r} is not one to three whole numbers separated by commas, such as 4 or 4,2")
    return tuple(map(int, value.split(",")))


@click.command("run")
@click.argument("path", metavar="FILE.ptx", type=FILE)
@click.option("--entry", help="The kernel to launch; needed if the file has several.")
@click.option("--grid", metavar="X[,Y[,Z]]", callback=_dimensions, default="1", show_default=True, help="Blocks.")
@click.option("--block", metavar="X[,Y[,Z]]", callback=_dimensions, default="1", show_default=True, help="Threads of a block.")
@click.option("words", "--arg", multiple=True, metavar="ARG", help="An argument, in the order of the entry's parameters.")
@click.option("--shared", type=click.IntRange(min=0), default=0, show_default=True, help="Dynamic shared memory in bytes.")
@click.option("--cooperative", is_flag=True, help="All blocks are there at once and may wait for each other.")
@click.option(
    "--sanitize/--no-sanitize", default=True, show_default=True, help="Look for wrong accesses, races, stuck barriers."
)
@click.option("--seed", type=click.IntRange(min=0), help="Run warps and blocks in an order shuffled by this seed.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="How long the launch may take.",
)
@click.option("--source", is_flag=True, help="Show the author's lines, from the files that the PTX names.")
@click.option(
    "saves", "--save", multiple=True, metavar="ARG=FILE.npy", help="Save an array afterwards, by index from 0 or name."
)
@json_option("The findings and the arrays' first elements as JSON.")
@click.pass_context
def run_command(
    ctx: click.Context,
    path: Path,
    entry: str | None,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    words: tuple[str, ...],
    shared: int,
    cooperative: bool,
    sanitize: bool,
    seed: int | None,
    timeout: float,
    source: bool,
    saves: tuple[str, ...],
    as_json: bool,
) -> None:
    """Launch a kernel of a PTX file on the CPU emulator, under the sanitiser unless told otherwise.

    Prints what the kernel prints, then the first elements of each array, or the sanitiser's findings; exit code 1 if there are
    any, or if the kernel cannot finish in its time.

    \b
    Example:
      ptxgen run add.ptx --grid 4 --block 256 --arg f32[1000]=out \\
          --arg f32[1000]=random:1 --arg f32[1000]=ones --arg u32:1000 --save 0=sum.npy

    An ARG is one of these (quote it in shells that expand brackets):

    \b
      u32:100                a scalar: TYPE:VALUE
      f32[1024]=zeros        an array: TYPE[SHAPE]=SOURCE, written in place
      f32[4,1024]=ones       more dimensions
      u32[64]=arange         0, 1, 2, ...
      f32[1024]=random:7     floats: normal, mean 0; integers: any value; seed 7
      f32[4]=1,2.5,3,4       these numbers; one number fills the array
      b8[3]=hex:0a0bff       these bytes
      f32[1024]=@x.npy       from a file of this type and size
      @x.npy                 from a file, with its type and shape
      f32[1024]=out          memory that nothing wrote yet: reading it is a finding
      {u32:3;f32[2]=1,2}     a struct, whose fields are laid out as C does

    What the kernel gets of an array follows from the type that the text declares: its address where the parameter is .u64, .s64
    or .b64; its bytes where that is an array itself, as .b8 s[12], which is a struct by value. So a struct of 12 bytes is given
    by u32[3]=1,2,3, by b8[12]=hex:..., or by its fields in braces, which may be arrays and structs.
    """
    import numpy as np

    from ptxgen.commands.arguments import parse_argument
    from ptxgen.emulator import EmulationError, run, uninitialised

    text = _text(path)
    chosen, names = _parameters(path, text, entry)
    arguments = [parse_argument(word) for word in words]
    saved = [_save(word, arguments, names) for word in saves]
    values = [argument.value if argument.written else uninitialised(np.asarray(argument.value)) for argument in arguments]
    start = time.perf_counter()
    try:
        findings = run(
            text, chosen, grid, block, values,
            shared=shared, sanitize=sanitize, seed=seed, seconds=timeout, sources=source, cooperative=cooperative,
            prints=partial(console.echo, nl=False, err=as_json),
        )  # fmt: skip
    except EmulationError as error:  # without the sanitiser a kernel that cannot finish is an exception
        findings = [error.finding]
    seconds = time.perf_counter() - start
    for index, file in saved:
        _write(file, arguments[index])
    if as_json:
        console.print_json(_facts(chosen, seconds, findings, arguments, names))
    elif findings:
        console.echo("\n".join(map(str, findings)))
    else:
        console.print_table(("", "parameter", "argument", "first elements"), _rows(arguments, names))
    if any(finding.kind == "timeout" for finding in findings):
        console.echo(f"ptxgen: the launch was stopped after {timeout:g} seconds; --timeout allows more", err=True)
    if findings:
        ctx.exit(FAILED)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path}: not PTX: byte {error.start} is not ASCII") from error


def _parameters(path: Path, text: str, entry: str | None) -> tuple[str, list[str]]:
    """The entry to launch and the names of its parameters."""
    from ptxgen.emulator.parse import parse

    try:
        program = parse(text)
    except ParseError as error:
        raise ArgumentError(f"{path}: {error}") from error
    listed = ", ".join(program.entries) or "none"
    if entry is None:
        if len(program.entries) != 1:
            raise ArgumentError(f"{path}: name the kernel with --entry; the file has {listed}")
        entry = program.entries[0]
    if entry not in program.entries:
        raise ArgumentError(f"{path}: there is no entry {entry!r}; the file has {listed}")
    return entry, [parameter.name for parameter in program.functions[entry].parameters]


def _save(word: str, arguments: Sequence[RunArgument], names: Sequence[str]) -> tuple[int, Path]:
    """The index of the array to save, and the file."""
    which, equals, file = word.partition("=")
    names = names[: len(arguments)]
    index = names.index(which) if which in names else int(which) if re.fullmatch("[0-9]{1,9}", which) else -1
    if not (equals and file):
        raise ArgumentError(f"--save {word} is not of the form ARG=FILE.npy")
    if not 0 <= index < len(arguments):
        raise ArgumentError(f"--save {word}: no argument {which!r}; there are 0 to {len(arguments) - 1}, or {', '.join(names)}")
    if not getattr(arguments[index].value, "ndim", 0):
        raise ArgumentError(f"--save {word}: argument {which} is a scalar, {arguments[index].word}")
    return index, Path(file)


def _write(path: Path, argument: RunArgument) -> None:
    import numpy as np

    with replacing(path) as stream:
        np.save(stream, argument.value, allow_pickle=False)


def _rows(arguments: Sequence[RunArgument], names: Sequence[str]) -> list[tuple[str, str, str, str]]:
    return [
        (str(index), name, argument.word, " ".join(f"{value:.7g}" for value in argument.head(HEAD)))
        for index, (argument, name) in enumerate(zip(arguments, names, strict=True))
    ]


def _facts(
    entry: str, seconds: float, findings: Sequence[Finding], arguments: Sequence[RunArgument], names: Sequence[str]
) -> dict[str, Any]:
    return {
        "entry": entry,
        "seconds": seconds,
        "findings": [asdict(finding) for finding in findings],
        "arguments": [
            {
                "name": name,
                "dtype": f"struct of {argument.value.nbytes} bytes"
                if argument.value.dtype.names
                else str(argument.value.dtype),
                "shape": list(argument.value.shape),
                "head": [value if math.isfinite(value) else str(value) for value in argument.head(HEAD)],
            }
            for argument, name in zip(arguments, names, strict=True)
        ],
    }
