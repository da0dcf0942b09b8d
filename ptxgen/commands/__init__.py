"""The subcommands of `ptxgen`, a file each, and what both commands share (console.py, group.py)."""
