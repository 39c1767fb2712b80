"""What bounds say is never more than what a plan takes, and no plan of use is ruled out."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.bounds import Bounds, Cells
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.labels import Ahead, Labels, Pipeline, nondominated
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.rows import Floats, Least, Rows
from funcpipe.partitioner.search import Best
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Space
from funcpipe.partitioner.sweep import Sweep, _in_turns
from funcpipe.partitioner.table import Table
from funcpipe.partitioner.waits import waits_s
from tests.property.random_problems import paths, problem_and_goal

NUM_PROBLEMS = 40
PATHS = 6
CLOSE = 1 + 1e-9
TINY = 1e-12
SCHEDULES = ("gpipe", "1f1b")
FASTEST = Goal(time_weight=1.0, cost_weight=0.0)


def awkward_problem(rng: np.random.Generator) -> Problem:
    """Layers of no time or bytes, heavy optimisers, gradients that pile up, latencies that count
    more than anything else, and many ties.
    """

    def any_of(*values: float) -> float:
        return float(rng.choice(values))

    layers = tuple(
        LayerProfile(
            name=f"layer{number}",
            forward_s=((any_of(0, 1e-3, 0.1, 1),),),
            backward_s=((any_of(0, 1e-3, 0.2, 1),),),
            step_s=(any_of(0, 0, 1, 100),),
            parameter_bytes=any_of(0, 1e6),
            output_bytes=any_of(0, 1e6, 1e8),
            output_gradient_bytes=any_of(0, 1e6, 1e8),
        )
        for number in range(rng.integers(2, 4))
    )
    platform = load_platform("aws-lambda").changed(
        {"network.latency_s": repr(any_of(0, 0.2)), "price.put": repr(any_of(0, 5e-6))}
    )
    transfers = {"put_cpu_s": any_of(0, 0, 0.1), "get_byte_cpu_s": any_of(0, 0, 1e-7)}
    setting = Setting(
        profile=ModelProfile(
            name="awkward", layers=layers, late_s=any_of(0, 0, 0.2, 10), **transfers
        ),
        platform=platform,
        batch_size=int(rng.choice([3, 8, 40])),
        latency_on_lane=bool(rng.random() < 0.5),
    )
    space = Space(
        micro_batch_sizes=(1,), degrees=(1, 2), per_stage=bool(rng.random() < 0.5), tiers_mb=(8192,)
    )
    return Problem(setting=setting, space=space)


@cache
def a_problem(seed: int, schedule: str) -> Problem:
    """Every other one is awkward."""
    given = awkward_problem(np.random.default_rng(seed)) if seed % 2 else problem_and_goal(seed)[0]
    return Problem(setting=given.setting, space=replace(given.space, schedules=(schedule,)))


def some_paths(table: Table, rng: np.random.Generator) -> list[list[int]]:
    every = list(paths(table))
    return [every[i] for i in rng.permutation(len(every))[:PATHS]]


def labels_of(pipeline: Pipeline, rows: list[int]) -> list[Labels]:
    """Of the last k rows, for k = 0, 1, ..."""
    labels = [pipeline.root()]
    for row in reversed(rows):
        labels.append(pipeline.grown(labels[-1], np.array([0]), np.array([row]), 0))
    return labels


def waits_of(table: Table, rows: list[int]) -> float:
    if table.combination.schedule == "1f1b":
        return 0.0
    degrees, budget = table.degree[rows].tolist(), table.num_micro_batches - 1
    lanes = (table.lane_f[rows].tolist(), table.lane_b[rows].tolist())
    return sum(waits_s(lane, degrees, budget) for lane in lanes)


def cells_around(time_s: float, waits: float, rng: np.random.Generator) -> Cells:
    """Of random widths; (time_s, waits) lies in one of them, maybe on its edge."""
    times = max(time_s, 1e-9) * np.array([0.01, rng.uniform(0.3, 1), rng.choice([1, 1.2]), 9])
    steps = waits * np.array([0.0, rng.uniform(0, 1), rng.choice([1.0, 1.5])])
    return Cells.grid(times, np.append(steps, waits + time_s + 1))


def holding(cells: Cells, time_s: float, waits: float) -> np.ndarray:
    fits = (cells.t_low <= time_s * CLOSE) & (time_s <= cells.t_high * CLOSE)
    return np.flatnonzero(fits & (cells.w_low <= waits * CLOSE) & (waits <= cells.w_high * CLOSE))


def goals_of(time_s: float, dollars: float) -> list[Goal]:
    """Each kind, and bounds that the plan just keeps."""
    both = Goal(time_weight=1 / max(time_s, 1e-9), cost_weight=1 / max(dollars, 1e-30))
    return [
        Goal(time_weight=1.0, cost_weight=0.0),
        Goal(time_weight=1.0, cost_weight=0.0, max_cost=dollars),
        Goal(time_weight=0.0, cost_weight=1.0),
        Goal(time_weight=0.0, cost_weight=1.0, max_time_s=time_s),
        both,
        replace(both, max_time_s=time_s, max_cost=dollars),
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_plan_is_alive_in_its_cell_with_no_more_than_its_value(schedule: str) -> None:
    looked_at = 0
    for seed in range(NUM_PROBLEMS):
        rng = np.random.default_rng(seed)
        problem = a_problem(seed, schedule)
        for combination in problem.combinations():
            pipeline = Sweep(problem, combination, FASTEST).pipeline
            table = problem.table(combination)
            for rows in some_paths(table, rng):
                labels = labels_of(pipeline, rows)
                time_s = float(pipeline.total_s(labels[-1].state)[0])
                dollars = time_s * table.per_s[rows].sum() + table.per_step[rows].sum()
                waits = waits_of(table, rows)
                cells = cells_around(time_s, waits, rng)
                bounds, own = Bounds(pipeline, cells), holding(cells, time_s, waits)
                assert len(own)
                assert bounds.allowed[np.ix_(own, rows)].all(), f"problem {seed}"
                ahead = [
                    (int(table.stop[rows[-1 - size]]), label)
                    for size, label in enumerate(labels[:-1])
                ]
                for goal in goals_of(time_s, dollars):
                    value = goal.value(time_s, dollars)
                    for cut, label in ahead:
                        values = values_of(bounds, goal, cut, pipeline.ahead(cut, label), value)
                        assert values.keys() >= set(own.tolist()), f"problem {seed}"
                        told = max(values[cell] for cell in own.tolist())
                        assert told <= value * CLOSE + TINY, f"problem {seed}"
                        looked_at += 1
    assert looked_at > 2000


def values_of(bounds: Bounds, goal: Goal, cut: int, ahead: Ahead, value: float) -> dict[int, float]:
    """By cell, for one label: the least that it could have, if that is not above `value`."""
    limit = value * (1 + 1e-6) + TINY
    alive = bounds.alive(goal, cut, ahead, lambda time_s: np.full(np.shape(time_s), limit))
    return dict(zip(alive.cell.tolist(), alive.value.tolist(), strict=True))


def test_what_1f1b_takes_at_least_is_never_more_than_its_simulation() -> None:
    shares: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(2 * NUM_PROBLEMS):
        rng = np.random.default_rng(seed)
        given = a_problem(seed, "1f1b")
        problem = replace(given, space=replace(given.space, depths=(1, 2, 3)), _tables={})
        for combination in problem.combinations():
            pipeline = Sweep(problem, combination, FASTEST).pipeline
            table = problem.table(combination)
            for rows in some_paths(table, rng):
                least_s = float(pipeline.total_s(labels_of(pipeline, rows)[-1].state)[0])

                simulated_s = evaluate(problem.setting, table.plan(rows)).step_s

                assert least_s <= simulated_s * CLOSE + TINY, f"problem {seed}"
                share = least_s / simulated_s if simulated_s else 1.0
                if len(rows) == 1:
                    assert share == pytest.approx(1.0), f"problem {seed}"
                else:
                    shares[len(combination.degrees) > 1].append(share)
    # It is of use: near, and often exact, with one degree for all stages; less so with several.
    assert min(map(len, shares.values())) > 500
    assert np.median(shares[False]) > 0.97
    assert np.quantile(shares[False], 0.1) > 0.75
    assert np.mean(np.array(shares[False]) > 1 - 1e-9) > 0.2
    assert np.median(shares[True]) > 0.8


def test_an_optimiser_does_not_wait_for_gradients_that_pile_up() -> None:
    # Given a last stage with a heavy optimiser, whose gradients take long to send
    layers = [
        LayerProfile(name="first", forward_s=((0.1,),), backward_s=((0.1,),), output_bytes=1e3,
                     output_gradient_bytes=1e8),
        LayerProfile(name="last", forward_s=((0.1,),), backward_s=((0.1,),), step_s=(100.0,)),
    ]  # fmt: skip
    setting = Setting(
        profile=ModelProfile(name="two", layers=tuple(layers)),
        platform=load_platform("aws-lambda"),
        batch_size=8,
    )
    problem = Problem(
        setting=setting,
        space=Space(
            schedules=("1f1b",), micro_batch_sizes=(1,), degrees=(1,), depths=(4,), tiers_mb=(1769,)
        ),
    )
    (combination,) = problem.combinations()
    table, pipeline = problem.table(combination), Sweep(problem, combination, FASTEST).pipeline
    rows = next(rows for rows in paths(table) if len(rows) == 2)

    least_s = float(pipeline.total_s(labels_of(pipeline, rows)[-1].state)[0])

    # Then it begins before they are sent
    told = evaluate(setting, table.plan(rows))
    times = told.stages[1].times
    assert told.step_s < times.step_s + 7 * (times.up_b or 0.0)
    assert times.step_s < least_s <= told.step_s


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slow_way_between_two_stages_is_waited_for_again_and_again(depth: int) -> None:
    # Given four equal stages, and between the first two a link that is used twice as often
    def layer(number: int) -> LayerProfile:
        sent = 2e7 if number == 0 else 1e3
        return LayerProfile(
            name=f"layer{number}", forward_s=((0.1,),), backward_s=((0.2,),), output_bytes=sent
        )

    setting = Setting(
        profile=ModelProfile(name="four", layers=tuple(layer(number) for number in range(4))),
        platform=load_platform("aws-lambda"),
        batch_size=64,
    )
    space = Space(
        schedules=("1f1b",), micro_batch_sizes=(1,), degrees=(1,), depths=(depth,), tiers_mb=(1769,)
    )
    problem = Problem(setting=setting, space=space)
    (combination,) = problem.combinations()
    table, pipeline = problem.table(combination), Sweep(problem, combination, FASTEST).pipeline
    rows = next(rows for rows in paths(table) if len(rows) == 4)

    least_s = float(pipeline.total_s(labels_of(pipeline, rows)[-1].state)[0])

    told = evaluate(setting, table.plan(rows))
    assert 0.9 * told.step_s < least_s <= told.step_s * CLOSE


def test_labels_of_1f1b_with_unequally_many_stages_are_not_compared() -> None:
    # Fewer stages turn more often later on, and more take more memory in front of them
    problem = a_problem(0, "1f1b")
    pipeline = Sweep(problem, problem.combinations()[0], FASTEST).pipeline
    best, worse = (1, 1, 1, 1, 2), (2, 2, 2, 2, 2)
    longer, shorter = (2, 2, 2, 2, 3), (3, 3, 3, 3, 1)
    state = np.array([best, worse, longer, shorter], dtype=np.float64)

    kept = nondominated(pipeline.columns(1, state))

    assert sorted(kept.tolist()) == [0, 2, 3]


def patient_problem() -> Problem:
    """Nearly all time is latency, in two stages: each of them makes one direction wait."""
    tiny = ((1e-4,),)
    setting = Setting(
        profile=ModelProfile(
            name="two",
            layers=tuple(
                LayerProfile(name=name, forward_s=tiny, backward_s=tiny, output_bytes=1)
                for name in ("first", "last")
            ),
        ),
        platform=load_platform("aws-lambda").changed({"network.latency_s": "0.2"}),
        batch_size=64,
        latency_on_lane=False,
    )
    space = Space(micro_batch_sizes=(1,), degrees=(1,), tiers_mb=(1769,))
    return Problem(setting=setting, space=space)


def test_narrowing_leaves_a_cell_for_every_plan() -> None:
    for seed in range(NUM_PROBLEMS + 1):
        rng = np.random.default_rng(seed)
        problem = a_problem(seed, "gpipe") if seed < NUM_PROBLEMS else patient_problem()
        for combination in problem.combinations():
            sweep = Sweep(problem, combination, FASTEST)
            table = problem.table(combination)
            if sweep.proven:
                assert not list(paths(table))
                continue

            # When nothing is known that a plan must be better than
            sweep.narrow(Best())

            # Then all of them are in some cell
            for rows in some_paths(table, rng):
                state = labels_of(sweep.pipeline, rows)[-1].state
                time_s = float(sweep.pipeline.total_s(state)[0])
                assert len(holding(sweep.bounds.cells, time_s, waits_of(table, rows)))
                assert sweep.bound <= time_s * CLOSE


def test_narrowing_never_comes_above_the_best_plan() -> None:
    proven = 0
    for seed in range(NUM_PROBLEMS):
        problem, goal = problem_and_goal(seed)
        for combination in problem.combinations():
            table = problem.table(combination)
            told = [evaluate(problem.setting, table.plan(rows)) for rows in paths(table)]
            values = [
                goal.value(one.step_s, one.dollars)
                for one in told
                if goal.allows(one.step_s, one.dollars)
            ]
            best = min(values, default=math.inf)

            above, below = (Sweep(problem, combination, goal) for _ in range(2))
            above.narrow(Best(value=best * (1 + 1e-6)))
            below.narrow(Best(value=best * 0.5))

            assert above.bound <= best * CLOSE, f"problem {seed}"
            assert not (above.proven and values), f"problem {seed}"
            proven += below.proven
    assert proven > NUM_PROBLEMS / 2  # bounds are of use


# -- what completions take at least ------------------------------------------------------------


def thinned(table: Table, rng: np.random.Generator) -> Table:
    """Without some of its rows, as if they did not fit: some cuts cannot be reached."""
    keep = rng.random(len(table)) < rng.uniform(0.2, 1)
    columns = {
        name: value[keep] for name, value in vars(table).items() if isinstance(value, np.ndarray)
    }
    return replace(table, **columns)


def least_of(table: Table, rows: Rows, cut: int) -> dict[str, float]:
    """By a look at all ways to fill the layers in front of a cut."""

    def before(stop: int) -> list[list[int]]:
        if stop == 0:
            return [[]]
        return [
            [*front, int(row)]
            for row in np.flatnonzero(table.stop == stop)
            for front in before(int(table.start[row]))
        ]

    def sums(values: Floats) -> float:
        return min((float(values[path].sum()) for path in before(cut)), default=math.inf)

    def largest(values: Floats) -> float:
        return min((float(values[p].max(initial=0)) for p in before(cut)), default=math.inf)

    here = np.flatnonzero(table.stop == cut)
    first = np.flatnonzero((table.start == 0) & (table.stop <= cut))
    return {
        "fill_f": sums(table.fill_f),
        "fill": sums(rows.fill),
        "per_s": sums(table.per_s),
        "per_step": sums(table.per_step),
        "wait": largest(rows.wait),
        "lane_f": largest(table.lane_f),
        "tail": float(table.tail[first].min(initial=math.inf)),
        "next_end": float((table.fill_b + table.tail)[here].min(initial=math.inf)),
        "next_lane_b": float(table.lane_b[here].min(initial=math.inf)),
    }


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_least_is_what_a_look_at_all_ways_finds(schedule: str) -> None:
    unreachable, possible = 0, set()
    for seed in range(NUM_PROBLEMS):
        problem = a_problem(seed, schedule)
        for combination in problem.combinations()[:3]:
            table = thinned(problem.table(combination), np.random.default_rng(seed))
            rows = Rows(table)

            least = Least.of(rows)

            for cut in range(table.num_layers + 1):
                for name, value in least_of(table, rows, cut).items():
                    told = getattr(least, name)[cut]
                    assert told == pytest.approx(value, rel=1e-12), (seed, cut, name)
                unreachable += math.isinf(least.fill[cut])
            possible.add(least.possible)
            assert least.possible == any(True for _ in paths(table))
    assert unreachable > 20
    assert possible == {True, False}


def test_what_is_behind_a_cut_is_what_a_look_at_all_ways_finds() -> None:
    for seed in range(NUM_PROBLEMS):
        problem = a_problem(seed, "gpipe")
        for combination in problem.combinations()[:3]:
            table = thinned(problem.table(combination), np.random.default_rng(seed))
            rows = Rows(table)
            behind = Least.of(rows).behind

            def least(cut: int, table: Table = table, rows: Rows = rows) -> float:
                ways = np.flatnonzero(table.start == cut)
                sums = [rows.fill[way] + least(int(table.stop[way])) for way in ways]
                return 0.0 if cut == table.num_layers else min(sums, default=math.inf)

            for cut in range(table.num_layers + 1):
                assert behind[cut] == pytest.approx(least(cut), rel=1e-12)


def test_the_wait_of_a_row_is_that_of_a_plan_with_its_lanes_alone() -> None:
    for seed in range(0, NUM_PROBLEMS, 2):
        problem = a_problem(seed, "gpipe")
        for combination in problem.combinations():
            table = problem.table(combination)
            for row, wait in enumerate(Rows(table).wait.tolist()):
                assert wait == pytest.approx(waits_of(table, [row]), rel=1e-12)


# -- labels ------------------------------------------------------------------------------------


def test_nondominated_rows_are_those_that_no_other_is_as_good_as() -> None:
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(60):
        # Given few values, so that many rows tie and some are equal
        rows, width = int(rng.integers(0, 400)), int(rng.integers(1, 7))
        columns = rng.integers(-3, rng.choice([4, 30]), size=(rows, width)) * 1.0

        no_worse = (columns[:, None, :] <= columns[None, :, :]).all(axis=2)
        equal = no_worse & no_worse.T
        beaten = (no_worse & ~equal).any(axis=0)
        first_of_equals = equal.argmax(axis=1) == np.arange(rows)

        found = nondominated(columns)

        assert sorted(found.tolist()) == np.flatnonzero(~beaten & first_of_equals).tolist()
        kept.append(len(found))
    assert max(kept) > 96  # more than one block


def test_rows_that_differ_by_rounding_are_equal() -> None:
    columns = np.array([[1.0, 2.0], [1.0 + 1e-15, 2.0 - 1e-15], [1.0 + 1e-9, 2.0 - 1e-9]])

    assert len(nondominated(columns)) == 2


def test_groups_take_turns() -> None:
    groups = np.array([7.0, 7.0, 2.0, 7.0, 2.0, 5.0])

    assert _in_turns(groups).tolist() == [0, 2, 5, 1, 4, 3]
    assert _in_turns(np.empty(0)).tolist() == []
