"""What is told of the grounds of an answer: where the profile is from, what nobody vouches for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from funcpipe.partitioner.grounds import grounds
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting

LAYER = LayerProfile(
    name="x", forward_s=((1.0,),), backward_s=((1.0,),), parameter_bytes=1, activation_bytes=1,
    output_bytes=1,
)  # fmt: skip


def setting(platform: str = "aws-lambda", *, source: str = "", steps: int | None = None) -> Setting:
    profile = ModelProfile(name="toy", layers=(LAYER,), source=source)
    return Setting(profile=profile, platform=load_platform(platform), batch_size=8, num_steps=steps)


def unverified(one: Setting) -> set[str]:
    (note,) = grounds(one)
    assert note.startswith(f"figures of {one.platform.name} without a public source: ")
    return set(note.partition(": ")[2].split(", "))


def test_the_source_of_the_profile_is_told_as_it_is() -> None:
    told = grounds(setting(source="measured on a quiet machine"))

    assert told[0] == "profile: measured on a quiet machine"
    assert len(told) == 2


def test_only_figures_that_an_estimate_uses_are_named() -> None:
    # Given a platform without a source for a price that estimates leave out
    one = setting()
    doubted = {figure.path for figure in one.platform.figures if not figure.is_verified}
    assert {"price.list", "price.stored_gb_month"} < doubted
    # Then
    assert {"network.latency_s", "price.put", "price.get", "price.missed_get"} == unverified(one)


def test_what_a_start_takes_counts_in_a_run_of_known_length() -> None:
    one = setting()
    starts = {"time.cold_start_s", "price.bills_initialisation", "price.invocation"}
    doubted = {figure.path for figure in one.platform.figures if not figure.is_verified}

    assert unverified(replace(one, num_steps=100)) - unverified(one) == starts & doubted


def test_nothing_is_told_where_all_is_vouched_for() -> None:
    one = setting()
    figures = dict.fromkeys(unverified(one), "1")

    assert grounds(replace(one, platform=one.platform.changed(figures))) == ()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"off": -0.25, "run": "r1", "platform": "aws-lambda"},
         "by run r1 on aws-lambda; before, it had a step 25.0% too short"),
        ({"off": 0.5}, "by run; before, it had a step 50.0% too long"),
        ({"off": 10**400}, None),
        ({"off": "much"}, None),
        ({}, None),
        (7, None),
    ],
)  # fmt: skip
def test_a_calibration_is_told_with_how_far_off_the_profile_was(
    told: object, expected: str | None
) -> None:
    one = setting()
    one = replace(one, profile=replace(one.profile, measured={"calibrated": told}))
    notes = [note for note in grounds(one) if "calibrated" in note]
    assert notes == ([] if expected is None else [f"the profile was calibrated {expected}"])
