"""What `--set` reads: the words of a command line make the kernel that the same values make."""

from __future__ import annotations

from ptxgen.commands.shapes import parse_shape
from ptxgen.conformance.shape_checks import set_fields
from tests.ptxgen.kernels.catalogue import ENTRIES


def test_every_kernel_is_made_from_the_words_of_its_parameters() -> None:
    for entry in ENTRIES:
        kernel = next(iter(entry.cases()))
        shape = {name: value for name, value in set_fields(kernel).items() if name in entry.parameters}
        words = [f"{name}={getattr(value, 'name', value)}" for name, value in shape.items() if value not in (None, "")]
        assert entry.make(**parse_shape(entry, words)) == kernel
