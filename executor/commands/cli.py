"""The command `ptxrun`. Its subcommands are files in executor/commands; what they need is imported when they run."""

from __future__ import annotations

from executor.base.environment import help_text
from executor.base.errors import NumericalFault, SanitizerError
from executor.commands.bench import bench_command
from executor.commands.chat import chat_command
from executor.commands.check import check_command
from executor.commands.demo import demo_command
from executor.commands.doctor import doctor_command
from executor.commands.explain import explain_command
from executor.commands.export_tokenizer import export_tokenizer_command
from executor.commands.generate import generate_command
from executor.commands.logits import logits_command
from executor.commands.models import models_command
from executor.commands.profile import profile_command
from executor.commands.serve import serve_command
from executor.commands.tune import tune_command
from ptxgen.commands.group import command_group

main = command_group(
    "ptxrun",
    "Run GGUF language models through emitted PTX, on an NVIDIA GPU or on the CPU emulator.",
    (NumericalFault, SanitizerError),
)
for command in (
    bench_command, chat_command, check_command, demo_command, doctor_command, explain_command, export_tokenizer_command,
    generate_command, logits_command, models_command, profile_command, serve_command, tune_command,
):  # fmt: skip
    main.add_command(command)
main.epilog = help_text()
