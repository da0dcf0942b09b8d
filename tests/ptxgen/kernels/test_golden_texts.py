"""The comparison with golden/ptx names the kernel whose text changed, whether its text is kept whole or as a digest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptxgen.errors import Nonconformity
from tests.ptxgen.kernels import golden_texts
from tests.ptxgen.kernels.golden_texts import TARGETS, check, digests, update

KEPT, DIGEST = "q4k_gemv", "q5k_gemv"
TEXTS = {target.name: f"// one\n.target {target}\nret;\n" for target in TARGETS}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(golden_texts, "whole", lambda name: f"// whole\n.entry {name}\n")
    for name in (KEPT, DIGEST):
        update(name, TEXTS, tmp_path)
    return tmp_path


def test_a_text_that_was_kept_passes(folder: Path) -> None:
    for name in (KEPT, DIGEST):
        check(name, TEXTS, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["digests.json", f"{KEPT}.ptx"]


def test_the_digest_is_of_what_a_text_does(folder: Path) -> None:
    check(DIGEST, {target: text.replace("one", "two") for target, text in TEXTS.items()}, folder)


def test_a_changed_text_is_shown_as_a_diff(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_texts, "whole", lambda name: f"// changed\n.entry {name}\n")
    with pytest.raises(Nonconformity, match=r"the text of q4k_gemv changed:\n(.*\n)*-// whole\n\+// changed"):
        check(KEPT, TEXTS, folder)


def test_a_text_is_kept_at_its_small_shape_for_the_oldest_gpu() -> None:
    text = golden_texts.whole("q4k_gemv")
    assert "// q4k_gemv(k=256, n=2)\n" in text
    assert ".target sm_75\n" in text


@pytest.mark.parametrize("name", [KEPT, DIGEST])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_a_changed_digest_is_told_with_the_kernel_and_the_target(name: str, target: str, folder: Path) -> None:
    with pytest.raises(Nonconformity, match=rf"the text of {name} for {target} is not that of golden/ptx/digests.json"):
        check(name, {**TEXTS, target: "exit;\n"}, folder)


def test_a_kernel_of_which_nothing_was_kept_fails(folder: Path) -> None:
    for name, words in (("rope", "text of rope changed"), ("q6k_gemv", "q6k_gemv for sm_75, sm_80, sm_90 is not")):
        with pytest.raises(Nonconformity, match=words):
            check(name, TEXTS, folder)


def test_an_update_changes_that_kernel_alone_also_beside_others(folder: Path) -> None:
    before = digests(folder)[DIGEST]
    names = [f"kernel_{number}" for number in range(8)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: update(name, TEXTS, folder), names))
    update(KEPT, dict.fromkeys(TEXTS, "exit;\n"), folder)
    assert set(digests(folder)) == {KEPT, DIGEST, *names}
    assert digests(folder)[DIGEST] == before != digests(folder)[KEPT]
