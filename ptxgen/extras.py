"""What to type to get what an extra of this project needs. The project is on no package index, so its name is not: the packages
that the extra asks for are."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path


def install(extra: str) -> str:
    """The command that installs the packages of an extra, wherever the project was installed from; where it was not installed
    at all, the one that installs it from its folder, with the extra."""
    try:
        asked = [line.split(";", 1) for line in requires("ptxgen") or () if ";" in line]
    except PackageNotFoundError:
        asked = []
    packages = [package.strip() for package, condition in asked if re.search(rf"extra == ['\"]{extra}['\"]", condition)]
    if not packages:
        return f'pip install -e "{Path(__file__).resolve().parents[1]}[{extra}]"'
    return " ".join(("pip install", *(f'"{package}"' for package in packages)))
