"""The command `ptxgen`. Its subcommands are files in ptxgen/commands; what they need is imported when they run. Other packages
add theirs by the entry-point group `ptxgen.commands`; so does executor, which ptxgen never imports."""

from __future__ import annotations

from ptxgen.commands.catalogue import check_command, emit_command, list_command
from ptxgen.commands.conform import conform_command
from ptxgen.commands.explain import explain_command
from ptxgen.commands.group import command_group
from ptxgen.commands.run import run_command

main = command_group("ptxgen", "Write, check and run PTX kernels for GGUF inference, without a GPU.", plugins="ptxgen.commands")
for command in (list_command, emit_command, check_command, conform_command, explain_command, run_command):
    main.add_command(command)
