"""Shorter chains: which cuts are kept, what the sums are, and what it can cost."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest

from funcpipe.errors import PlanError, ProfileError
from funcpipe.partitioner.merge import Merged, loss_at_most, merge
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.profile import LayerProfile, ModelProfile


def chain_of(times: list[float], crossing: list[float] | None = None) -> ModelProfile:
    sizes = crossing or [1.0] * len(times)
    layers = tuple(
        LayerProfile(
            name=f"l{i}",
            forward_s=((time,), (time / 4,)),
            backward_s=((2 * time,), (time,)),
            parameter_bytes=100.0 * i,
            trained_bytes=10.0 * i,
            optimizer_factor=float(i % 3),
            activation_bytes=time,
            output_bytes=size,
            output_gradient_bytes=size / 2,
            step_s=(1.0, 0.5) if i % 2 else (),
        )
        for i, (time, size) in enumerate(zip(times, sizes, strict=True))
    )
    return ModelProfile(name="x", layers=layers, vcpus=(1, 4), input_bytes=9, source="made up")


def test_the_slowest_layer_is_as_fast_as_can_be() -> None:
    times = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    for count in range(1, 9):
        # When it is merged without slack
        bounds = merge(chain_of(times), count, slack=0).bounds
        # Then no other choice of cuts has a faster slowest layer
        best = min(
            max(sum(times[a:b]) for a, b in pairwise((0, *cuts, 8)))
            for cuts in combinations(range(1, 8), count - 1)
        )
        assert len(bounds) == count + 1
        assert max(sum(times[a:b]) for a, b in pairwise(bounds)) == best


def test_cheap_cuts_are_kept() -> None:
    # Given equal layers, where the cuts behind layers 0 and 3 are cheap
    profile = chain_of([1.0] * 6, [1, 8, 8, 2, 8, 0])
    # Then without slack halves and thirds must be even, with slack they need not
    assert merge(profile, 2, slack=0).bounds == (0, 3, 6)
    assert merge(profile, 2, slack=0.4).bounds == (0, 4, 6)
    assert merge(profile, 3, slack=0.5).bounds == (0, 1, 4, 6)
    # And among equally balanced ones the cheapest is taken
    assert merge(chain_of([1.0] * 3, [5, 1, 0]), 2, slack=0).bounds == (0, 2, 3)
    assert merge(chain_of([1.0] * 3, [1, 5, 0]), 2, slack=0).bounds == (0, 1, 3)


def test_figures_are_sums_and_cuts_are_those_that_remain() -> None:
    # Given
    profile = chain_of([1.0, 2.0, 4.0], [7, 8, 9])
    # When
    (layer,) = merge(profile, 1).profile.layers
    # Then
    assert layer.forward_s == ((7.0,), (1.75,))
    assert layer.backward_s == ((14.0,), (7.0,))
    assert (layer.parameter_bytes, layer.trained, layer.activation_bytes) == (300.0, 30.0, 7.0)
    assert layer.trained * layer.optimizer_factor == pytest.approx(10 * 1 + 20 * 2)
    assert (layer.output_bytes, layer.output_gradient, layer.step_s) == (9, 4.5, (1.0, 0.5))
    assert layer.name == "l0 .. l2"


def test_the_profile_around_the_layers_stays() -> None:
    profile = chain_of([1.0, 2.0, 4.0])
    merged = merge(profile, 2).profile
    assert replace(merged, layers=profile.layers, source="made up") == profile
    assert merged.source == "made up; 3 layers merged to 2"


@pytest.mark.parametrize("target", [3, 4, 1000])
def test_a_short_chain_stays_as_it_is(target: int) -> None:
    profile = chain_of([1.0, 2.0, 4.0])
    merged = merge(profile, target)
    assert merged.profile == profile
    assert merged.bounds == (0, 1, 2, 3)


def test_layers_without_time_can_be_merged() -> None:
    assert merge(chain_of([0.0] * 5), 2).profile.num_layers == 2
    assert merge(chain_of([0.0] * 5), 2).time_share == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 0}, "layers to merge to: 0"),
        ({"target": 2.0}, "layers to merge to: 2.0"),
        ({"target": True}, "layers to merge to: True"),
        ({"target": 2, "how": "random"}, "'random'; known: balanced"),
        ({"target": 2, "slack": -0.1}, "slack is -0.1"),
        ({"target": 2, "slack": math.nan}, "slack is nan"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        merge(chain_of([1.0] * 3), **arguments)


def test_the_shares_are_those_of_the_largest_layer() -> None:
    merged = merge(chain_of([1.0, 1.0, 3.0, 1.0]), 3, slack=0)
    assert merged.time_share == pytest.approx(0.5)
    # Weights, gradients and state of 0, 100 + 10 x 2, 200 + 20 x 3, 300 + 30 x 1; activations
    whole = 0 + 120 + 260 + 330 + 6
    assert max(merged.bounds[i + 1] - merged.bounds[i] for i in range(3)) == 2
    assert merged.memory_share == pytest.approx(331 / whole)


def test_a_plan_of_the_merged_chain_is_one_of_the_original() -> None:
    # Given layers merged to 0..1, 2 and 3..4
    original = chain_of([1.0] * 5)
    merged = Merged(profile=merge(original, 3).profile, original=original, bounds=(0, 2, 3, 5))
    stages = (
        StagePlan(first_layer=0, stop_layer=2, replicas=2, memory_mb=1024, recompute=True),
        StagePlan(first_layer=2, stop_layer=3, replicas=2, memory_mb=2048),
    )
    plan = Plan(stages=stages, micro_batch_size=4)
    # Then
    expanded = merged.expand(plan)
    assert [(one.first_layer, one.stop_layer) for one in expanded.stages] == [(0, 3), (3, 5)]
    same = [replace(b, first_layer=a.first_layer, stop_layer=a.stop_layer)
            for a, b in zip(plan.stages, expanded.stages, strict=True)]  # fmt: skip
    assert replace(expanded, stages=tuple(same)) == plan
    with pytest.raises(PlanError, match="covers 5 layers, the merged profile has 3"):
        merged.expand(expanded)


def test_the_relaxed_chain_has_anchors_and_the_cheapest_cuts_between_them() -> None:
    # Given anchors l1 and l4
    original = chain_of([1.0, 5.0, 2.0, 1.0, 6.0, 1.0], [3, 8, 4, 9, 7, 0])
    merged = Merged(profile=merge(original, 2).profile, original=original, bounds=(0, 3, 6))
    # Then
    relaxed = merged.relaxed
    assert [layer.name for layer in relaxed.layers] == ["l1", "l4"]
    assert [layer.parameter_bytes for layer in relaxed.layers] == [100, 400]
    assert [layer.output_bytes for layer in relaxed.layers] == [4, 0]
    assert [layer.output_gradient for layer in relaxed.layers] == [2, 0]
    assert relaxed.input_bytes == 3


@pytest.mark.parametrize(
    ("times", "held"),
    [([5, 1, 1, 5], 8.0), ([1, 5, 1, 5], 0.0), ([5, 1, 5, 1], 0.0), ([1, 5, 5, 1], 0.0)],
)
def test_a_relaxed_chain_holds_data_only_where_no_end_can_be_dropped(
    times: list[float], held: float
) -> None:
    # Given anchors that are the first and last layers, or are not
    original = replace(chain_of(times), data_bytes=8.0)
    merged = Merged(profile=merge(original, 2).profile, original=original, bounds=(0, 2, 4))
    # Then
    assert merged.profile.data_bytes == 8.0
    assert merged.relaxed.data_bytes == held


def test_nothing_is_relaxed_where_nothing_was_merged() -> None:
    profile = chain_of([1.0, 2.0, 4.0])
    assert merge(profile, 3).relaxed.layers == profile.layers


@pytest.mark.parametrize(
    ("value", "bound", "loss"), [(10, 9, 0.1), (10, 10, 0), (10, 11, 0), (10, 0, 1), (0, 0, 0)]
)
def test_the_loss_is_part_of_the_value(value: float, bound: float, loss: float) -> None:
    assert loss_at_most(value, bound) == pytest.approx(loss)
