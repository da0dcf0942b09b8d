"""A bundle on disk: its manifest and its checked files. Loading kernels from it is executor/launch/modules.py's business.

The manifest is not trusted: a file must lie in the folder, be of a sane size and have the hash that the manifest
names, and a kernel must have the parameters and the geometry that this version of the package launches it with. What the
kernels do is another matter: a bundle is a program, and its author decides that (docs/bundles.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from executor.base.environment import PRECISIONS
from executor.base.errors import BundleError, quoted, shown
from ptxgen.dsl.arguments import Array
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import ArgumentError
from ptxgen.files import read_regular
from ptxgen.target import Target

FORMAT: Final = "ptxgen bundle"
VERSION: Final = 5
"""Rises when a reader of older manifests would misunderstand a new one."""
KNOWN: Final = (2, 3, 4, VERSION)
"""Version 2 has no `sequences` in its batches, which the executor does not read; 3 no launches that ask for shared memory; 4
none whose blocks wait for each other."""
MANIFEST: Final = "manifest.json"
LARGEST: Final = 16 << 20
"""Bytes of a file that are read. A manifest has 300 to 700 KB, a kernel at most some hundred KB."""


@dataclass(frozen=True)
class Packed:
    """A kernel of a bundle: its PTX, the machine code for the bundle's target if it is there, the bytes of shared memory that
    its launches ask for, whether their blocks wait for each other, and the room of LaunchConfig.shared_room."""

    entry: str
    text: str
    cubin: bytes | None
    dynamic_shared: int = 0
    cooperative: bool = False
    shared_room: int = 0

    @property
    def launched(self) -> tuple[int, bool, int]:
        """What a device needs to know of its launches (Device.load)."""
        return self.dynamic_shared, self.cooperative, self.shared_room


class Bundle:
    """`target`: what the kernels were written for; `context`: the most tokens of a sequence. `manifest` is the whole of it."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any], target: Target) -> None:
        self.folder = folder
        self.manifest = manifest
        self.target = target

    @classmethod
    def open(cls, folder: str | Path) -> Bundle:
        """Read the manifest. BundleError if the folder holds no bundle, or one of a version that is not known here."""
        where = Path(folder)
        manifest = read_manifest(where)
        if manifest.get("version") not in KNOWN:
            versions = ", ".join(map(str, KNOWN))
            raise BundleError(f"has version {quoted(manifest.get('version'))} of the manifest; known: {versions}", where)
        try:
            target = Target.parse(shown(manifest.get("target")))
        except ArgumentError as error:
            raise BundleError(str(error), where) from error
        for name in ("kernels", "numbers"):
            if not isinstance(manifest.get(name), dict):
                raise BundleError(f"{MANIFEST} has no {name}", where)
        return cls(where, manifest, target)

    @property
    def context(self) -> int:
        """The most tokens of a sequence that the kernels were written for."""
        context = self.manifest["numbers"].get("context")
        if isinstance(context, bool) or not isinstance(context, int) or context < 1:
            self._fail(f"the context is {quoted(context)}; it must be a whole number of at least 1")
        return context

    @property
    def precision(self) -> str:
        """Of the kernels that multiply by weights; older bundles are accurate and do not say so."""
        precision = self.manifest.get("precision", PRECISIONS[0])
        if precision not in PRECISIONS:
            self._fail(f"the precision is {quoted(precision)}; known: {', '.join(PRECISIONS)}")
        return str(precision)

    def runs_on(self, target: Target, *, emulated: bool) -> bool:
        """Whether the text loads on a GPU of this target. The emulator runs the text of any."""
        return emulated or (self.target.sm == target.sm if self.target.feature else self.target.sm <= target.sm)

    def has_code_for(self, target: Target) -> bool:
        """Whether the machine code runs on a GPU of this target: the same generation, not older (sm_80's runs on sm_86)."""
        same = self.target.sm == target.sm
        return same or (not self.target.feature and self.target.sm // 10 == target.sm // 10 and self.target.sm < target.sm)

    def kernel(self, kernel: KernelType) -> Packed:
        """The files of a kernel. BundleError, which names the kernel, if it is missing, damaged, or not what this version
        of the package would launch."""
        facts = self.manifest["kernels"].get(str(kernel))
        if not isinstance(facts, dict):
            self._fail(f"has no kernel {kernel}; {self._others(kernel)}")
        self._check(kernel, facts)
        try:
            text = self._file(facts["ptx"]).decode("ascii")
            cubin = self._file(facts["cubin"]) if "cubin" in facts else None
            entry = str(facts["entry"])
        except KeyError as error:
            self._fail(f"{kernel}: {MANIFEST} does not say its {error.args[0]}")
        except UnicodeDecodeError:
            self._fail(f"{kernel}: its PTX is not ASCII")
        if not re.search(rf"\.entry\s+{re.escape(entry)}\b", text):
            self._fail(f"{kernel}: its PTX has no entry {shown(entry)}")
        launch = kernel.launch()
        return Packed(entry, text, cubin, launch.dynamic_shared, launch.cooperative, launch.shared_room)

    def _check(self, kernel: KernelType, facts: Mapping[str, Any]) -> None:
        launch = kernel.launch()
        expected = {
            "grid": list(launch.grid),
            "block": list(launch.block),
            "dynamic_shared_bytes": launch.dynamic_shared,
            "cooperative": launch.cooperative,
            "parameters": _parameters(kernel),
        }
        try:
            recorded = {
                "grid": facts["grid"],
                "block": facts["block"],
                "dynamic_shared_bytes": facts.get("dynamic_shared_bytes", 0),  # before version 4 no launch asked for any
                "cooperative": facts.get("cooperative", False),  # and before 5 none was
                "parameters": list(map(_recorded, facts["parameters"])),
            }
        except (KeyError, TypeError) as error:
            self._fail(f"{kernel}: {MANIFEST} does not describe its launch ({shown(str(error))})")
        for what, value in expected.items():
            if recorded[what] != value:
                self._fail(
                    f"{kernel} has {what} {shown(recorded[what])}, this version of ptxgen launches it with {shown(value)}; "
                    "write the bundle anew"
                )

    def _file(self, record: Any) -> bytes:
        if not isinstance(record, dict):
            self._fail(f"{MANIFEST} names a file by {quoted(record)}; it must be path and sha256")
        name, label, expected = str(record["path"]), shown(record["path"]), record["sha256"]
        root = self.folder.resolve()
        try:
            path = (root / name).resolve()
            if not path.is_relative_to(root):
                self._fail(f"{MANIFEST} names the file {label}, which is not in the folder")
            content = read_regular(path, LARGEST)
        except (OSError, ValueError, RuntimeError) as error:  # resolve: a NUL, links in a circle
            self._fail(f"file {label} cannot be read: {getattr(error, 'strerror', None) or error}")
        digest = hashlib.sha256(content).hexdigest()
        if digest != expected:
            self._fail(f"file {label} has sha256 {digest}, {MANIFEST} says {shown(expected)}: it is damaged or was changed")
        return content

    def _others(self, kernel: KernelType) -> str:
        near = [name for name in self.manifest["kernels"] if name.startswith(f"{kernel.name}(")]
        if near:
            return f"it has {', '.join(map(shown, near[:4]))}; was it written for another model or context?"
        return "it was written for another model, or by another version of ptxgen"

    def _fail(self, message: str) -> NoReturn:
        raise BundleError(message, self.folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a bundle of any version. BundleError if the folder holds none."""
    try:
        manifest = json.loads(read_regular(folder / MANIFEST, LARGEST))
    except OSError as error:
        raise BundleError(f"is not a bundle: {MANIFEST} cannot be read: {error.strerror}", folder) from error
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is not a bundle: {MANIFEST} is not JSON: {error}", folder) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"is not a bundle: {MANIFEST} does not say format {FORMAT!r}", folder)
    return manifest


def _parameters(kernel: KernelType) -> list[tuple[Any, ...]]:
    """Name, type and shape of each argument, in the form of `_recorded`."""
    return [
        (name, argument.dtype.name, list(argument.shape), argument.direction)
        if isinstance(argument, Array)
        else (name, argument.dtype.name)
        for name, argument in kernel.signature().items()
    ]


def _recorded(facts: Mapping[str, Any]) -> tuple[Any, ...]:
    if facts["kind"] == "array":
        return facts["name"], facts["dtype"], facts["shape"], facts["direction"]
    return facts["name"], facts["dtype"]
