"""What is read out of a timeline: which steps count, and what they took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from funcpipe.calibration.observed import Held, Observed, observe
from funcpipe.partitioner.pricing import dollars_per_s

from .made_up import PLAN, platform, row, timeline, worker


def ending(*ends: tuple[int, float], stage: int = 0) -> list[list[Any]]:
    """An optimiser's step of each pass, which ends then."""
    return [row(index, f"{stage}STEP", end - 0.5, end) for index, end in ends]


def seen(
    first: list[list[Any]],
    second: list[list[Any]],
    *,
    began: tuple[float, float] = (0.0, 0.0),
    held: Iterable[Held] = (),
    **run: int,
) -> Observed | None:
    content = timeline(worker(0, 0, began[0], first), worker(1, 0, began[1], second), **run)
    return observe(content, held, PLAN, platform())


def known(found: Observed | None) -> Observed:
    assert found is not None
    return found


# -- steps -----------------------------------------------------------------------------------


def test_a_step_lasts_from_the_last_optimiser_to_the_last_optimiser() -> None:
    # given two workers, the second of which began 100 s later, on a time that both share
    first = ending((0, 101.0), (1, 103.0), (2, 109.0))
    second = ending((0, 2.0), (1, 4.0), (2, 5.0), stage=1)
    # when neither ends all steps: they end at 102, 104 and 109
    found = known(seen(first, second, began=(0.0, 100.0), num_steps=3))
    assert (found.step_s, found.num_steps) == (3.5, 2)  # the median of 2 and 5
    assert found.spread == pytest.approx(1.5 / 3.5)


def test_the_first_two_of_five_steps_are_not_steady() -> None:
    ends = [(0, 1.0), (1, 11.0), (2, 12.0), (3, 13.0), (4, 14.0)]
    # given five: the step of ten seconds is left out
    found = known(seen(ending(*ends), ending(*ends, stage=1), num_steps=5))
    assert (found.step_s, found.num_steps, found.spread) == (1.0, 3, 0.0)
    # and given four, it counts
    found = known(seen(ending(*ends[:4]), ending(*ends[:4], stage=1), num_steps=4))
    assert (found.num_steps, found.spread) == (3, 4.5)


def test_a_step_after_an_evaluation_is_none() -> None:
    # given an evaluation as pass 3, which took ten seconds
    ends = [(0, 1.0), (1, 2.0), (2, 3.0), (4, 14.0), (5, 16.0), (6, 18.0)]
    rows = [*ending(*ends), row(3, "0E0", 3.0, 4.0)]
    found = known(seen(rows, ending(*ends, stage=1)))
    # then the four steady steps are three
    assert (found.step_s, found.num_steps) == (2.0, 3)


def test_a_smaller_last_batch_and_the_step_before_its_successor_do_not_count() -> None:
    # given 20 samples in batches of 8: every third step has 4 samples, and is faster
    ends = [(0, 1.0), (1, 2.0), (2, 2.5), (3, 3.5), (4, 4.5), (5, 5.0)]
    found = known(seen(ending(*ends), ending(*ends, stage=1), num_train=20))
    # then of 2 to 5 only step 4 follows a whole one and is one
    assert (found.step_s, found.num_steps) == (1.0, 1)
    # and where the whole data set is smaller than a batch, all steps are alike
    found = known(seen(ending(*ends), ending(*ends, stage=1), num_train=7))
    assert found.num_steps == 4


def test_what_a_long_timeline_has_lost_does_not_count() -> None:
    # given a run of 100 steps, of which one worker still knows 4, the other 3
    ends = [(96, 1.0), (97, 2.0), (98, 3.0), (99, 4.0)]
    found = known(seen(ending(*ends), ending(*ends[1:], stage=1), num_steps=100))
    assert (found.step_s, found.num_steps) == (1.0, 2)


def test_a_run_without_a_step_after_another_shows_nothing() -> None:
    assert seen(ending((0, 1.0)), ending((0, 1.0), stage=1), num_steps=1) is None
    assert seen([], []) is None


# -- of a step -------------------------------------------------------------------------------


def two_steps(extra: dict[int, list[list[Any]]]) -> Observed:
    """Steps 0 and 1, which end at 10 and 20; extra: rows of each stage."""
    ends = [(0, 10.0), (1, 20.0)]
    first = [*ending(*ends), *extra.get(0, [])]
    second = [*ending(*ends, stage=1), *extra.get(1, [])]
    return known(seen(first, second, num_steps=2))


