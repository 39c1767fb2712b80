"""The table of all stages says of each what `cost.evaluate` says of a plan made of them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from funcpipe.partitioner.cost import MB, Estimate, evaluate, tail_s
from funcpipe.partitioner.memory import held_micro_batches, memory_use
from funcpipe.partitioner.plan import StagePlan
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Combination
from funcpipe.partitioner.table import Table, make_table
from funcpipe.partitioner.waits import waits_s
from tests.unit.partitioner.random_profiles import random_profile

PLATFORMS = ["aws-lambda", "aws-lambda-s3express", "aliyun-fc"]
COMBINATIONS = [
    Combination(micro_batch_size=4, degrees=(1, 2, 4)),
    Combination(micro_batch_size=3, degrees=(2,), sync="three-phase"),
    Combination(micro_batch_size=2, degrees=(1, 3), schedule="1f1b", depth=1),
    Combination(micro_batch_size=2, degrees=(1, 2), schedule="1f1b", depth=2),
]


def setting_of(
    platform: str = "aws-lambda",
    *,
    seed: int = 0,
    num_layers: int = 8,
    latency_on_lane: bool = True,
    num_steps: int | None = None,
    largest_mib: int = 40,
) -> Setting:
    return Setting(
        profile=random_profile(seed, num_layers, largest_mib=largest_mib),
        platform=load_platform(platform),
        batch_size=32,
        num_steps=num_steps,
        latency_on_lane=latency_on_lane,
    )


def random_path(table: Table, chance: random.Random) -> list[int]:
    """Rows that make a plan; each of them fits in some place of some plan."""
    rows: list[int] = []
    at = 0
    while at < table.num_layers:
        rows.append(int(chance.choice(list(np.flatnonzero(table.start == at)))))
        at = int(table.stop[rows[-1]])
    return rows


def assert_rows_are_stages(table: Table, rows: list[int], told: Estimate) -> None:
    for place, (row, stage) in enumerate(zip(rows, told.stages, strict=True)):
        times = stage.times
        columns = {
            "fill_f": times.fill_f, "fill_b": times.fill_b,
            "lane_f": times.lane_f, "lane_b": times.lane_b,
            "lane_both": max(
                times.compute_f + times.compute_b,
                (times.down_f or 0) + (times.down_b or 0),
                (times.up_f or 0) + (times.up_b or 0),
            ),
            "compute": times.compute_f + times.compute_b,
            "entry": sum(
                lane + times.hop_s for lane in (times.down_f, times.up_b) if lane is not None
            ),
            "tail": tail_s(times, table.combination.sync), "synchronises": times.synchronises,
            "per_s": stage.fees.per_s, "per_step": stage.fees.per_step,
            "memory_mb": stage.memory_mb, "degree": stage.degree,
        }  # fmt: skip
        for name, value in columns.items():
            assert getattr(table, name)[row] == pytest.approx(value, rel=1e-9, abs=1e-12), name
        from_end = len(rows) - place
        held = held_micro_batches(
            schedule=table.combination.schedule, stage=place, num_stages=len(rows),
            degree=stage.degree, num_micro_batches=told.num_micro_batches,
            in_flight=table.combination.depth * len(rows),
        )  # fmt: skip
        assert table.need(np.array(held))[row] == pytest.approx(stage.memory.total, rel=1e-9)
        assert table.fits(from_end)[row] == stage.fits


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: f"{c.schedule}-{c.degrees}")
@pytest.mark.parametrize("latency_on_lane", [True, False])
def test_rows_are_what_evaluating_a_plan_of_them_says(
    platform: str, combination: Combination, latency_on_lane: bool
) -> None:
    chance = random.Random(3)
    for seed, num_steps in itertools.product((0, 1), (None, 10)):
        setting = setting_of(
            platform, seed=seed, latency_on_lane=latency_on_lane, num_steps=num_steps
        )
        table = make_table(setting, combination, tiers_mb=setting.tiers_mb[::2], recompute="choose")
        for _ in range(20):
            rows = random_path(table, chance)

            assert_rows_are_stages(table, rows, evaluate(setting, table.plan(rows)))


@pytest.mark.parametrize("latency_on_lane", [True, False])
def test_the_sum_that_solvers_minimise_is_the_time_of_a_step(latency_on_lane: bool) -> None:
    setting = setting_of(latency_on_lane=latency_on_lane)
    table = make_table(setting, COMBINATIONS[0], tiers_mb=setting.tiers_mb)
    chance = random.Random(5)
    for _ in range(100):
        rows = random_path(table, chance)
        degrees, budget = list(table.degree[rows]), table.num_micro_batches - 1
        ends = [
            table.fill_b[rows[s:]].sum()
            + waits_s(table.lane_b[rows[s:]], degrees[s:], budget)
            + table.tail[rows[s]]
            for s in range(len(rows))
        ]
        forward = table.fill_f[rows].sum() + waits_s(table.lane_f[rows], degrees, budget)

        told = evaluate(setting, table.plan(rows))

        assert forward + max(ends) == pytest.approx(told.step_s, rel=1e-9)
        dollars = told.step_s * table.per_s[rows].sum() + table.per_step[rows].sum()
        assert dollars == pytest.approx(told.dollars, rel=1e-9)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda c: f"{c.schedule}-{c.degrees}")
def test_no_stage_that_may_fit_is_left_out_and_no_other_is_there(combination: Combination) -> None:
    # Given layers so large that many stages do not fit.
    setting = setting_of(num_layers=5, largest_mib=400)
    tiers = setting.tiers_mb[:6]
    num = setting.num_micro_batches(combination.micro_batch_size)
    expected, num_possible = set(), 0
    for start, stop in itertools.combinations(range(6), 2):
        for tier, degree, again in itertools.product(tiers, combination.degrees, (False, True)):
            stage = StagePlan(
                first_layer=start, stop_layer=stop, replicas=degree, memory_mb=tier, recompute=again
            )
            # A stage holds least at the end of a pipeline.
            held = held_micro_batches(
                schedule=combination.schedule, stage=4, num_stages=5, degree=degree,
                num_micro_batches=num, in_flight=combination.depth * 5,
            )  # fmt: skip
            use = memory_use(
                setting.profile, stage, num_samples=combination.micro_batch_size, held=held,
                is_last=stop == 5,
            )  # fmt: skip
            num_possible += 1
            if use.total <= tier * MB:
                expected.add((start, stop, tier, degree, again))

    table = make_table(setting, combination, tiers_mb=tiers, recompute="choose")

    columns = (table.start, table.stop, table.memory_mb, table.degree, table.recompute)
    found = set(zip(*(column.tolist() for column in columns), strict=True))
    assert found == expected
    assert len(table) == len(expected)
    assert 0 < len(expected) < num_possible
    order = list(zip(table.stop.tolist(), table.start.tolist(), strict=True))
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("recompute", "kinds"), [("never", {False}), ("always", {True}), ("choose", {False, True})]
)
def test_recomputation_is_as_it_was_asked_for(recompute: str, kinds: set[bool]) -> None:
    setting = setting_of()

    table = make_table(setting, COMBINATIONS[0], tiers_mb=setting.tiers_mb, recompute=recompute)

    assert set(table.recompute.tolist()) == kinds


def test_classes_and_counts_are_those_of_the_degrees() -> None:
    setting = setting_of()
    table = make_table(setting, COMBINATIONS[0], tiers_mb=setting.tiers_mb)

    degrees = np.array(table.combination.degrees)

    assert (degrees[table.class_of()] == table.degree).all()
    assert table.num_micro_batches == 8
    assert table.counts == (1, 1, 1)  # 7 = 4 + 2 + 1
