"""The planner's simulation does what workers do, span by span."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from funcpipe.partitioner.noise import Noise
from funcpipe.partitioner.simulate import Simulation, simulate, simulated_step_s
from funcpipe.schedule.action import Lane
from funcpipe.schedule.program import Shape
from tests.property.slow_simulation import SlowSimulation, Spans, seconds_of
from tests.property.stage_times import (
    Case,
    any_degrees,
    cases,
    equal_degrees,
    smaller,
)

EXACT = 1e-12

NOISES = st.one_of(
    st.none(),
    st.builds(
        Noise,
        seed=st.integers(0, 3),
        spread=st.sampled_from([0.0, 0.3]),
        slow_share=st.sampled_from([0.0, 0.3, 1.0]),
        slow_factor=st.sampled_from([1.0, 2.5]),
        slow_lanes=st.sampled_from([(Lane.UP,), (Lane.COMPUTE, Lane.DOWN), tuple(Lane)[:3]]),
    ),
)


def slowly(
    case: Case, *, num_steps: int, noise: Noise | None, share: float | None
) -> SlowSimulation:
    times = case.times
    shape = Shape(
        degrees=tuple(one.degree for one in times),
        trains=tuple(one.synchronises for one in times),
        schedule=case.schedule,
        in_flight=case.in_flight,
        sync=case.sync,
    )
    last = None if share is None else smaller(times, share)
    return SlowSimulation(
        shape,
        seconds_of(times, last, noise, case.num_micro_batches),
        num_micro_batches=case.num_micro_batches,
        num_steps=num_steps,
        hop_s=times[0].hop_s,
    )


def spans_of(simulation: Simulation) -> Spans:
    assert simulation.timeline is not None
    spans = {
        (one.step, (one.stage, one.replica), one.action): (one.start_s, one.end_s)
        for one in simulation.timeline
    }
    assert len(spans) == len(simulation.timeline), "a span occurs twice"
    return spans


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(cases(any_degrees()), cases(equal_degrees())),
    st.integers(1, 3),
    NOISES,
    st.sampled_from([None, 0.25]),
)
def test_every_span_is_that_of_the_workers_own_executors(
    case: Case, num_steps: int, noise: Noise | None, share: float | None
) -> None:
    slow = slowly(case, num_steps=num_steps, noise=noise, share=share)

    found = simulate(
        case.times,
        **case.options,
        num_steps=num_steps,
        last_times=None if share is None else smaller(case.times, share),
        noise=noise,
        timeline=True,
    )

    spans = spans_of(found)
    assert set(spans) == set(slow.spans)
    for place, span in slow.spans.items():
        assert spans[place] == pytest.approx(span, rel=EXACT, abs=0), place
    assert found.step_ends_s == pytest.approx(tuple(slow.step_ends_s), rel=EXACT, abs=0)


@settings(max_examples=100, deadline=None)
@given(cases(any_degrees()), st.integers(1, 2), NOISES)
def test_a_worker_is_busy_for_as_long_as_its_spans_last(
    case: Case, num_steps: int, noise: Noise | None
) -> None:
    found = simulate(case.times, **case.options, num_steps=num_steps, noise=noise, timeline=True)

    busy: dict[tuple[int, int, str], float] = defaultdict(float)
    done: dict[tuple[int, int], float] = defaultdict(float)
    assert found.timeline is not None
    for one in found.timeline:
        busy[one.stage, one.replica, one.lane] += one.end_s - one.start_s
        if one.action.endswith("STEP"):
            done[one.stage, one.replica] = max(done[one.stage, one.replica], one.end_s)
    for worker in found.workers:
        place = (worker.stage, worker.replica)
        told = {"down": worker.down_s, "compute": worker.compute_s, "up": worker.up_s}
        for lane, seconds in told.items():
            assert seconds == pytest.approx(busy[*place, lane], rel=1e-9, abs=1e-9)
        assert worker.done_s == done[place]
        idle = found.idle_s(worker)
        assert idle[Lane.UP] + worker.up_s == pytest.approx(found.step_ends_s[-1])
    assert max(done.values()) == found.step_ends_s[-1]


@settings(max_examples=300, deadline=None)
@given(st.one_of(cases(any_degrees(most=5)), cases(equal_degrees(most=5), most_micro_batches=12)))
def test_the_short_way_to_a_steps_time_leads_to_the_same(case: Case) -> None:
    long = simulate(case.times, **case.options).step_s

    assert simulated_step_s(case.times, **case.options) == pytest.approx(long, rel=EXACT, abs=0)


@settings(max_examples=50, deadline=None)
@given(cases(any_degrees()), NOISES)
def test_steps_do_not_depend_on_how_many_follow(case: Case, noise: Noise | None) -> None:
    few = simulate(case.times, **case.options, num_steps=2, noise=noise)
    many = simulate(case.times, **case.options, num_steps=4, noise=noise)

    assert many.step_ends_s[:2] == few.step_ends_s
