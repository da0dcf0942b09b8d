"""Whether the package `executor` that Python finds is the one that comes with ptxgen. PyPI has another project of that name:
where both are installed, the one that came last has the files, or the first on the path is found. ptxgen imports nothing of
executor: its commands are looked up by name (start.py, plugins.py), and here its place and its first file are looked at."""

from __future__ import annotations

import os
from importlib.util import find_spec

from ptxgen.errors import PtxGenError


class NameTaken(PtxGenError):
    """A package beside ptxgen is not the one that came with it."""


def require(package: str) -> None:
    """Raise NameTaken, one sentence with the cure, unless this package of ptxgen's distribution is found and is ours."""
    if fault := why_not(package):
        raise NameTaken(fault)


def why_not(package: str) -> str:
    """Why the package cannot be used, or an empty string. Imports nothing of it."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    ours = os.path.join(home, package)
    try:
        spec = find_spec(package)
    except ValueError:  # somebody has put a module without a spec in its place
        spec = None
    place = os.path.dirname(os.path.realpath(spec.origin)) if spec is not None and spec.origin else ""
    if place == ours and _is_ours(os.path.join(ours, "__init__.py")):
        return ""
    state = f"in {place} is not ptxgen's but" if place else "is not there whole, as that of"
    return (
        f"the package {package} {state} another project's of the same name{'' if place else ' was installed or removed'}: "
        f"uninstall that one (pip uninstall {package}) and install ptxgen again, or give ptxgen an environment of its own"
    )


def _is_ours(file: str) -> bool:
    try:
        with open(file, "rb") as stream:
            return b"ptxgen" in stream.read()
    except OSError:
        return False
