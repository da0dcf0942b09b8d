"""What a grammar costs: that the benchmark times what it says, on the emulator, whose times mean nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.grammar_mask import SCHEMA, main
from benchmarks.models import write_q4_k_m
from executor.gguf.gguf_file import GgufFile
from executor.text.grammar import Grammar, GrammarGuide
from executor.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("shared_kernels")


def test_steps_are_timed_with_the_grammar_and_without_it(tmp_path: Path) -> None:
    write_q4_k_m("tiny", tmp_path / "m.gguf", vocabulary=True)
    output = tmp_path / "x.json"
    words = ["--model", str(tmp_path / "m.gguf"), "--device", "emulator", "--sequences", "2", "--tokens", "5", "--rounds", "1"]
    done = CliRunner().invoke(main, [*words, "-o", str(output)], catch_exceptions=False)
    record = json.loads(output.read_text())
    assert [(one["way"], one["sequences"]) for one in record["results"]] == [("one sequence", 1), ("scheduler, 2 sequences", 2)]
    for one in record["results"]:
        assert one["share"] == pytest.approx(one["bound_us"] / one["free_us"] - 1, abs=1e-3)
        assert min(one["mask_us"]["median"], one["accept_us"]["median"]) > 0
        assert one["answer"].startswith('[{"na')
        assert f"{one['way']}: {one['free_us']} us a step" in done.output


def test_an_answer_of_the_schema_does_not_end_by_itself(tmp_path: Path) -> None:
    write_q4_k_m("tiny", tmp_path / "m.gguf", vocabulary=True)
    tokenizer = Tokenizer.from_gguf(GgufFile.open(tmp_path / "m.gguf"))
    guide = GrammarGuide(Grammar.json_schema(SCHEMA), tokenizer, ())
    person = '{"name":"","age":0,"kind":"thing","tags":[]}'
    for token in tokenizer.encode("[" + ",".join([person] * 30), add_special=False):
        guide.accept(token)
    assert not guide.finished


def test_a_model_is_given_or_made(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--device", "emulator", "-o", str(tmp_path / "x.json")])
    assert (done.exit_code, "give either --model or --synthetic" in done.output) == (2, True)
