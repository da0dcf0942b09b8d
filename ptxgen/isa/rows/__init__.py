"""The rows of the instruction table, a file a family. A new family file is named here and nowhere else: whoever imports one of
them has imported all, in this order, which is that of the table."""

from ptxgen.isa.rows import (  # noqa: F401 - importing a family registers its rows
    approximate,
    async_copy,
    atomic,
    bulk_copy,
    compare,
    control,
    convert,
    extended,
    floating,
    half,
    integer,
    logic,
    matrix,
    memory,
    move,
    video,
    warp,
    warpgroup,
)