def test_seconds_are_the_mean_of_a_step_without_waiting() -> None:
    # given two forwards, a receive that waited 2 of its 3 seconds, and what the first step took
    rows = [
        row(0, "0F0", 0.0, 9.0),
        row(1, "0F0", 10.0, 11.0),
        row(1, "0F1", 11.0, 14.0),
        row(1, "0RECV_B0", 12.0, 15.0, wait=2.0),
    ]
    found = two_steps({0: rows})
    assert found.stages[0].seconds == {"F": 2.0, "RECV_B": 1.0, "STEP": 0.5}
    assert found.stages[1].seconds == {"STEP": 0.5}


def test_a_smaller_last_micro_batch_is_left_out() -> None:
    # given batches of 6: micro-batch 1 has 2 samples of 4
    ends = [(0, 10.0), (1, 20.0)]
    rows = [*ending(*ends), row(1, "0F0", 10.0, 14.0), row(1, "0F1", 14.0, 15.0)]
    found = known(seen(rows, ending(*ends, stage=1), num_steps=2, batch_size=6, num_train=60))
    assert found.stages[0].seconds["F"] == 4.0


def test_lateness_is_that_of_receives_that_waited() -> None:
    # given an activation that was there at 11 and found at 11.5, and one that nobody waited for
    sends = [row(1, "0SEND_F0", 10.5, 11.0), row(1, "0SEND_F1", 11.0, 12.0)]
    receives = [
        row(1, "1RECV_F0", 10.0, 11.75, wait=1.5, misses=3),
        row(1, "1RECV_F1", 13.0, 13.25),
    ]
    found = two_steps({0: sends, 1: receives})
    assert found.late_s == pytest.approx(0.5)
    assert found.missed_per_get == 1.5
    # and without any that waited, nothing is known
    assert two_steps({0: sends, 1: receives[1:]}).late_s is None


def test_requests_and_dollars_are_those_of_the_steady_steps() -> None:
    # given one of each in the second step, and others in the first
    first = [row(1, "0SEND_F0", 10.0, 11.0), row(0, "0SEND_F0", 0.0, 1.0), row(1, "0DEL", 19, 20)]
    second = [row(1, "1RECV_F0", 10.0, 11.0, wait=0.5, misses=4), row(1, "1REPORT", 19, 20)]
    found = two_steps({0: first, 1: second})
    assert found.requests == {"PUT": 2.0, "GET": 1.0, "GET_MISSED": 4.0, "DELETE": 1.0}
    # then a step costs ten seconds of two functions, and these
    place = platform()
    price = place.price
    requests = 2 * price.put + price.get + 4 * price.missed_get + price.delete
    expected = 10 * 2 * dollars_per_s(place, 1769) + requests * price.dollars
    assert found.dollars == pytest.approx(expected, rel=1e-12)


def test_without_a_platform_nothing_costs_anything() -> None:
    from funcpipe.partitioner.platform import load_platform

    ends = [(0, 10.0), (1, 20.0)]
    content = timeline(
        worker(0, 0, 0.0, ending(*ends)), worker(1, 0, 0.0, ending(*ends, stage=1)), num_steps=2
    )
    assert known(observe(content, [], PLAN, load_platform("none"))).dollars is None


def test_memory_is_that_of_the_fullest_replica() -> None:
    ends = [(0, 10.0), (1, 20.0)]
    plan = replace(PLAN, stages=(replace(PLAN.stages[0], replicas=2), PLAN.stages[1]))
    content = timeline(
        worker(0, 0, 0.0, ending(*ends)),
        worker(0, 1, 0.0, ending(*ends)),
        worker(1, 0, 0.0, ending(*ends, stage=1)),
        num_steps=2,
    )
    held = [
        Held(stage=0, peak_bytes=150, base_bytes=100),
        Held(stage=0, peak_bytes=170, base_bytes=110, data_bytes=30),
        Held(stage=1, peak_bytes=90, base_bytes=100),
    ]
    found = known(observe(content, held, plan, platform()))
    first, second = found.stages
    assert (first.over_base_bytes, first.base_bytes, first.data_bytes) == (60, 110, 30)
    assert (second.over_base_bytes, second.base_bytes, second.data_bytes) == (0, 100, 0)
