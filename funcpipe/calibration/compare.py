"""What the performance model says of a plan beside what its run was seen to take."""

from __future__ import annotations

from dataclasses import replace

from funcpipe.calibration.observed import Observed
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.lanes import tier_of
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.simulate import dollars_of_step, simulate_plan
from funcpipe.report.beside import BYTES, DOLLARS, NUMBER, SECONDS, Beside
from funcpipe.schedule.action import Kind

__all__ = ["compare", "computation", "predicted_step_s"]

STEPS = 8
"""That are simulated: a step among others is a little shorter than one alone."""


def predicted_step_s(setting: Setting, plan: Plan) -> float:
    """Seconds of a step among others."""
    return simulate_plan(setting, plan, num_steps=STEPS).step_s


def compare(observed: Observed, setting: Setting, plan: Plan) -> list[Beside]:
    """What the model says of the plan now beside what was seen: of a step, then of each stage.

    Computation is the layers' alone; transfers take what the network does. `PlanError` for a plan
    of other layers than the profile's.
    """
    estimate = evaluate(setting, plan)
    step_s = predicted_step_s(setting, plan)
    fees = [replace(stage.fees, starts=0.0) for stage in estimate.stages]
    moved = sum(one.transfer for one in fees)  # the network's fee, which follows from the shapes
    rows = [
        Beside(name="step", unit=SECONDS, predicted=step_s, measured=observed.step_s),
        Beside(
            name="cost of a step",
            unit=DOLLARS,
            predicted=dollars_of_step(step_s, fees),
            measured=None if observed.dollars is None else observed.dollars + moved,
        ),
        Beside(
            name="a message is noticed late by",
            unit=SECONDS,
            predicted=setting.profile.late_s,
            measured=observed.late_s,
        ),
        Beside(
            name="missed GETs for each GET",
            unit=NUMBER,
            predicted=setting.missed_per_get,
            measured=observed.missed_per_get if "GET" in observed.requests else None,
        ),
    ]
    for number, (told, seen) in enumerate(zip(estimate.stages, observed.stages, strict=True)):
        expected = computation(setting, plan, number)
        for name, kind in (("forward", Kind.F), ("backward", Kind.B), ("optimiser", Kind.STEP)):
            rows.append(
                Beside(
                    name=f"stage {number}: {name}",
                    unit=SECONDS,
                    predicted=expected[kind],
                    measured=seen.seconds.get(kind.value),
                )
            )
        rows.append(
            Beside(
                name=f"stage {number}: memory over base",
                unit=BYTES,
                predicted=told.memory.total - (seen.base_bytes or told.memory.base),
                measured=seen.over_base_bytes or None,
            )
        )
        rows.append(
            Beside(
                name=f"stage {number}: base memory",
                unit=BYTES,
                predicted=told.memory.base,
                measured=seen.base_bytes or None,
            )
        )
    return rows


def computation(setting: Setting, plan: Plan, number: int) -> dict[Kind, float]:
    """Seconds of one micro-batch's forward and backward, and of the optimiser, by the layers."""
    profile, stage = setting.profile, plan.stages[number]
    size = min(plan.micro_batch_size, setting.batch_size)
    vcpu = setting.platform.vcpu(tier_of(setting, stage))
    layers = range(stage.first_layer, stage.stop_layer)
    forward = sum(profile.forward_s(i, vcpu=vcpu, micro_batch_size=size) for i in layers)
    backward = sum(profile.backward_s(i, vcpu=vcpu, micro_batch_size=size) for i in layers)
    return {
        Kind.F: forward,
        Kind.B: backward + (forward if stage.recompute else 0.0),
        Kind.STEP: sum(profile.step_s(i, vcpu=vcpu) for i in layers),
    }
