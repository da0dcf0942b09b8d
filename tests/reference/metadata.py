"""The keys of a GGUF file, as an architecture reads them: under its own prefix, some of them a value for each layer."""

from __future__ import annotations

from typing import Any

import gguf


class Metadata:
    """Keys of one file without the architecture's prefix; a missing key without a default is a KeyError."""

    def __init__(self, reader: gguf.GGUFReader) -> None:
        self.fields = reader.fields
        self.architecture: str = self.fields["general.architecture"].contents()
        self.layers = int(self("block_count")) - int(self("nextn_predict_layers", 0))

    def __call__(self, name: str, default: Any = None) -> Any:
        field = self.fields.get(f"{self.architecture}.{name}")
        if field is not None:
            return field.contents()
        if default is None:
            raise KeyError(f"{self.architecture}.{name}")
        return default

    def each_layer(self, name: str, default: Any = None) -> list[Any]:
        """A value for each layer of a key that holds one value, or one for each block of the file."""
        value = self(name, default)
        return list(value[: self.layers]) if isinstance(value, list) else [value] * self.layers
