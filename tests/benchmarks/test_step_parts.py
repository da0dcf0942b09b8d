"""What is said of the parts of a step can be tried on the emulator, whose times mean nothing."""

from __future__ import annotations

from pathlib import Path

from benchmarks.step_parts import parts, step_rows
from executor.device import open_device
from executor.model.generation import LanguageModel
from tests.synthetic import Q, write_model


def test_few_rows_are_of_as_many_sequences_and_many_of_one() -> None:
    assert [(row.slot, row.position, row.scored) for row in step_rows(2, depth=5)] == [(0, 5, True), (1, 5, True)]
    prompt = step_rows(65, depth=5)
    assert [row.position for row in prompt] == list(range(65))
    assert {(row.slot, row.scored) for row in prompt[:-1]} == {(0, False)}
    assert prompt[-1].scored


def test_every_launch_of_a_step_belongs_to_one_operation(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", types=Q.Q8_0, layers=2, hidden=64, heads=2, ff=64, context=32)
    with open_device("emulator") as device, LanguageModel.load(path, device, context=32) as model:
        engine = model.engine(slots=2, rows=2)
        for slot in range(2):
            engine.set_table(slot, [slot])
        whole, *of_each = parts(engine, 2, depth=3, runs=1)
    assert whole["operation"] == "step"
    assert sum(one["launches"] for one in of_each) == whole["launches"]
    assert {"attn_norm", "ffn_gate", "ffn_down", "output", "argmax"} <= {one["operation"] for one in of_each}
    assert all(one["microseconds"] > 0 and one["kernels"] for one in of_each)
    assert of_each == sorted(of_each, key=lambda one: -one["microseconds"])
