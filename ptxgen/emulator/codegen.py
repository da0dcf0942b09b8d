"""LLVM text -> machine code for this host, kept on disk; nothing here knows about PTX."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import json
import logging
import os
import platform
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptxgen.errors import PtxGenError
from ptxgen.files import private_folder, read_regular

_log = logging.getLogger(__name__)
_lock = threading.RLock()  # LLVM contexts are shared by all threads
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_MAGIC = b"PTXO3\n"
_LARGEST = 1 << 28
"""Bytes of kept code that are read: a kernel has 20 to 200 KB."""


class Code:
    """Machine code in memory; `function(name)` gives an address. Freed with the object."""

    def __init__(self, engine: Any, module: Any) -> None:
        self._engine, self._module = engine, module

    def function(self, name: str) -> int:
        """The address of a function."""
        with _lock:
            return int(self._engine.get_function_address(name))


@functools.cache
def _machine(level: int = 2, small: bool = False) -> Any:
    """The host's target machine at an optimisation level."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return _new_machine(level, small and platform.machine() == "x86_64")


def _new_machine(level: int, small: bool = False) -> Any:
    import llvmlite.binding as llvm

    cpu, features = host()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu,
        features=features,
        opt=level,
        reloc="pic" if small else "static",
        codemodel="small" if small else "jitdefault",
        jit=not small,
    )


@functools.cache
def host() -> tuple[str, str]:
    """This CPU's name and features as LLVM knows them."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@functools.cache
def source_version() -> str:
    """A hash of the sources whose change may change the code: the emulator, instructions, types and a GPU's constants."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    beside = (here.parent / "types.py", here.parent / "target.py")
    for path in sorted([*here.rglob("*.py"), *(here.parent / "isa").rglob("*.py"), *beside]):
        digest.update(path.name.encode() + path.read_bytes())
    import llvmlite

    digest.update(llvmlite.__version__.encode())
    return digest.hexdigest()


def key(text: str, *options: object) -> str:
    """The name under which code made from this text is kept."""
    parts = [text, source_version(), *host(), *(str(o) for o in options)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def build(text: str, *, quickly: bool = False, small: bool = False) -> bytes:
    """Object code of an LLVM module. `quickly` compiles in less than half the time code that takes twice the time to run.
    `small`: it has no data, so that all it calls may be far away, but nothing else; such code must be loaded first."""
    import llvmlite.binding as llvm

    with _lock:
        machine = _machine(0 if quickly else 2, small)
        try:
            module = llvm.parse_assembly(text)
        except RuntimeError as e:
            raise PtxGenError(f"the emulator wrote LLVM text that LLVM refuses: {e}") from e
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        _simplify(module, machine, quickly)
        return bytes(machine.emit_object(module))


def _simplify(module: Any, machine: Any, quickly: bool) -> None:
    import llvmlite.binding as llvm

    options = llvm.create_pipeline_tuning_options(speed_level=1)
    builder = llvm.create_pass_builder(machine, options)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    if not quickly:  # the code gets no shorter without what follows, and a tenth of the time is saved
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
    passes.run(module, builder)


def load(objects: Sequence[bytes]) -> Code:
    """Object code, which may call from one object to another, made ready to run."""
    import llvmlite.binding as llvm

    with _lock:
        _machine()
        empty = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(empty, _new_machine(2))  # which takes the machine with it when it goes
        for data in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        return Code(engine, empty)


def read_cached(directory: Path | None, name: str) -> tuple[dict[str, Any], list[bytes]] | None:
    """The facts and object code kept under `name`; None if there is none, or it is damaged, or others can have written it."""
    if directory is None:
        return None
    path = directory / f"{name}.o"
    try:
        data = read_regular(path, _LARGEST, own=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("%s is not used: %s", path, error.strerror)
        return None
    head, _, rest = data.removeprefix(_MAGIC).partition(b"\n")
    digest, _, rest = rest.partition(b"\n")
    try:
        if not data.startswith(_MAGIC) or _digest(name, head, rest) != digest:
            raise ValueError("checksum")
        with contextlib.suppress(OSError):
            os.utime(path)  # who trims the folder removes what was used least recently
        facts = json.loads(head)
        ends = list(itertools.accumulate(facts.pop("sizes")))
        return facts, [rest[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    except ValueError:
        _log.warning("rebuilding damaged cache entry %s", path)
        return None


def write_cached(directory: Path | None, name: str, facts: dict[str, Any], objects: Sequence[bytes]) -> None:
    """Keep code on disk, whole or not at all. A disk that refuses is logged, not raised: the code is in memory anyway."""
    if directory is None:
        return
    head = json.dumps({**facts, "sizes": [len(o) for o in objects]}, sort_keys=True).encode()
    code = b"".join(objects)
    digest = _digest(name, head, code)
    try:
        private_folder(directory)
        handle, temporary = tempfile.mkstemp(dir=directory, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + head + b"\n" + digest + b"\n" + code)
            os.replace(temporary, directory / f"{name}.o")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as e:
        _log.warning("cannot keep compiled code in %s: %s", directory, e)


def _digest(name: str, head: bytes, code: bytes) -> bytes:
    """The checksum of an entry; the name is in it, so that code under another's name is noticed."""
    return hashlib.sha256(b"\n".join([name.encode(), head, code])).hexdigest().encode()


RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""The signature of a kernel's @run: context, first block, last block."""
