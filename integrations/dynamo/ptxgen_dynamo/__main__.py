"""`python -m ptxgen_dynamo MODEL`: a worker, until SIGTERM."""

from __future__ import annotations

import logging
import os
import sys

from dynamo.common.backend.run import run

from ptxgen.errors import PtxGenError
from ptxgen_dynamo.engine import PtxgenEngine


def main() -> None:
    """Run a worker until it is told to end. Exit code 2, with a line that says why, for a model or an option that cannot be."""
    try:
        run(PtxgenEngine)
    except PtxGenError as error:
        sys.stderr.write(f"ptxgen-dynamo: {error}\n")
        sys.exit(2)
    # Threads of Dynamo's runtime may go on, and one that wants Python while the interpreter ends aborts the process.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
