"""What a shell completes after Tab: kernels, the parameters of the one that is named, targets, GPUs. click asks for it
(`_PTXGEN_COMPLETE=bash_source ptxgen`, docs/completion.md); words of commands and options are its own business.

Tab must not wait for the registry, whose kernels take most of a second to import: their names and parameters are kept in a file
of the cache folder, for as long as no module that defines kernels has changed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from ptxgen import __version__
from ptxgen.errors import PtxGenError
from ptxgen.files import private_folder, read_regular, replacing

if TYPE_CHECKING:
    from ptxgen.kernels.registry import KernelEntry

Parameters = Mapping[str, list[str]]
"""The parameters of a kernel; of one that takes words, what it is known to take."""
FILE: Final = "completion.json"
LIMIT: Final = 4 << 20
"""Bytes of the file."""


def complete_kernels(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of kernels, those that are named already left out."""
    given = ctx.params.get(str(param.name)) if param.name else None
    named = set(given) if isinstance(given, tuple | list) else set()
    return [CompletionItem(name) for name in known_kernels() if name.startswith(incomplete) and name not in named]


def complete_kernels_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of kernels; files where there is none of such a name."""
    return complete_kernels(ctx, param, incomplete) or [CompletionItem(incomplete, type="file")]


def complete_settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`NAME=` of each parameter of the kernel that is named and that is not set yet, then its values where those are words."""
    parameters = _parameters(ctx)
    name, equals, start = incomplete.partition("=")
    if equals:
        return [CompletionItem(f"{name}={value}") for value in parameters.get(name, ()) if value.startswith(start)]
    given = {setting.partition("=")[0] for setting in ctx.params.get("settings") or ()}
    return [CompletionItem(f"{one}=") for one in parameters if one.startswith(incomplete) and one not in given]


def complete_targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """GPU generations."""
    from ptxgen.target import ALL, HOPPER

    return [CompletionItem(str(target)) for target in (*ALL, HOPPER) if str(target).startswith(incomplete)]


def complete_gpus(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """GPUs by name."""
    from ptxgen.gpus.gpu import GPUS

    return [CompletionItem(gpu.name, help=gpu.title) for gpu in GPUS.values() if gpu.name.startswith(incomplete)]


def complete_devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a model or kernel may run on; the number of a GPU is for the user to say."""
    return [CompletionItem(name) for name in ("auto", "cuda", "emulator") if name.startswith(incomplete)]


def _parameters(ctx: click.Context) -> Parameters:
    """Of all kernels that the command line names."""
    kernels, found = known_kernels(), dict[str, list[str]]()
    given = [ctx.params.get(key) for key in ("name", "names", "subject", "against")]
    for value in (*given, ctx.args):  # an option that waits for its value leaves arguments there
        for name in (value,) if isinstance(value, str) else value or ():
            found |= kernels.get(name, {})
    return found


# What there is, kept


def known_kernels() -> Mapping[str, Parameters]:
    """Every registered kernel with its parameters: from the file, or from the registry, which is then kept."""
    made_of = _made_of()
    folder = cache_folder()
    with suppress(OSError, ValueError, KeyError, TypeError):
        if folder is not None:
            kept = json.loads(read_regular(folder / FILE, LIMIT, own=True))
            if kept["made_of"] == made_of:
                return dict(kept["kernels"])
    from ptxgen.kernels.registry import entries

    kernels = {name: _described(entry) for name, entry in entries().items()}
    with suppress(OSError, PtxGenError):  # who cannot keep it waits each time
        if folder is not None:
            private_folder(folder)
            with replacing(folder / FILE) as stream:
                stream.write(json.dumps({"made_of": made_of, "kernels": kernels}).encode())
    return kernels


def _described(entry: KernelEntry) -> dict[str, list[str]]:
    from ptxgen.commands.shapes import known_values

    return {name: known_values(entry, name) for name in entry.parameters}


def _made_of() -> list[Any]:
    """What the kernels depend on: versions, entry points, and when their packages' modules were changed."""
    points = sorted((point.name, point.value, point.module.partition(".")[0]) for point in entry_points(group="ptxgen.kernels"))
    packages = sorted({"ptxgen", *(package for _, _, package in points)})
    return [__version__, sys.version, list(map(list, points)), [_newest(package) for package in packages]]


def _newest(package: str) -> list[Any]:
    """How many modules a package has, and when the last was changed. The package itself is not imported."""
    spec = None
    with suppress(ImportError, ValueError):
        spec = find_spec(package)
    places: Iterable[str] = () if spec is None else spec.submodule_search_locations or [spec.origin or ""]
    changed = [file.stat().st_mtime_ns for place in places for file in _modules(Path(place))]
    return [package, len(changed), max(changed, default=0)]


def _modules(place: Path) -> Iterable[Path]:
    return place.rglob("*.py") if place.is_dir() else [place] if place.is_file() else []


def cache_folder() -> Path | None:
    """The cache folder of PTXGEN_CACHE_DIR, which executor/base/environment.py describes; None if nothing is kept."""
    named = os.environ.get("PTXGEN_CACHE_DIR", "").strip()
    if named:
        return None if named == "0" else Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("ptxgen", appauthor=False))


# Bash


class _Bash(BashComplete):
    """click's, for words with `=`: bash takes them apart there, and completes the last part. No space follows `NAME=`."""

    source_template = BashComplete.source_template.replace(
        "COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *= ]] && compopt -o nospace"
    )

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in [*args, incomplete]:
            if words and (word == "=" or words[-1].endswith("=")) and not word.startswith("-"):
                words[-1] += word
            else:
                words.append(word)
        self._before = words[-1].removesuffix(incomplete.removeprefix("="))
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{str(item.value).removeprefix(self._before)}"


add_completion_class(_Bash)
