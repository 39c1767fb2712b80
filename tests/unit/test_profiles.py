"""Putting profiles together from results, and telling whether one still holds."""

from __future__ import annotations

from typing import Any

import pytest

from funcpipe.errors import ProfileError
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.profiles import (
    Point,
    assemble,
    differences,
    fingerprint,
    fingerprint_of,
    late_of,
)

from .made_up import Result, result

SIZES = (1, 4, 16)


def point(vcpu: float, *copies: Result, sizes: tuple[int, ...] = SIZES, **changes: Any) -> Point:
    given = {"memory_mb": int(1769 * vcpu), "dilation": 1.5, "ranges": (copies,), **changes}
    return Point(vcpu=vcpu, sizes=sizes, **given)


def assembled(*points: Point, **changes: Any) -> ModelProfile:
    given = {"name": "made up", "batch_size": 16, "late_s": 0.02, "source": "a test"}
    return assemble(points, **(given | {"measured": {"torch": "2.9.0"}} | changes))


def test_times_are_medians_over_the_functions_and_bytes_the_most_any_saw() -> None:
    # Given three functions at one vCPU that differ in speed, one of which saw more workspace
    slow = result([0, 1], SIZES, scale=3.0)
    slow["layers"][1]["workspace_bytes"] = 99.0
    copies = [slow, result([0, 1], SIZES), result([0, 1], SIZES, scale=2.0)]
    # When
    profile = assembled(point(1.0, *copies))
    # Then
    assert profile.layers[1].forward_s == ((2 * 1 * 0.002, 2 * 4 * 0.002, 2 * 16 * 0.002),)
    assert profile.layers[1].backward_s[0][2] == pytest.approx(2 * 2 * 16 * 0.002)
    assert profile.layers[0].step_s == (0.02,)
    assert profile.layers[1].workspace_bytes == 99.0
    assert profile.layers[1].trained_bytes == 1600
    assert profile.layers[1].optimizer_factor == 2.0
    assert (profile.base_memory_bytes, profile.data_bytes) == (300_000_000, 1_000_000)
    assert (profile.put_cpu_s, profile.get_byte_cpu_s) == (0.002, 1e-9)
    assert (profile.late_s, profile.spread, profile.input_bytes) == (0.02, 0.02, 256.0)
    assert profile.measured["points"][0]["functions"] == 3


def test_points_become_rows_by_growing_vcpu_and_only_one_needs_bytes() -> None:
    # Given the largest memory size first, as it is measured
    unsized = {"memory": False, "transport": False}
    points = [
        point(4.0, result([0], SIZES, scale=0.25)),
        point(0.5, result([0], SIZES, scale=2.0, **unsized)),
    ]
    # When
    profile = assembled(*points)
    # Then
    assert profile.vcpus == (0.5, 4.0)
    assert profile.layers[0].forward_s == ((0.002, 0.008, 0.032), (0.00025, 0.001, 0.004))
    assert profile.layers[0].parameter_bytes == 1000
    assert ModelProfile.from_dict(profile.to_dict()) == profile


def test_sizes_that_did_not_fit_are_filled_in_in_proportion_to_the_point_that_has_them() -> None:
    # Given a small function that held micro-batches of 1 and 4 only
    points = [
        point(2.0, result([0], SIZES)),
        point(0.5, result([0], (1, 4), scale=3.0, memory=False), sizes=(1, 4)),
    ]
    # When
    layer = assembled(*points).layers[0]
    # Then the last time grows as it does where all sizes were measured: 16 takes 4 times as long
    assert layer.forward_s[0] == pytest.approx((0.003, 0.012, 0.048))


def test_ranges_of_layers_are_joined_in_order() -> None:
    # Given a model that took two functions, of which only the ends know of data
    parts = ((result([0, 1], SIZES, data_bytes=0),), (result([2], SIZES, input_bytes=None),))
    # When
    profile = assembled(point(1.0, ranges=parts))
    # Then
    assert [layer.name for layer in profile.layers] == ["0", "1", "2"]
    assert [layer.parameter_bytes for layer in profile.layers] == [1000, 2000, 3000]
    assert (profile.data_bytes, profile.input_bytes) == (1_000_000, 256.0)


def test_what_libraries_hold_after_some_passes_counts_as_base() -> None:
    given = result([0, 1], SIZES, fixed_bytes=5_000)
    assert assembled(point(1.0, given)).base_memory_bytes == 300_005_000


def test_a_layer_without_weights_has_no_state_and_a_model_without_steps_none() -> None:
    bare = result([0], SIZES)
    bare["layers"][0] |= {"trained_bytes": 0, "optimizer_bytes": 0, "step_s": 0.0}
    layer = assembled(point(1.0, bare)).layers[0]
    assert (layer.optimizer_factor, layer.step_s) == (0, ())


def test_nothing_measured_or_no_bytes_is_refused() -> None:
    with pytest.raises(ProfileError, match="nothing was measured"):
        assembled()
    with pytest.raises(ProfileError, match="no function measured bytes"):
        assembled(point(1.0, result([0], SIZES, memory=False)))


def test_a_reader_is_late_by_most_of_the_latency() -> None:
    platform = load_platform("aws-lambda", changes={"network.latency_s": "0.04"})
    assert late_of(platform) == pytest.approx(0.024)


PARTS = dict.fromkeys(
    ("layers", "code", "loss", "optimizer", "shapes", "data", "batch", "sizes", "tiers", "how",
     "platform", "machine", "torch", "funcpipe"), "the same"
)  # fmt: skip


def test_equal_fingerprints_have_no_differences_and_a_profile_carries_its_own() -> None:
    told = fingerprint(**PARTS)
    profile = assembled(point(1.0, result([0], SIZES)), measured={"fingerprint": told})
    kept = ModelProfile.from_dict(profile.to_dict())
    assert differences(fingerprint_of(kept), told) == []
    assert fingerprint_of(assembled(point(1.0, result([0], SIZES)))) == {}


@pytest.mark.parametrize(
    ("part", "now", "reason"),
    [
        ("torch", "3.0.0", "torch has changed: the same -> 3.0.0"),
        ("layers", [["0", "Linear", [8, 8]]], "the model's layers have changed"),
        ("sizes", "1, 2", "the micro-batch sizes have changed: the same -> 1, 2"),
        ("machine", "x" * 200, "this machine has changed"),
    ],
)
def test_what_differs_is_told_in_words(part: str, now: Any, reason: str) -> None:
    assert differences(fingerprint(**PARTS), fingerprint(**(PARTS | {part: now}))) == [reason]


def test_a_profile_without_a_fingerprint_does_not_hold() -> None:
    assert differences({}, fingerprint(**PARTS)) == ["it does not say what it was measured for"]


def test_a_fingerprint_has_all_parts_and_no_others() -> None:
    with pytest.raises(TypeError, match="expected"):
        fingerprint(**(PARTS | {"moon": "full"}))
