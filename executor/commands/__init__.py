"""The subcommands of `ptxrun`, a file each."""
