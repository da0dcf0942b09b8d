"""The model of a step of several GPUs: what it takes from the measurements, what of it divides, and the tables of its page."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import scaling, scaling_report
from benchmarks.models import MODELS
from benchmarks.scaling import costs, fitted, launches, nccl, one_shot, quicker, shape, step
from ptxgen.errors import ArgumentError

ONE, EIGHT, SEVENTY = (MODELS[name] for name in ("llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b"))
MEASURED = {
    (one["model"], 1): 1e6 / one["accurate"]["median"]
    for one in scaling.record(scaling_report.ONE)["results"]
    if one["variant"] == scaling_report.VARIANT
} | {
    ("llama-3.1-8b", one["sequences"]): one["sequences"] * 1e6 / one["tokens_per_second"]["median"]
    for one in scaling.record(scaling.DEPTHS)["results"]
    if one["kind"] == "batch"
}
"""Us a step on one GPU, by model and rows."""


def free(slice_bytes: int, ranks: int) -> float:
    return 0.0


def test_the_page_has_the_tables_that_the_results_give() -> None:
    page = scaling_report.PAGE.read_text()
    assert scaling_report.written(page) == page, "run python -m benchmarks.scaling_report"


def test_an_old_page_is_written_anew_and_its_words_stay(tmp_path: Path) -> None:
    old = scaling_report.PAGE.read_text().replace("|Llama-3.1-70B|2|", "|Llama-3.1-70B|3|")
    (tmp_path / "scaling.md").write_text(old)
    done = CliRunner().invoke(scaling_report.main, ["--page", str(tmp_path / "scaling.md")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "scaling.md").read_text() == scaling_report.PAGE.read_text() != old


@pytest.mark.parametrize(("model", "rows"), MEASURED, ids=str)
def test_a_step_of_one_gpu_is_within_a_tenth_of_the_measured_one(model: str, rows: int) -> None:
    assert step(shape(model), rows=rows).total == pytest.approx(MEASURED[model, rows], rel=0.1)


def test_a_fit_finds_the_times_that_observations_were_made_of() -> None:
    sizes = [{"Q4_K": 9.4e6}, {"Q4_K": 66e6}, {"Q6_K": 48e6}, {"Q4_K": 33e6, "Q6_K": 48e6}]
    made = [(count, of, 2.5 * count + of.get("Q4_K", 0) * 3e-7 + of.get("Q6_K", 0) * 2e-7) for count, of in enumerate(sizes, 1)]
    found = fitted(made)
    assert found.launch == pytest.approx(2.5)
    assert found.per_byte == pytest.approx({"Q4_K": 3e-7, "Q6_K": 2e-7})
    assert found.microseconds({"Q4_K": 1e7}) - found.microseconds({"Q4_K": 1e7}, beside=True) == pytest.approx(2.5)


def test_the_fit_of_one_row_is_within_an_eighth_of_every_launch_that_was_stamped() -> None:
    observed = scaling.observed_launches()
    assert len(observed) == 14
    for model, operation, bytes_of, time in observed:
        assert costs(1).products.microseconds(bytes_of) == pytest.approx(time, rel=0.125), (model, operation)


def test_weights_are_read_as_fast_as_memory_allows_and_no_faster() -> None:
    for format, per_byte in costs(1).products.per_byte.items():
        assert 3e6 < 1 / per_byte < 4.65e6, format


def test_the_launches_are_those_of_the_step_and_read_its_weights() -> None:
    names = [one.name for one in launches(EIGHT)]
    assert {name: names.count(name) for name in set(names)} == {
        "attn_q+attn_k": 16, "attn_v": 16, "attn_q+attn_k+attn_v": 16, "attn_output": 32, "ffn_gate+ffn_up": 32, "ffn_down": 32,
        "output": 1,
    }  # fmt: skip
    assert scaling.weight_bytes(EIGHT) == scaling.record(scaling.DEPTHS)["weight_bytes_a_step"]
    tied = [one for one in launches(ONE) if one.name == "output"]
    assert tied[0].bytes_of == {"Q6_K": ONE.vocab * ONE.hidden * 210 / 256}


class TestSeveralGpus:
    def test_the_bytes_of_products_divide_and_their_launches_do_not(self) -> None:
        one, two, four = (step(SEVENTY, ranks=ranks).products for ranks in (1, 2, 4))
        launch = costs(1).products.launch * sum(not product.beside for product in launches(SEVENTY))
        assert two - launch == pytest.approx((one - launch) / 2)
        assert four - launch == pytest.approx((one - launch) / 4)

    def test_the_cache_divides_and_norms_do_not(self) -> None:
        deep = [step(EIGHT, ranks=ranks, depth=8192).attention - step(EIGHT, ranks=ranks).attention for ranks in (1, 2)]
        assert deep[1] == pytest.approx(deep[0] / 2)
        norms = EIGHT.layers * (costs(1).small["attn_norm"] + costs(1).small["ffn_norm"])
        assert step(EIGHT, ranks=8).small > norms

    def test_four_gathers_a_layer_and_one_of_the_logits_carry_the_slices_of_their_values(self) -> None:
        seen: list[int] = []

        def noted(slice_bytes: int, ranks: int) -> float:
            seen.append(slice_bytes)
            return 1.0

        assert step(EIGHT, ranks=2, rows=2, gather=noted).gathers == len(seen) == 4 * 32 + 1
        assert seen[:4] == [2 * 4 * number // 2 for number in (4096, 4096, 14336, 4096)]
        assert seen[-1] == 128256 * 4
        seen.clear()
        assert step(EIGHT, ranks=2, gather=noted, attention_split=False).gathers == len(seen) == 2 * 32 + 1

    def test_attention_that_is_whole_on_each_takes_what_it_takes_of_one(self) -> None:
        whole, alone = step(EIGHT, ranks=4, gather=free, attention_split=False), step(EIGHT)
        assert whole.attention == alone.attention
        assert step(EIGHT, ranks=4, gather=free).total < whole.total < alone.total

    def test_one_gpu_gathers_nothing(self) -> None:
        assert step(EIGHT).gathers == 0

    @pytest.mark.parametrize(("ranks", "words"), [(3, "8 heads cannot be split over 3"), (16, "8 heads"), (0, "over 0 GPUs")])
    def test_what_does_not_divide_is_refused(self, ranks: int, words: str) -> None:
        with pytest.raises(ArgumentError, match=words):
            step(EIGHT, ranks=ranks)


class TestGathers:
    def test_what_was_measured_comes_back_and_between_lies_between(self) -> None:
        for one in scaling.record(scaling.GATHERS)["results"]:
            if one["way"] == "one_shot":
                assert one_shot(one["bytes"], 2) == one["microseconds"]
            if one["way"] == "nccl_all_gather":
                assert nccl(one["bytes"] // 2, 2) == one["microseconds"]
        assert one_shot(8192, 2) < one_shot(16384, 2) < one_shot(32768, 2)
        assert one_shot(1, 2) == one_shot(4096, 2)

    def test_above_them_it_goes_on_as_steeply(self) -> None:
        assert one_shot(131072 + 98304, 2) - 7.4 == pytest.approx(7.4 - 4.8)

    def test_more_peers_are_more_bytes_and_large_slices_are_nccls(self) -> None:
        assert one_shot(4096, 3) == one_shot(8192, 2)
        assert quicker(4096, 2) == one_shot(4096, 2)
        assert quicker(1 << 21, 2) == nccl(1 << 21, 2) < one_shot(1 << 21, 2)


def test_rows_and_models_that_were_not_measured_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"no step of 512 rows has parts .*; measured: 1, 2, 4, 8, 16, 32"):
        costs(512)
    with pytest.raises(ArgumentError, match=r"no model is called 'llama-9'; known: llama-3\.2-1b"):
        shape("llama-9")


def test_a_million_tokens_cost_the_hours_of_all_gpus() -> None:
    assert scaling.gpu_hours(1e6 / 3600, 1) == pytest.approx(1)
    assert scaling.gpu_hours(1e6 / 3600, 8) == pytest.approx(8)


def test_a_pipeline_gives_no_sequence_more_speed_and_all_of_them_a_stage_each() -> None:
    token, speed = scaling.pipelined(SEVENTY, 4, 8, hop=20.0)
    alone = step(SEVENTY, rows=8).total
    assert token == alone + 80
    assert speed == pytest.approx(4 * 8e6 / (alone + 80))


def test_a_stage_waits_while_a_pipeline_fills_and_empties() -> None:
    assert [scaling.idle(4, groups) for groups in (1, 3, 13)] == [0.75, 0.5, 0.1875]


def test_a_row_reads_its_experts_and_many_rows_nearly_all() -> None:
    assert scaling.touched(128, 8, 1) == pytest.approx(8 / 128)
    assert scaling.touched(8, 2, 2) == pytest.approx(1 - (6 / 8) ** 2)
    assert scaling.touched(128, 8, 128) > 0.99
