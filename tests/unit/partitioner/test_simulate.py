"""Simulation: steps worked out by hand, noise, many workers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from funcpipe.errors import PlanError
from funcpipe.partitioner.fees import StageFees
from funcpipe.partitioner.lanes import StageTimes, plan_times
from funcpipe.partitioner.noise import Noise
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.simulate import (
    Simulation,
    dollars_of_step,
    simulate,
    simulate_plan,
    simulated_step_s,
)
from funcpipe.schedule.action import Kind, Lane
from tests.unit.partitioner.random_profiles import random_plan, random_profile


def stage(
    *, degree: int = 1, first: bool = True, last: bool = True, **seconds: float
) -> StageTimes:
    """Computations of 2 s and 4 s, transfers of 1 s, parts of 1 s, an optimiser of 0.5 s."""
    usual = StageTimes(
        degree=degree,
        down_f=None if first else 1.0,
        compute_f=2.0,
        up_f=None if last else 1.0,
        down_b=None if last else 1.0,
        compute_b=4.0,
        up_b=None if first else 1.0,
        synchronises=degree > 1,
        part_up_s=1.0 if degree > 1 else 0.0,
        part_down_s=1.0 if degree > 1 else 0.0,
        step_s=0.5,
    )
    return replace(usual, **seconds)


def pipeline(num_stages: int, degree: int = 1, **seconds: float) -> list[StageTimes]:
    return [
        stage(degree=degree, first=s == 0, last=s == num_stages - 1, **seconds)
        for s in range(num_stages)
    ]


def text(simulation: Simulation) -> dict[str, str]:
    """``{"0.0 up": "0SEND_F0 2-3, ..."}`` by worker and lane."""
    assert simulation.timeline is not None
    rows: dict[str, list[str]] = {}
    for one in simulation.timeline:
        span = f"{one.action} {one.start_s:g}-{one.end_s:g}"
        rows.setdefault(f"{one.stage}.{one.replica} {one.lane}", []).append(span)
    return {name: ", ".join(spans) for name, spans in rows.items()}


# -- by hand -------------------------------------------------------------------------------------


def test_a_pipeline_of_two_stages() -> None:
    found = simulate(pipeline(2), num_micro_batches=2, timeline=True)

    assert text(found) == {
        "0.0 compute": "0F0 0-2, 0F1 2-4, 0B1 14-18, 0B0 18-22, 0STEP 22-22.5",
        "0.0 up": "0SEND_F0 2-3, 0SEND_F1 4-5",
        "0.0 down": "0RECV_B1 13-14, 0RECV_B0 17-18",
        "1.0 compute": "1F0 4-6, 1F1 6-8, 1B1 8-12, 1B0 12-16, 1STEP 16-16.5",
        "1.0 down": "1RECV_F0 3-4, 1RECV_F1 5-6",
        "1.0 up": "1SEND_B1 12-13, 1SEND_B0 16-17",
    }
    assert found.step_s == found.total_s == 22.5


def test_one_forward_one_backward_overlaps_both_directions() -> None:
    found = simulate(pipeline(2), num_micro_batches=3, schedule="1f1b", timeline=True)

    rows = text(found)
    assert rows["0.0 compute"].startswith("0F0 0-2, 0F1 2-4, 0B0 12-16, 0F2 16-18")
    assert rows["1.0 compute"].startswith("1F0 4-6, 1B0 6-10, 1F1 10-12")


def test_a_hop_delays_what_is_sent_and_leaves_the_lane_free() -> None:
    found = simulate(pipeline(2, hop_s=10.0), num_micro_batches=2, timeline=True)

    rows = text(found)
    assert rows["0.0 up"] == "0SEND_F0 2-3, 0SEND_F1 4-5"
    assert rows["1.0 down"] == "1RECV_F0 13-14, 1RECV_F1 15-16"
    assert rows["1.0 compute"].startswith("1F0 24-26, 1F1 26-28")


def test_no_more_than_two_messages_wait_for_the_compute_lane() -> None:
    fast, slow = pipeline(2)
    found = simulate(
        [replace(fast, compute_f=0.0), replace(slow, compute_f=10.0)],
        num_micro_batches=4,
        timeline=True,
    )

    rows = text(found)
    assert rows["1.0 compute"].startswith("1F0 2-12, 1F1 12-22")
    assert rows["1.0 down"] == "1RECV_F0 1-2, 1RECV_F1 2-3, 1RECV_F2 12-13, 1RECV_F3 22-23"


def test_a_pipelined_scatter_reduce_of_three() -> None:
    found = simulate([stage(degree=3)], num_micro_batches=3, timeline=True)

    rows = text(found)
    assert rows["0.0 up"] == "0SEND_P1.0 6-7, 0SEND_P2.0 7-8, 0SEND_S0.0 9-10"
    assert rows["0.0 down"] == "0RECV_P2.0 7-8, 0RECV_P1.0 8-9, 0RECV_S1.0 10-11, 0RECV_S2.0 11-12"
    assert rows["0.0 compute"] == ("0F0 0-2, 0B0 2-6, 0STEP 12-12.5, 0ADD2.0 8-8, 0ADD1.0 9-9")


def test_a_replica_that_is_late_keeps_the_others_waiting() -> None:
    found = simulate([stage(degree=2)], num_micro_batches=3, timeline=True)

    rows = text(found)
    assert rows["0.1 up"] == "0SEND_P0.0 6-7, 0SEND_S1.0 14-15"
    assert rows["0.0 up"] == "0SEND_P1.0 12-13, 0SEND_S0.0 13-14"
    assert found.step_s == 16.5


def test_a_stage_without_parameters_synchronises_nothing() -> None:
    found = simulate([stage(degree=2, synchronises=False)], num_micro_batches=2, timeline=True)

    assert set(text(found)) == {"0.0 compute", "0.1 compute"}
    assert found.step_s == 6.5


def test_a_worker_begins_its_next_step_when_its_own_is_done() -> None:
    found = simulate(pipeline(2), num_micro_batches=2, num_steps=3, timeline=True)

    # The second stage is done early, but gets nothing to do before the first one is.
    assert found.step_ends_s == (22.5, 45.0, 67.5)
    assert found.step_s == 22.5
    assert found.total_s == 67.5
    assert len(found.timeline or ()) == 3 * 2 * 9
    by_stage = {worker.stage: worker for worker in found.workers}
    assert by_stage[0].done_s == 67.5
    assert by_stage[1].compute_s == 3 * 12.5
    assert found.idle_s(by_stage[1])[Lane.UP] == 67.5 - 3 * 2


def test_the_last_micro_batch_may_be_smaller() -> None:
    small = [replace(one, compute_f=1.0, compute_b=1.0) for one in pipeline(1)]

    found = simulate(pipeline(1), num_micro_batches=3, last_times=small)

    assert found.step_s == 2 * 6 + 2 + 0.5


def test_a_plan_is_simulated_with_the_samples_that_there_are() -> None:
    profile = random_profile(2)
    setting = Setting(profile=profile, platform=load_platform("aws-lambda"), batch_size=10)
    plan = random_plan(2, profile, degrees=(1, 2), tiers_mb=(1024, 2048), micro_batch_size=4)
    last = plan_times(setting, plan, num_samples=2)

    found = simulate_plan(setting, plan)

    expected = simulate(plan_times(setting, plan), num_micro_batches=3, last_times=last)
    assert found.step_ends_s == expected.step_ends_s
    assert found.step_s < simulate(plan_times(setting, plan), num_micro_batches=3).step_s


def test_dollars_are_for_seconds_and_for_steps() -> None:
    fees = [
        StageFees(per_s=0.5, requests=0.25, transfer=0.125, starts=0.0),
        StageFees(per_s=1.5, requests=0.0, transfer=0.0, starts=0.5),
    ]

    assert dollars_of_step(3.0, fees) == 3.0 * 2.0 + 0.25 + 0.125 + 0.5


# -- noise ---------------------------------------------------------------------------------------

NOISE = Noise(seed=4, spread=0.2, slow_share=0.25, slow_factor=3.0)


def test_a_seed_gives_the_same_whatever_else_is_asked_for() -> None:
    times, options = pipeline(2, degree=4), {"num_micro_batches": 8}

    once = simulate(times, **options, noise=NOISE)
    again = simulate(times, **options, noise=NOISE, timeline=True, num_steps=2)
    other = simulate(times, **options, noise=replace(NOISE, seed=5))

    assert again.step_ends_s[:1] == once.step_ends_s
    assert again.step_ends_s[1] != 2 * once.step_ends_s[0]
    assert other.step_ends_s != once.step_ends_s


def test_factors_are_one_on_average_and_spread_as_told() -> None:
    factors = np.log(NOISE.factors(0, 0, Kind.F, 100_000))

    assert np.exp(factors).mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.2, abs=0.01)


def test_every_action_has_a_factor_of_its_own() -> None:
    streams = [
        NOISE.factors(step, stage_number, kind, 3, turn=turn)
        for step in (0, 1)
        for stage_number in (0, 1)
        for kind in Kind
        for turn in (0, 1)
    ]

    assert len({float(one) for stream in streams for one in np.asarray(stream)}) == 3 * len(streams)


def test_a_share_of_the_workers_is_slow_on_the_lanes_that_are_told() -> None:
    noise = Noise(slow_share=0.25, slow_factor=3.0, slow_lanes=(Lane.UP,))

    found = simulate(pipeline(2, degree=4), num_micro_batches=8, noise=noise)

    slow = [worker for worker in found.workers if worker.slow]
    assert len(slow) == 2
    for worker in found.workers:
        assert worker.compute_s == 12.5
        assert worker.up_s == (2 + 4) * (3 if worker.slow else 1)


def test_slow_workers_cost_time() -> None:
    quick = simulate(pipeline(2, degree=4), num_micro_batches=8)

    slow = simulate(pipeline(2, degree=4), num_micro_batches=8, noise=Noise(slow_share=0.1))

    assert slow.step_s > quick.step_s


def test_no_noise_is_noise_of_nothing() -> None:
    times, options = pipeline(3, degree=2), {"num_micro_batches": 5, "schedule": "1f1b"}

    assert simulate(times, **options) == simulate(times, **options, noise=Noise(seed=9))


# -- many workers --------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_stages", "degree"), [(16, 64), (1, 1024)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_thousand_functions(num_stages: int, degree: int, schedule: str) -> None:
    times = pipeline(num_stages, degree, part_up_s=0.01, part_down_s=0.01)
    options = {"num_micro_batches": 4 * degree, "schedule": schedule, "in_flight": 2 * degree}

    found = simulate(times, **options)

    assert len(found.workers) == 1024
    # One replica stands for all: nothing is late, and its time is that of a chain.
    assert found.step_s == pytest.approx(simulated_step_s(times, **options), rel=1e-9)
    assert len({worker.compute_s for worker in found.workers}) == 1


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: simulate([], num_micro_batches=1), "at least one stage"),
        (lambda: simulate([stage()], num_micro_batches=0), "0 micro-batches"),
        (lambda: simulate([stage()], num_micro_batches=1, num_steps=0), "0 steps"),
        (lambda: simulate([stage()], num_micro_batches=1, schedule="magic"), "'magic'.*gpipe"),
        (lambda: simulate([stage()], num_micro_batches=1, sync="ring"), "'ring'.*three-phase"),
        (lambda: simulate([stage()], num_micro_batches=1, in_flight=0), "in_flight is 0"),
        (
            lambda: simulate([stage()], num_micro_batches=1, last_times=[stage(degree=2)]),
            "other stages",
        ),
        (
            lambda: simulate(
                [stage(last=False), stage(first=False, hop_s=1.0)], num_micro_batches=1
            ),
            "different latencies",
        ),
        (
            lambda: simulated_step_s([], num_micro_batches=1, schedule="gpipe"),
            "at least one stage",
        ),
        (lambda: Noise(seed=-1), "seed is -1"),
        (lambda: Noise(seed=True), "seed is True"),
        (lambda: Noise(spread=float("nan")), "spread is nan"),
        (lambda: Noise(slow_share=1.5), "slow_share is 1.5; expected a number from 0 to 1"),
        (lambda: Noise(slow_factor=0.5), "slow_factor is 0.5"),
        (lambda: Noise(slow_lanes=(Lane.SERVICE,)), "slow_lanes"),
    ],
)
def test_what_cannot_be_simulated_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        wrong()
