"""golden/ptx: the texts of kernels, so that no text changes unseen. digests.json has, by kernel and target, the SHA-256 of the
text of the first sample shape in its canonical form, without names and comments (tests/oracle/texts.py). NAME.ptx is a whole
text, for reviewers: of the kernels in whole_texts.py, at the small shapes given there, for the oldest GPU."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ptxgen.conformance.execution import emitted
from ptxgen.dsl.kernel_type import KernelType
from ptxgen.errors import Nonconformity
from ptxgen.kernels.registry import find
from ptxgen.target import DEFAULT, Target
from tests.oracle.texts import canonical
from tests.paths import GOLDEN
from tests.ptxgen.kernels.whole_texts import WHOLE

FOLDER = GOLDEN / "ptx"
TARGETS = (DEFAULT, Target(80), Target(90))

Texts = Mapping[str, str]
"""By target, the text of a kernel; the oldest GPU first."""

Digests = dict[str, dict[str, str]]
"""By kernel and target, the SHA-256 of a text's canonical form in hexadecimal."""


def texts(kernel: KernelType) -> Texts:
    meant = [target for target in TARGETS if target.sm >= kernel.least_sm] if kernel.only_on is None else [kernel.only_on]
    return {target.name: emitted(kernel, target).text for target in meant}


def whole(name: str) -> str:
    """The text of a kernel of WHOLE that is kept: at its small shape, for the oldest GPU."""
    entry = find(name)
    first = next(iter(entry.cases())).parameters()
    shape = {parameter: value for parameter, value in first.items() if parameter in entry.parameters}
    return next(iter(texts(entry.make(**{**shape, **WHOLE[name]})).values()))


def digests(folder: Path = FOLDER) -> Digests:
    with _opened(folder, "r", fcntl.LOCK_SH) as file:
        return _read(file)


def check(name: str, texts: Texts, folder: Path = FOLDER) -> None:
    """Raise Nonconformity that names the kernel unless its texts are those that were kept."""
    if name in WHOLE:
        path, now = folder / f"{name}.ptx", whole(name)
        kept = path.read_text(encoding="ascii") if path.exists() else ""
        if kept != now:
            lines = kept.splitlines(), now.splitlines()
            diff = difflib.unified_diff(*lines, f"golden/ptx/{path.name}", "now", lineterm="")
            raise Nonconformity("\n".join([f"the text of {name} changed:", *diff]))
    known = digests(folder).get(name, {})
    changed = [target for target, digest in digests_of(texts).items() if known.get(target) != digest]
    if changed:
        raise Nonconformity(f"the text of {name} for {', '.join(changed)} is not that of golden/ptx/digests.json")


def update(name: str, texts: Texts, folder: Path = FOLDER) -> None:
    """Keep these texts from now on. Tests that run in parallel may do so together."""
    folder.mkdir(parents=True, exist_ok=True)
    if name in WHOLE:
        (folder / f"{name}.ptx").write_text(whole(name), encoding="ascii")
    with _opened(folder, "a+", fcntl.LOCK_EX) as file:
        known = _read(file)
        known[name] = digests_of(texts)
        lines = (f"  {json.dumps(kernel)}: {json.dumps(known[kernel])}" for kernel in sorted(known))
        file.truncate(0)
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


@contextmanager
def _opened(folder: Path, mode: str, lock: int) -> Iterator[IO[str]]:
    with open(folder / "digests.json", mode, encoding="ascii") as file:
        fcntl.flock(file, lock)  # until it is closed
        yield file


def _read(file: IO[str]) -> Digests:
    file.seek(0)
    held: Digests = json.loads(file.read() or "{}")
    return held


def digests_of(texts: Texts) -> dict[str, str]:
    """By target, that of the text's canonical form."""
    return {target: hashlib.sha256(canonical(text).encode("ascii")).hexdigest() for target, text in texts.items()}
