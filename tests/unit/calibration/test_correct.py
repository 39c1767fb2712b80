"""A profile is corrected to what was seen, and says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from funcpipe.calibration.compare import compare, predicted_step_s
from funcpipe.calibration.correct import calibrated
from funcpipe.calibration.observed import Observed, StageSeen, observe
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.grounds import grounds
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.report.beside import Beside

from .made_up import MB, PLAN, layer, profile, setting, simulated


def seen_of(truth: ModelProfile, plan: Plan = PLAN) -> Observed:
    """What a run would show if all were as the model says, with the profile `truth`."""
    place = setting(truth)
    found = observe(simulated(place, plan), [], plan, place.platform)
    assert found is not None
    return found


def row_of(rows: list[Beside], name: str) -> Beside:
    (found,) = [one for one in rows if one.name == name]
    return found


def seen(step_s: float = 3.0, *stages: StageSeen, **fields: Any) -> Observed:
    given = {"num_steps": 4, "spread": 0.0, "dollars": 1e-4, "requests": {"GET": 4.0},
             "late_s": None, "missed_per_get": 2.0}  # fmt: skip
    return Observed(step_s=step_s, stages=stages or (StageSeen(), StageSeen()), **(given | fields))


# -- comparing -------------------------------------------------------------------------------


def test_what_runs_as_the_model_says_is_not_off() -> None:
    # given a run that the simulator did with the very profile
    rows = compare(seen_of(profile()), setting(profile()), PLAN)
    # then nothing that is known of both is off, beside what depends on misses, of which it has none
    for name in ("step", *(f"stage {s}: {what}" for s in (0, 1)
                           for what in ("forward", "backward", "optimiser"))):  # fmt: skip
        assert row_of(rows, name).off == pytest.approx(0.0, abs=1e-9)
    assert row_of(rows, "missed GETs for each GET").predicted == 1.0


def test_the_comparison_says_what_is_off_and_by_how_much() -> None:
    first = StageSeen(seconds={"F": 0.2}, over_base_bytes=100 * MB, base_bytes=320 * MB)
    told = setting(profile())
    rows = compare(seen(4.0, first, StageSeen()), told, PLAN)
    forward = row_of(rows, "stage 0: forward")
    assert (forward.predicted, forward.measured, forward.off) == (0.1, 0.2, -0.5)
    memory = row_of(rows, "stage 0: memory over base")
    planned = evaluate(told, PLAN).stages[0].memory
    assert (memory.predicted, memory.measured) == (planned.total - 320 * MB, 100 * MB)
    base = row_of(rows, "stage 0: base memory")
    assert (base.predicted, base.measured) == (300 * MB, 320 * MB)
    # and what was not seen has no error
    assert row_of(rows, "stage 1: forward").off is None
    assert row_of(rows, "a message is noticed late by").measured is None


# -- times -----------------------------------------------------------------------------------


def test_layer_times_are_scaled_to_what_each_stage_took() -> None:
    # given a run whose first stage's forwards take three times, the second's backwards half as long
    truth = profile(
        layer("first", 0.3, 0.2, step_s=(0.04,)), layer("second", 0.3, 0.2, step_s=(0.01,))
    )
    observed = seen_of(truth)
    # when
    found = calibrated(profile(), observed, PLAN, setting(profile()), run="r1")
    # then all is as in truth, and nothing is left for the factor of the whole
    for mine, theirs in zip(found.layers, truth.layers, strict=True):
        for name in ("forward_s", "backward_s"):
            assert getattr(mine, name)[0] == pytest.approx(getattr(theirs, name)[0], rel=1e-6)
        assert mine.step_s == pytest.approx(theirs.step_s, rel=1e-6)
    told = found.measured["calibrated"]
    assert told["fit"] == pytest.approx(1.0, rel=1e-6)
    first, second = told["factors"]
    assert (first.pop("layers"), second.pop("layers")) == ("0-0", "1-1")
    assert first == pytest.approx({"forward": 3.0, "backward": 1.0, "step": 2.0}, rel=1e-9)
    assert second == pytest.approx({"forward": 1.0, "backward": 0.5, "step": 1.0}, rel=1e-9)
    assert told["run"] == "r1"
    assert told["off"] == pytest.approx(
        predicted_step_s(setting(profile()), PLAN) / observed.step_s - 1
    )


def test_the_next_prediction_is_what_was_measured() -> None:
    # given steps that took longer than all that was seen of their parts
    slow = replace(seen_of(profile()), step_s=1.2 * seen_of(profile()).step_s)
    found = calibrated(profile(), slow, PLAN, setting(profile()))
    assert predicted_step_s(setting(found), PLAN) == pytest.approx(slow.step_s, rel=1e-6)
    assert found.measured["calibrated"]["fit"] > 1.2  # for the network stays as it is
    # and a plan made with it says that there was a correction, and of how much
    told = [note for note in grounds(setting(found)) if "calibrated" in note]
    assert told == [
        "the profile was calibrated by run on aws-lambda; before, it had a step 16.7% too short"
    ]


def test_what_cannot_be_explained_is_not_fitted_beyond_reason() -> None:
    found = calibrated(profile(), seen(1e4), PLAN, setting(profile()))
    assert found.measured["calibrated"]["fit"] == 2.0
    assert found.layers[0].forward_s == ((0.2,),)
    found = calibrated(profile(), seen(1e-4), PLAN, setting(profile()))
    assert found.measured["calibrated"]["fit"] == 0.5


def test_what_the_profile_knew_nothing_of_is_given_to_all_layers_of_the_stage() -> None:
    # given a profile without optimiser times, of two rows of vCPUs
    bare = [
        layer(name, 0.1, 0.2).__dict__
        | {"forward_s": ((0.2,), (0.1,)), "backward_s": ((0.4,), (0.2,))}
        for name in "ab"
    ]
    model = profile(*(type(profile().layers[0])(**fields) for fields in bare), vcpus=(0.5, 1.0))
    plan = Plan(
        stages=(StagePlan(first_layer=0, stop_layer=2, memory_mb=1769),), micro_batch_size=4
    )
    place = setting(model)
    step_s = predicted_step_s(place, plan) + 0.06
    observed = seen(step_s, StageSeen(seconds={"F": 0.2, "B": 0.4, "STEP": 0.06}))
    found = calibrated(model, observed, plan, place)
    # then both layers have half of it, and half a vCPU takes twice as long
    assert found.measured["calibrated"]["fit"] == pytest.approx(1.0)
    for one in found.layers:
        assert one.step_s == pytest.approx((0.06, 0.03))
        assert one.forward_s[1] == pytest.approx((0.1,))


def test_a_stage_that_recomputes_has_its_forward_in_its_backward() -> None:
    stages = tuple(replace(stage, recompute=True) for stage in PLAN.stages)
    plan = replace(PLAN, stages=stages)
    truth = profile(
        layer("first", 0.2, 0.2, step_s=(0.02,)), layer("second", 0.3, 0.4, step_s=(0.01,))
    )
    found = calibrated(profile(), seen_of(truth, plan), plan, setting(profile()))
    factors = found.measured["calibrated"]["factors"][0]
    assert (factors["forward"], factors["backward"]) == pytest.approx((2.0, 1.0))


# -- transfers -------------------------------------------------------------------------------


def network_s(num_bytes: float) -> float:
    return 0.01 + num_bytes / setting(profile()).platform.up_bytes_per_s(1769)


def test_what_transfers_take_beyond_the_network_is_their_cpu_time() -> None:
    # given sends that took 30 and 50 ms longer than the network, and receives that took as long
    each = network_s(4 * MB)
    first = StageSeen(seconds={"SEND_F": each + 0.03, "RECV_B": each})
    second = StageSeen(seconds={"SEND_B": each + 0.05, "RECV_F": each})
    observed = seen(2.0, first, second, late_s=0.2)
    found = calibrated(profile(), observed, PLAN, setting(profile()))
    fit = found.measured["calibrated"]["fit"]
    assert found.put_cpu_s == pytest.approx(0.04 * fit)
    assert (found.get_cpu_s, found.put_byte_cpu_s) == (pytest.approx(0.0, abs=1e-12), 0.0)
    assert found.late_s == pytest.approx(0.2 * fit)
    # and where there were figures, they keep their proportions
    known = profile(put_cpu_s=0.01, put_byte_cpu_s=0.01 / (4 * MB))
    found = calibrated(known, observed, PLAN, setting(known))
    fit = found.measured["calibrated"]["fit"]
    assert found.put_cpu_s == pytest.approx(0.02 * fit)
    assert found.put_byte_cpu_s * 4 * MB == pytest.approx(0.02 * fit)


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [1 * MB, 50 * MB, 900 * MB])
def test_a_stage_is_then_planned_to_hold_what_it_held(more: int) -> None:
    # given a first stage that held more than planned, and a second one that held less
    planned = [
        one.memory.total - one.memory.base for one in evaluate(setting(profile()), PLAN).stages
    ]
    stages = (
        StageSeen(over_base_bytes=int(planned[0]) + more, base_bytes=310 * MB),
        StageSeen(over_base_bytes=int(planned[1]) // 2, base_bytes=290 * MB),
    )
    found = calibrated(profile(), seen(3.0, *stages), PLAN, setting(profile()))
    after = evaluate(setting(found), PLAN).stages
    assert after[0].memory.total - after[0].memory.base == pytest.approx(planned[0] + more)
    assert after[1].memory.total - after[1].memory.base == planned[1]
    assert {one.memory.base for one in after} == {310 * MB}
    assert found.measured["calibrated"]["memory_raised_bytes"] == pytest.approx(
        [more + 10 * MB, 10 * MB]
    )


def test_memory_is_right_where_the_optimiser_needs_the_most() -> None:
    one = layer("first", 0.1, 0.2, step_workspace_bytes=200 * MB)
    model = profile(one, layer("second", 0.1, 0.2))
    place = setting(model)
    before = evaluate(place, PLAN).stages[0].memory
    held = int(before.total - before.base) + 30 * MB
    observed = seen(3.0, StageSeen(over_base_bytes=held), StageSeen())
    after = evaluate(setting(calibrated(model, observed, PLAN, place)), PLAN).stages[0].memory
    assert after.total - after.base == pytest.approx(held)


def test_what_the_data_set_takes_is_told_apart_from_what_grows_with_samples() -> None:
    # given a first stage that held 50 MB more than planned, all of it for its data
    planned = evaluate(setting(profile()), PLAN).stages[0].memory
    held = int(planned.total - planned.base) + 50 * MB
    first = StageSeen(over_base_bytes=held, data_bytes=50 * MB)
    found = calibrated(profile(), seen(3.0, first, StageSeen()), PLAN, setting(profile()))
    # then no layer is thought to need more
    assert found.data_bytes == 50 * MB
    for mine, before in zip(found.layers, profile().layers, strict=True):
        assert mine.workspace_bytes == before.workspace_bytes
        assert mine.activation_bytes == before.activation_bytes
    after = evaluate(setting(found), PLAN).stages[0].memory
    assert after.total - after.base == pytest.approx(held)
