"""The command `ptxrun`. Its subcommands are files in executor/commands; what they need is imported when they run."""

from __future__ import annotations

from executor.commands.demo import demo_command
from executor.commands.generate import generate_command
from executor.commands.logits import logits_command
from executor.errors import SanitizerError
from ptxgen.commands.front import front

main = front(
    "ptxrun", "Run GGUF language models through emitted PTX, on an NVIDIA GPU or on the CPU emulator.", (SanitizerError,)
)
for command in (demo_command, generate_command, logits_command):
    main.add_command(command)
