"""What a shell completes: by click's own interface, and by a real bash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from executor.base.environment import settings
from ptxgen.commands import completion
from ptxgen.kernels import registry
from tests.cli.invoke import COMMANDS, python

SCRIPTS = sysconfig.get_path("scripts")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One in which the kernels are kept."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PTXGEN_CACHE_DIR", str(folder))
        completion.known_kernels()
    return folder


@pytest.fixture(autouse=True)
def kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(cache))


def completed(line: str) -> list[str]:
    """What stands in the last word's place after Tab."""
    program, *words = line.split(" ")
    items = ShellComplete(COMMANDS[program], {}, program, "_COMPLETE").get_completions(words[:-1], words[-1])
    return [item.value for item in items]


@pytest.mark.parametrize(
    "line",
    [
        "ptxgen emit mwv_q4", "ptxgen check mwv_q4", "ptxgen conform rmsnorm mwv_q4", "ptxgen list mwv_q4",
        "ptxgen explain mwv_q4", "ptxrun bench mwv_q4", "ptxrun bench q4k_gemv --against mwv_q4",
        "ptxrun tune model.gguf --kernels mwv_q4",
    ],
)  # fmt: skip
def test_kernels(line: str) -> None:
    assert completed(line) == ["mwv_q4_0_gemv", "mwv_q4_1_gemv", "mwv_q4k_gemv"]


def test_a_kernel_that_is_named_is_not_offered_again() -> None:
    assert completed("ptxgen conform mwv_q4k_gemv mwv_q4k") == []


def test_what_may_be_a_model_is_completed_as_a_file_where_no_kernel_has_the_name() -> None:
    (item,) = ShellComplete(COMMANDS["ptxrun"], {}, "ptxrun", "_COMPLETE").get_completions(["bench"], "./models/8b")
    assert (item.type, item.value) == ("file", "./models/8b")


@pytest.mark.parametrize(
    "line", ["ptxgen emit {} --set ", "ptxgen explain {} --set ", "ptxgen check {} --set ", "ptxrun bench {} --set "]
)
def test_parameters_of_the_named_kernel(line: str) -> None:
    entry = registry.find("mwv_q4k_gemv")
    assert completed(line.format(entry.name)) == [f"{name}=" for name in entry.parameters]


def test_a_parameter_that_is_set_is_not_offered_again() -> None:
    assert completed("ptxgen emit rmsnorm --set hidden=4 --set h") == []
    assert completed("ptxgen emit rmsnorm --set h") == ["hidden="]
    assert completed("ptxgen emit --set h") == []  # of no kernel


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("ptxgen emit hw_dp4a_q4k_gemv --set pdl=", ["pdl=true", "pdl=false"]),
        ("ptxgen emit hw_dp4a_q4k_gemv --set pdl=t", ["pdl=true"]),
        ("ptxgen emit embedding_lookup --set format=Q4", ["format=Q4_0", "format=Q4_1", "format=Q4_K"]),
        ("ptxgen emit paged_attention --set kv_type=", ["kv_type=f16", "kv_type=f32", "kv_type=q8_0"]),
        ("ptxgen emit q4k_gemv --set k=", []),
    ],
)
def test_values_that_are_words(line: str, values: list[str]) -> None:
    assert completed(line) == values


@pytest.mark.parametrize(
    "line", ["ptxgen emit q4k_gemv --target sm_9", "ptxgen check --target sm_9", "ptxgen explain x --target sm_9"]
)
def test_targets(line: str) -> None:
    assert completed(line) == ["sm_90", "sm_90a"]


def test_gpus_and_devices() -> None:
    assert completed("ptxgen explain rmsnorm --gpu h") == ["h100", "h100pcie", "h200"]
    assert completed("ptxrun generate model.gguf --device ") == ["auto", "cuda", "emulator"]


