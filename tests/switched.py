"""Profiles for tests that are run with a rule on and off."""

from __future__ import annotations

from executor.choice.choice import GpuProfile


def switched(profile: GpuProfile, **rules: bool) -> GpuProfile:
    """The profile with each of these rules as it is said."""
    on = [name for name, said in rules.items() if said]
    return profile.with_rules(*on).without(*rules.keys() - on)
