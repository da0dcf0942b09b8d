"""`python -m ptxgen_dynamo MODEL`: a worker, until SIGTERM."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from dynamo.common.backend import WorkerConfig
from dynamo.common.backend.run import run

from ptxgen.errors import PtxGenError
from ptxgen_dynamo.engine import PtxgenEngine


def main() -> None:
    """Run a worker until it is told to end. Exit code 2, with a line that says why, for a model or an option that cannot be."""
    engines: list[PtxgenEngine] = []

    async def made(argv: list[str] | None) -> tuple[PtxgenEngine, WorkerConfig]:
        engine, config = await PtxgenEngine.from_args(argv)
        engines.append(engine)
        return engine, config

    try:
        run(PtxgenEngine, engine_factory=made)
    except PtxGenError as error:
        refuse(error)
    except Exception:  # Dynamo's own, with the text of ours
        if engines and engines[0].failure is not None:
            refuse(engines[0].failure)
        raise
    # Threads of Dynamo's runtime may go on, and one that wants Python while the interpreter ends aborts the process.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def refuse(error: PtxGenError) -> NoReturn:
    """End the process."""
    sys.stderr.write(f"ptxgen-dynamo: {error}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
