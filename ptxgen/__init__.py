"""ptxgen writes PTX: a typed DSL, an instruction table, a catalogue of kernels, and an emulator that runs their text."""

from ptxgen.errors import ArgumentError, AuthorError, PtxGenError

__version__ = "0.1.0"
__all__ = ["ArgumentError", "AuthorError", "PtxGenError", "__version__"]
