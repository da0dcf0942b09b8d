"""PTX up to names and comments: two texts that differ in nothing else have one canonical form.

`python -m tests.oracle.texts` compares the first sample of every kernel with golden/ptx/digests.json by content, so that a
kernel which has another name, or is composed of parts now, is found by what it does."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping

import click

_COMMENT = re.compile(r"[ \t]*//[^\n]*")
_DECLARED = re.compile(r"\.entry (\w+)|\.param [^\n]*?(\w+),?$|\.(?:shared|const|global) [^\n;]*?(\w+)\[\d*\]", re.MULTILINE)
_NAMED = re.compile(r"\$\w+|%[a-z]+\d+|(?<![.%$\w])[A-Za-z_]\w*")


def canonical(text: str) -> str:
    """The text without comments and empty lines, each register, label, argument, array and the entry named by where it first
    stands among those of its kind."""
    text = "\n".join(line for line in _COMMENT.sub("", text).splitlines() if line.strip())
    declared = {name for found in _DECLARED.findall(text) for name in found if name}
    known: dict[str, str] = {}
    count: defaultdict[str, int] = defaultdict(int)

    def renamed(found: re.Match[str]) -> str:
        name = found[0]
        kind = re.sub(r"\d+$", "", name) if name[0] == "%" else "$" if name[0] == "$" else "name"
        if kind == "name" and name not in declared:
            return name
        if name not in known:
            known[name] = f"{kind}{count[kind]}"
            count[kind] += 1
        return known[name]

    return _NAMED.sub(renamed, text) + "\n"


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Say which kernels have another text than was kept: those that have it under another name, and those that nobody has.
    NAMES: regular expressions; only kernels whose names have one of them in it."""
    from tests.ptxgen.kernels import golden_texts
    from tests.ptxgen.kernels.catalogue import ENTRIES

    def asked(name: str) -> bool:
        return not names or any(re.search(pattern, name) for pattern in names)

    own = [entry for entry in ENTRIES if asked(entry.name)]
    now = {entry.name: golden_texts.digests_of(golden_texts.texts(next(iter(entry.cases())))) for entry in own}
    kept = {name: digests for name, digests in golden_texts.digests().items() if asked(name)}
    lines = compared(kept, now)
    for line in lines:
        click.echo(line)
    sys.exit(1 if lines else 0)


def compared(kept: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A line for each kernel that was kept and is not there with the same digests; by kernel and target."""
    by_content: defaultdict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for name, texts in now.items():
        by_content[tuple(sorted(texts.items()))].append(name)
    lines = []
    for name, texts in kept.items():
        others = by_content.get(tuple(sorted(texts.items())), [])
        if name not in others:
            what = f"is {' and '.join(others)} now" if others else "changed" if name in now else "is gone"
            lines.append(f"{name} {what}")
    return lines


if __name__ == "__main__":
    main()
