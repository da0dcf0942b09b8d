"""What an architecture says of itself. Those that there are: executor/model/architectures, a file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from executor.gguf.directory import Value
from executor.model.metadata import Metadata
from executor.model.parts import DENSE
from executor.model.spec import ModelSpec


@dataclass(frozen=True)
class Architecture:
    """name: `general.architecture` of its files; model_class: its class in Hugging Face's transformers.

    build: the spec of a file, from the keys and the optional tensors that the architecture reads; a wrong one is a ModelError
    with its name. computed: the values with which a model is computed, of keys that the architecture reads besides; another
    value is a ModelError. unused: tensors that its files may have and llama.cpp does not use, of a layer without its `blk.N.`:
    they count as not there. parts: of those that most architectures are not computed with (missing_parts.py), what this one
    is. Keys that are neither in `computed` nor read by `build` are ignored: files carry keys of other
    architectures."""

    name: str
    model_class: str
    build: Callable[[Metadata], ModelSpec]
    computed: Mapping[str, Sequence[Value]] = field(default_factory=lambda: DENSE)

    unused: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()

    def read(self, metadata: Metadata) -> ModelSpec:
        """The spec of a file of this architecture. ModelError for metadata that are wrong or not computed."""
        metadata.only(self.computed)
        return self.build(metadata)
