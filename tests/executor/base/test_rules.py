"""The table of rules: what it says of targets is true, names that are not in it are refused, and the page lists it."""

from __future__ import annotations

import re
from pkgutil import resolve_name

import pytest

from executor.base.environment import settings
from executor.base.rules import RENAMED, RULES, USUAL, Usually
from executor.choice import thresholds
from executor.choice.choice import GpuProfile
from executor.choice.thresholds import EVIDENCE
from executor.device.gpu import GpuModel
from ptxgen.errors import ArgumentError
from ptxgen.kernels.persistent.persistent_layer import PersistentLayer
from ptxgen.target import DEFAULT, Target
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "executor" / "sequences.md").read_text()


@pytest.mark.parametrize("change", [GpuProfile.allows, GpuProfile.with_rules, GpuProfile.without])
def test_an_unknown_name_is_refused_with_the_known_ones_and_an_old_one_with_the_new(change: object) -> None:
    assert callable(change)
    with pytest.raises(ArgumentError, match=r"there is no rule 'fusion'; known: batch_invariant, repack, .*persistent_layers$"):
        change(GpuProfile(), "fusion")
    for old, new in RENAMED.items():
        with pytest.raises(ArgumentError, match=f"there is no rule '{old}'; it is {new} now"):
            change(GpuProfile(), old)


def test_a_profile_that_is_made_with_other_rules_is_refused() -> None:
    with pytest.raises(ArgumentError, match="there is no rule 'fusion'"):
        GpuProfile(rules=frozenset(["fusion"]))
    with pytest.raises(ArgumentError, match="rules is 'repack'; allowed: a frozenset"):
        GpuProfile(rules="repack")  # type: ignore[arg-type]


def test_old_names_stand_for_rules_and_for_none_of_them() -> None:
    assert set(RENAMED.values()) <= set(RULES)
    assert not set(RENAMED) & set(RULES)


def test_a_rule_is_on_or_off_and_does_nothing_without_those_that_it_needs() -> None:
    profile = GpuProfile().with_rules("deferred_norms")
    assert profile.allows("deferred_norms")
    assert profile.without("deferred_norms") == GpuProfile()
    assert not profile.allows("sent_parts")
    assert profile.with_rules("weight_pipelines").allows("sent_parts")


def test_the_environment_turns_each_rule_on_and_off(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in RULES.values():
        for text, on in (("1", True), ("0", False)):
            with monkeypatch.context() as patch:
                patch.setenv(rule.variable.name, text)
                assert settings().rules == {rule.name: on}
                assert (rule.name in GpuProfile.from_environment().rules) == on


@pytest.mark.parametrize("sm", [75, 80, 89, 90, 100, 120])
def test_what_keeps_bits_is_on_where_the_target_has_what_it_needs_but_on_the_emulator(sm: int) -> None:
    target = Target(sm)
    for rule in RULES.values():
        able = rule.usually is Usually.ABLE and not rule.lacks(target)
        assert rule.usually_on(target, emulated=False) == (rule.usually is Usually.ON or able)
        assert rule.usually_on(target, emulated=True) == (rule.usually is Usually.ON)
        assert rule.same_bits or not able


def test_every_known_generation_has_the_rules_that_its_blocks_have_room_for() -> None:
    def on(sm: int) -> set[str]:
        return set(GpuProfile.for_gpu(GpuModel("a GPU of tomorrow", f"sm_{sm}", 100), Target(sm)).rules) - USUAL

    attention = {"last_block_reduction", "rope_fused_attention"}
    everywhere = attention | {"repack", "horizontal_fusion", "deferred_norms", "swiglu_fusion"}
    early = {"dependent_launches"}
    assert on(75) == on(80) == on(86) == on(89) == everywhere
    assert on(120) == on(121) == everywhere | early
    assert on(90) == on(100) == on(103) == everywhere | early | {"weight_pipelines"}


def test_a_row_needs_what_its_kernel_needs() -> None:
    assert PersistentLayer.least_sm == RULES["persistent_layers"].sm


def test_the_page_lists_the_rules_that_keep_bits_with_what_they_need() -> None:
    rows = re.findall(r"^\| `(\w+)`.*\| (.*?) ?\|$", PAGE.partition("| rule | effect")[2], re.MULTILINE)
    assert [name for name, _ in rows] == [name for name, rule in RULES.items() if rule.same_bits]
    for name, needs in rows:
        assert needs.startswith(RULES[name].needs)
        assert all(f"`{other}`" in needs for other in RULES[name].only_with)


def test_every_target_has_what_the_rules_that_are_always_on_need() -> None:
    assert not [rule for rule in RULES.values() if rule.usually is Usually.ON and rule.lacks(DEFAULT)]


def test_evidence_is_of_what_there_is() -> None:
    for one in EVIDENCE:
        assert one.decides in RULES or hasattr(thresholds, one.decides) or resolve_name(one.decides)