def test_a_change_of_a_module_or_a_damaged_file_is_noticed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", str(tmp_path))
    kept = tmp_path / completion.FILE
    damaged = json.loads((cache / completion.FILE).read_text()) | {"kernels": {"stale": {}}}
    kept.write_text(json.dumps(damaged))
    assert list(completion.known_kernels()) == ["stale"]  # it is read
    monkeypatch.setattr(completion, "_newest", lambda package: [package, 1, 2])
    assert "q4k_gemv" in completion.known_kernels()
    kept.write_text("{")
    assert "q4k_gemv" in completion.known_kernels()
    assert "q4k_gemv" in json.loads(kept.read_text())["kernels"]


def test_without_a_cache_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXGEN_CACHE_DIR", "0")
    assert completion.cache_folder() is None
    assert "q4k_gemv" in completion.known_kernels()


def test_tab_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import atexit, sys, time\n"
        "heavy = {'numpy', 'cuda', 'llvmlite', 'tokenizers', 'rich', 'jinja2', 'ptxgen.kernels.registry'}\n"
        "atexit.register(lambda: print(time.process_time(), *(heavy & set(sys.modules)), file=sys.stderr))\n"
        "sys.argv = ['ptxgen']\n"
        "from ptxgen.commands.start import ptxgen\n"
        "ptxgen()\n"
    )
    words = {"COMP_WORDS": "ptxgen emit mwv_q4k", "COMP_CWORD": "2", "_PTXGEN_COMPLETE": "bash_complete"}
    ran = python(code, env={**os.environ, **words})
    assert ran.stdout == "plain,mwv_q4k_gemv\n"
    seconds, *heavy = ran.stderr.split()
    assert heavy == []
    assert float(seconds) < 0.7  # 0.2 when this was written


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (["ptxgen", "emit", "mwv_q4k"], ["mwv_q4k_gemv"]),
        (["ptxgen", "emit", "rmsnorm", "--set", "hid"], ["hidden="]),
        (["ptxgen", "emit", "hw_dp4a_q4k_gemv", "--set", "k", "=", "256", "--set", "pd"], ["pdl="]),
        (["ptxgen", "emit", "hw_dp4a_q4k_gemv", "--set", "pdl", "="], ["true", "false"]),
        (["ptxgen", "emit", "hw_dp4a_q4k_gemv", "--set", "pdl", "=", "f"], ["false"]),
        (["ptxrun", "bench", "rmsnorm", "--devi"], ["--device", "--devices"]),
    ],
)
def test_bash_completes(words: list[str], reply: list[str]) -> None:
    """`words`: the line as bash takes it apart, at each `=`."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    line = " ".join(f"'{word}'" for word in words)
    program = words[0]
    script = (
        f'eval "$(_{program.upper()}_COMPLETE=bash_source {program})"\n'
        "compopt() { :; }\n"  # which only Tab may call
        f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
        f'$(complete -p {program} | sed "s/.*-F \\([^ ]*\\) .*/\\1/") {program}\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{SCRIPTS}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [bash, "--norc", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False
    )
    assert (ran.stdout.split(), ran.stderr) == (reply, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str) -> None:
    ran = subprocess.run(
        [f"{SCRIPTS}/ptxgen"],
        capture_output=True,
        text=True,
        env={**os.environ, "_PTXGEN_COMPLETE": f"{shell}_source"},
        check=False,
    )
    assert "_PTXGEN_COMPLETE" in ran.stdout
    assert ran.returncode == 0


@pytest.mark.parametrize("named", [None, "", " ", "0", " 0 ", "/a/folder", "~/a/folder", "a folder "])
def test_what_is_kept_is_in_the_cache_folder_of_everything_else(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if named is None:
        monkeypatch.delenv("PTXGEN_CACHE_DIR", raising=False)
    else:
        monkeypatch.setenv("PTXGEN_CACHE_DIR", named)
    assert completion.cache_folder() == settings().cache_dir
