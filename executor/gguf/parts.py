"""The names of a model's files where it is split into several: NAME-00001-of-00003.gguf. Opens none of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<end>\.gguf)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class PartName:
    """The name of one file of a model in `count` files. number: from 1 on, as in the name; end: `.gguf`, as it is spelt."""

    stem: str
    number: int
    count: int
    end: str = ".gguf"

    @classmethod
    def parse(cls, name: str) -> PartName | None:
        """What a name says; None if it is not the name of a part."""
        found = _NAME.fullmatch(name)
        if found is None or not 1 <= int(found["number"]) <= int(found["count"]):
            return None
        return cls(found["stem"], int(found["number"]), int(found["count"]), found["end"])

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05}-of-{self.count:05}{self.end}"

    @property
    def all(self) -> list[str]:
        """The names of all parts, in their order."""
        return [str(PartName(self.stem, number, self.count, self.end)) for number in range(1, self.count + 1)]


def stem_of(name: str) -> str:
    """The name of a file without `.gguf`, and without what says which part it is."""
    part = PartName.parse(name)
    return re.sub(r"\.gguf\Z", "", name, flags=re.IGNORECASE) if part is None else part.stem
