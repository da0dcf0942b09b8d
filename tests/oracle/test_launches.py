"""What steps of the benchmark models launch is what golden/launches says, and a change of a launch is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.models import MODELS, write_hollow, write_shape
from executor.gguf.gguf_file import GgufFile
from executor.launch.launch import LayerOperation
from executor.launch.recorded import RecordedLaunch
from ptxgen.kernels.registry import find
from tests.oracle.launches import FOLDER, SUBJECTS, Subject, difference
from tests.oracle.listing import listing

FIRST, *OTHERS = SUBJECTS


@pytest.mark.parametrize("subject", [FIRST, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)], ids=str)
def test_steps_launch_what_was_kept(subject: Subject) -> None:
    lines = difference(subject)
    if lines:
        shown = "\n".join(lines[:200])
        pytest.fail(f"{shown}\nif this is meant, run python -m tests.oracle.launches --write", pytrace=False)


def test_every_file_is_of_a_subject() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {subject.path.name for subject in SUBJECTS}


def launch(number: int, layer: int | None = None) -> RecordedLaunch:
    kernel = find("rmsnorm").make(hidden=512)
    after = (number - 1,) if number else ()
    return RecordedLaunch(
        LayerOperation(layer, "attn_norm"), kernel, (1, 1, 1), (256, 1, 1), {"eps": 0.5}, after, dependent=False
    )


def test_layers_that_launch_the_same_stand_once_and_one_that_differs_is_seen() -> None:
    launches = [launch(number, layer=number) for number in range(4)]
    heading, first, others, rest = listing(launches)
    assert (heading, others) == ("layers 0", "layers 1-3")
    assert first.startswith("  attn_norm: rmsnorm(hidden=512) after -; eps=0.5 #")
    assert rest.startswith("  attn_norm: rmsnorm(hidden=512) after 1; eps=0.5 #")
    for changed in (
        replace(launches[2], dependent=True),
        replace(launches[2], after=(0,)),
        replace(launches[2], grid=(2, 1, 1)),  # in no line, but in the digest
        replace(launches[2], arguments={"eps": 0.25}),
        replace(launches[2], kernel=find("rmsnorm").make(hidden=1024)),
    ):
        now = listing([*launches[:2], changed, *launches[3:]])
        assert [line for line in now if line.startswith("layers")] == ["layers 0", "layers 1", "layers 2", "layers 3"]


def test_launches_that_differ_in_edges_alone_stand_once_with_a_digest_of_all() -> None:
    alike = [launch(number) for number in range(3)]
    counted = listing([launch(0), *(replace(one, after=(0,)) for one in alike[1:])])
    assert len(counted) == 2
    assert " and 2 like it #" in counted[1]
    assert counted != listing(alike)


def test_a_model_without_weights_has_all_that_one_with_weights_has(tmp_path: Path) -> None:
    shape = replace(MODELS["tiny"], rope_factor=8.0)
    write_shape(shape, tmp_path / "whole.gguf", "q4_k_m", name="tiny")
    write_hollow(shape, tmp_path / "hollow.gguf", "q4_k_m", name="tiny")
    with GgufFile.open(tmp_path / "whole.gguf") as whole, GgufFile.open(tmp_path / "hollow.gguf") as hollow:
        assert dict(hollow.metadata) == dict(whole.metadata)
        assert dict(hollow.tensors) == dict(whole.tensors)
        assert hollow.data("rope_freqs.weight").tobytes() == whole.data("rope_freqs.weight").tobytes()
        assert not hollow.data("blk.0.ffn_down.weight").any()
    assert (tmp_path / "hollow.gguf").stat().st_size == (tmp_path / "whole.gguf").stat().st_size
