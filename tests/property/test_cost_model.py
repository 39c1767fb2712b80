"""The performance model's formulas agree with the simulation, or are never below it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from funcpipe.partitioner.collective import sync_s
from funcpipe.partitioner.collective_sim import Exchange, synchronise
from funcpipe.partitioner.cost import (
    EXACT,
    backward_ends_s,
    forward_s,
    gpipe_s,
    stage_sync_s,
    step_time,
    tail_s,
)
from funcpipe.partitioner.lanes import StageTimes
from funcpipe.partitioner.memory import held_micro_batches
from funcpipe.partitioner.noise import Floats
from funcpipe.partitioner.simulate import Simulation, simulate
from funcpipe.partitioner.waits import _knapsack, check_chain, counts_of, waits_s
from funcpipe.schedule.action import Kind, Lane
from funcpipe.schedule.order import compute_order
from tests.property.stage_times import (
    METHODS,
    SCHEDULES,
    SECONDS,
    Case,
    any_degrees,
    cases,
    equal_degrees,
    smaller,
)

CLOSE = 1e-9
GPIPE = st.just("gpipe")


def run(case: Case, share: float | None = None) -> Simulation:
    last = None if share is None else smaller(case.times, share)
    return simulate(case.times, **case.options, last_times=last, timeline=True)


def ends_of(simulation: Simulation, kind: Kind) -> dict[int, float]:
    """When the last action of a kind ended, by stage."""
    assert simulation.timeline is not None
    ends: dict[int, float] = {}
    for one in simulation.timeline:
        if one.action.startswith(f"{one.stage}{kind}"):
            ends[one.stage] = max(ends.get(one.stage, 0.0), one.end_s)
    return ends


STEPS = st.one_of(
    cases(any_degrees(5, 6), schedules=GPIPE, most_micro_batches=14),
    cases(equal_degrees(5, 6), schedules=GPIPE, most_micro_batches=14),
    cases(equal_degrees(5), schedules=GPIPE, divisible=True),
)
STEPS_WITHOUT_HOPS = st.one_of(
    cases(any_degrees(5, 6), schedules=GPIPE, most_micro_batches=14, hop_s=0.0),
    cases(equal_degrees(5), schedules=GPIPE, divisible=True, hop_s=0.0),
)


@settings(max_examples=600, deadline=None)
@given(STEPS)
def test_a_step_has_an_exact_formula_for_any_degrees(case: Case) -> None:
    exact = gpipe_s(case.times, case.num_micro_batches, case.sync)

    assert exact == pytest.approx(run(case).step_s, rel=CLOSE)


@settings(max_examples=600, deadline=None)
@given(STEPS)
def test_a_step_that_is_said_to_be_exact_is_and_others_are_bounds(case: Case) -> None:
    told = step_time(case.times, num_micro_batches=case.num_micro_batches, sync=case.sync)

    found = run(case).step_s
    if told.how == EXACT:
        assert told.total_s == pytest.approx(found, rel=CLOSE)
    else:
        assert told.total_s > found


@settings(max_examples=400, deadline=None)
@given(STEPS_WITHOUT_HOPS)
def test_without_hops_only_an_optimisers_step_longer_than_a_transfer_makes_a_bound(
    case: Case,
) -> None:
    # Given stages whose optimiser takes no longer than a gradient's way to the stage before.
    before: list[StageTimes] = []
    for one in case.times:
        most = (before[-1].compute_b if before else 5.0) + (one.up_b or 0.0)
        short = one if one.synchronises else replace(one, step_s=min(one.step_s, most))
        before.append(short)

    told = step_time(before, num_micro_batches=case.num_micro_batches, sync=case.sync)

    assert told.how == EXACT


@settings(max_examples=300, deadline=None)
@given(STEPS_WITHOUT_HOPS, st.floats(0.0, 5.0))
def test_the_parts_of_a_step_are_exact_stage_by_stage(case: Case, hop_s: float) -> None:
    # Given hops that are too short for a window of messages to hold anything up.
    slack = [
        abs((down or 0.0) - compute)
        for one in case.times
        for down, compute in ((one.down_f, one.compute_f), (one.down_b, one.compute_b))
        if down is not None
    ]
    times = [replace(one, hop_s=min([hop_s, *slack])) for one in case.times]
    num, last = case.num_micro_batches, len(times) - 1

    found = run(replace(case, times=times))

    forward = forward_s(times, num)
    assert ends_of(found, Kind.F)[last] == pytest.approx(forward, rel=CLOSE)
    sent = ends_of(found, Kind.SEND_B)
    steps = ends_of(found, Kind.STEP)
    computed = ends_of(found, Kind.B)
    for s, end in enumerate(backward_ends_s(times, num)):
        hop = times[s].hop_s if s else 0.0
        arrived = sent[s] + hop if s else computed[s]
        assert arrived == pytest.approx(forward + end, rel=CLOSE)
        done = forward + end + tail_s(times[s], case.sync)
        no_backlog = s == 0 or sent[s] - computed[s] == pytest.approx(times[s].up_b, abs=CLOSE)
        if times[s].synchronises or no_backlog:
            assert done == pytest.approx(steps[s], rel=CLOSE, abs=CLOSE)
        else:
            assert done > steps[s]


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(STEPS, cases(any_degrees(), schedules=SCHEDULES)),
    st.sampled_from([0.0, 0.5]),
)
def test_a_smaller_last_micro_batch_never_takes_longer(case: Case, share: float) -> None:
    told = step_time(
        case.times,
        num_micro_batches=case.num_micro_batches,
        schedule=case.schedule,
        in_flight=case.in_flight,
        sync=case.sync,
        whole=False,
    )

    assert told.how != EXACT
    assert told.total_s >= run(case, share).step_s * (1 - CLOSE)


@pytest.mark.parametrize("n", range(2, 10))
@settings(max_examples=25, deadline=None)
@given(METHODS, SECONDS, SECONDS, SECONDS)
def test_a_synchronisation_takes_what_its_closed_form_says(
    n: int, method: str, up_s: float, down_s: float, hop_s: float
) -> None:
    alone = StageTimes(
        degree=n, down_f=None, compute_f=0.0, up_f=None, down_b=None, compute_b=0.0, up_b=None,
        hop_s=hop_s, synchronises=True, part_up_s=up_s, part_down_s=down_s,
    )  # fmt: skip

    found = simulate([alone], num_micro_batches=n, sync=method).step_s

    told = sync_s(method, degree=n, up_s=up_s, down_s=down_s, hop_s=hop_s)
    assert told == pytest.approx(found, rel=1e-12)
    assert stage_sync_s(alone, method) == told


@settings(max_examples=300, deadline=None)
@given(METHODS, st.lists(st.tuples(SECONDS, SECONDS), min_size=2, max_size=9), SECONDS, SECONDS,
       SECONDS)  # fmt: skip
def test_replicas_that_begin_earlier_do_not_shorten_a_synchronisation(
    method: str, begins: list[tuple[float, float]], up_s: float, down_s: float, hop_s: float
) -> None:
    # Given replicas whose gradients are final, and uplinks free, at any times.
    final, free = (np.array(column) for column in zip(*begins, strict=True))
    n = len(begins)

    def seconds(kind: Kind, turn: int) -> Floats:
        del turn
        return np.full(n, up_s if kind.lane is Lane.UP else down_s)

    exchange = Exchange(ready=final, down=final, up=free, hop_s=hop_s, seconds=seconds)
    done = synchronise(method, exchange)

    told = sync_s(method, degree=n, up_s=up_s, down_s=down_s, hop_s=hop_s)
    assert done.max() == pytest.approx(np.maximum(final, free).max() + told, rel=1e-12)


lanes = st.lists(st.tuples(SECONDS, st.integers(1, 6)), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(lanes, st.integers(0, 12))
def test_the_longest_chain_of_waits_is_found(stages: list[tuple[float, int]], budget: int) -> None:
    choices = itertools.product(*(range(budget // degree + 1) for _, degree in stages))
    best = max(
        sum(n * lane for n, (lane, _) in zip(steps, stages, strict=True))
        for steps in choices
        if sum(n * degree for n, (_, degree) in zip(steps, stages, strict=True)) <= budget
    )

    assert waits_s([v for v, _ in stages], [d for _, d in stages], budget) == pytest.approx(
        best, rel=1e-12
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(2, 4), max_size=3), st.data(), st.integers(1, 3), st.integers(0, 60))
def test_chains_of_divisors_have_a_closed_form(
    ratios: list[int], data: st.DataObject, first: int, budget: int
) -> None:
    degrees = list(itertools.accumulate([first, *ratios], lambda a, b: a * b))
    seconds = [data.draw(SECONDS) for _ in degrees]
    assert check_chain(degrees) == tuple(degrees)

    blocks: list[float] = []
    for i, lane in enumerate(seconds):
        blocks.append(max(lane, blocks[-1] * (degrees[i] // degrees[i - 1])) if i else lane)
    closed = sum(c * v for c, v in zip(counts_of(degrees, budget), blocks, strict=True))

    plain = _knapsack(dict(zip(degrees, seconds, strict=True)), budget)
    assert closed == pytest.approx(plain, rel=1e-12)
    assert waits_s(seconds, degrees, budget) == pytest.approx(plain, rel=1e-12)


@settings(max_examples=300, deadline=None)
@given(
    SCHEDULES,
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_the_micro_batches_held_are_those_between_forward_and_backward(
    schedule: str, num_stages: int, degree: int, num: int, in_flight: int | None
) -> None:
    assume(degree <= num)
    for stage in range(num_stages):
        peaks = []
        for replica in range(degree):
            order = compute_order(
                schedule, stage=stage, num_stages=num_stages, num_micro_batches=num,
                replica=replica, degree=degree, in_flight=in_flight,
            )  # fmt: skip
            held = itertools.accumulate(1 if one.kind is Kind.F else -1 for one in order)
            peaks.append(max(held))

        told = held_micro_batches(
            schedule=schedule, stage=stage, num_stages=num_stages, degree=degree,
            num_micro_batches=num, in_flight=in_flight,
        )  # fmt: skip

        assert told == max(peaks)
