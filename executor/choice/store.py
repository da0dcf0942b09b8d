"""Where tuning tables are kept: the package's own JSON files, and one file for each GPU in the user's cache folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from executor.base.disk_cache import cache_folder
from executor.base.environment import Settings, variable
from executor.choice.table import ANY, TuningEntry, TuningTable
from executor.device.gpu import EMULATOR, GpuModel
from ptxgen.errors import ArgumentError
from ptxgen.files import make_folder, read_regular, replacing

SHIPPED: Final = Path(__file__).parent
FOLDER: Final = "tuning"
LIMIT: Final = 64 << 20
"""Bytes of a table: an entry has 300, and a GPU some hundreds of entries."""
PRIVATE: Final = 0o700
"""Of a folder that is made for tables: nobody but the user."""


def tables_for(gpu: GpuModel, environment: Settings, own: TuningTable | None = None) -> tuple[TuningTable, ...]:
    """What was measured on this GPU: the user's table first, then those that are shipped of it and of its generation. own:
    instead of the user's, whatever the environment says.

    The emulator has no shipped table, and uses one of the user's only where the environment names it: its bits are
    what those of all GPUs are compared with. Raises ArgumentError for a table that is broken or of another GPU."""
    if environment.tuning is False and own is None:
        return ()
    tables = []
    if own is not None:
        tables.append(own)
    elif isinstance(environment.tuning, Path):
        try:
            tables.append(load_for(environment.tuning, gpu))
        except ArgumentError as error:
            if not variable("tuning").note():  # settings of one's own
                raise
            raise variable("tuning").refused(str(error)) from error
    elif gpu.name != EMULATOR and (path := own_path(gpu, environment)) is not None and os.path.exists(path):
        assert environment.cache_dir is not None
        cache_folder(environment.cache_dir, FOLDER)
        tables.append(load_for(path, gpu))
    return (*tables, *(shipped_for(gpu) if gpu.name != EMULATOR else ()))


def own_path(gpu: GpuModel, environment: Settings) -> Path | None:
    """The user's file for this GPU; None if nothing is kept on disk."""
    if isinstance(environment.tuning, Path):
        return environment.tuning
    if environment.cache_dir is None:
        return None
    return environment.cache_dir / FOLDER / f"{_file_name(gpu.name)}.json"


def measured_path(path: Path) -> Path:
    """Beside a user's table, the file with all that was measured for it, which no run reads."""
    return path.with_name(f"{path.stem}.measured.json")


def own_table(path: Path, gpu: GpuModel, environment: Settings) -> TuningTable:
    """What a table in this file goes on from: what the file holds, else the table of the user's that runs on this GPU use now,
    else nothing. Errors as tables_for."""
    if os.path.exists(path):
        return load_for(path, gpu)
    used = () if path == environment.tuning else tables_for(gpu, environment)
    return TuningTable(str(path), gpu, next((table.entries for table in used if not table.shipped), ()))


def load(path: Path, *, shipped: bool = False) -> TuningTable:
    """The table in a file. ArgumentError if the file cannot be read or holds something else."""
    try:
        facts = json.loads(read_regular(path, LIMIT))
    except OSError as error:
        raise ArgumentError(f"{path}: the tuning table cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: is not a tuning table: {error}") from error
    return TuningTable.from_json(str(path), facts, shipped=shipped)


def load_for(path: Path, gpu: GpuModel) -> TuningTable:
    """The table in a file. ArgumentError if it was measured on another GPU."""
    table = load(path)
    if table.gpu.name not in (gpu.name, ANY):
        raise ArgumentError(
            f"{path}: was measured on {table.gpu.name}, and this is {gpu.name}; name another file, or remove this one"
        )
    return table


def save(path: Path, table: TuningTable) -> None:
    """Write the file, whole or not at all. ArgumentError if it cannot be written."""
    make_folder(path.parent, PRIVATE)
    with replacing(path) as stream:
        stream.write(one_a_line(table.to_json(), "entries").encode())


def one_a_line(facts: Mapping[str, Any], name: str) -> str:
    """Facts as JSON whose list `name` comes last, an element a line."""
    head = json.dumps({key: value for key, value in facts.items() if key != name}, indent=1).removesuffix("\n}")
    elements = ",\n".join(map(json.dumps, facts[name]))
    return f'{head},\n "{name}": [\n{elements}\n ]\n}}\n'


def add(path: Path, gpu: GpuModel, entry: TuningEntry) -> TuningTable:
    """Put a measurement into the file, which is made if it is not there."""
    table = load_for(path, gpu) if os.path.exists(path) else TuningTable(str(path), gpu)
    table = table.with_entry(entry)
    save(path, table)
    return table


def shipped_tables() -> tuple[TuningTable, ...]:
    """The tables that come with the package."""
    return tuple(load(path, shipped=True) for path in sorted(SHIPPED.glob("*.json")))


def shipped_for(gpu: GpuModel) -> tuple[TuningTable, ...]:
    """The shipped tables of this GPU and of its generation, its own first, then the one with the nearest number of
    multiprocessors: what they hold changes no bits, and what one has not measured another may have."""

    def apart(table: TuningTable) -> tuple[bool, int]:
        return table.gpu.name != gpu.name, abs(table.gpu.multiprocessors - gpu.multiprocessors)

    related = [table for table in shipped_tables() if table.gpu.name == gpu.name or table.gpu.target == gpu.target]
    return tuple(sorted(related, key=apart))


def shipped_path(gpu: GpuModel) -> Path:
    """Where this GPU's table stands in the package, if there is one."""
    return SHIPPED / f"{_file_name(gpu.name)}.json"


def _file_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
