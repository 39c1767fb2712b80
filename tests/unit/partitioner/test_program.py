"""The program says the same as the performance model, for every path of rows."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import coo_array

from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.firstplan import first_rows, measure
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.program import BOUND_SLACK, CUT, Program, make_program
from funcpipe.partitioner.rowbounds import Limits, row_bounds
from funcpipe.partitioner.table import Table
from tests.unit.partitioner.solver_problems import BOTH, MIN_COST, MIN_TIME, problem

SPACES = {
    "one degree": {},
    "degrees per stage": {"degrees": (1, 2, 4), "per_stage": True, "tiers_mb": (2048,)},
    "one micro-batch": {"micro_batch_sizes": (8,), "degrees": (1,)},
    "recomputation": {"recompute": "choose", "tiers_mb": (1024, 2048), "sync": ("three-phase",)},
}


def table_of(seed: int = 0, **space: object) -> Table:
    given = problem(3, seed=seed, **space)
    return given.table(given.combinations()[0])


def paths(table: Table, reached: int = 0) -> Iterator[list[int]]:
    if reached == table.num_layers:
        yield []
    for row in np.flatnonzero(table.start == reached):
        for rest in paths(table, int(table.stop[row])):
            yield [int(row), *rest]


def least(program: Program, rows: list[int]) -> float:
    """The goal's value for a path, by the program alone; infinite if it forbids the path."""
    chosen = np.isin(program.choices, rows).astype(float)
    if chosen.sum() < len(rows):
        return math.inf
    lower, upper, objective = program.lower.copy(), program.upper.copy(), program.objective.copy()
    lower[: len(chosen)] = upper[: len(chosen)] = chosen
    np.add.at(objective, program.right, program.factor * chosen[program.left])
    matrix = coo_array(
        (program.coefficient, (program.at_row, program.at_column)),
        shape=(program.num_constraints, program.num_variables),
    ).tocsr()
    above, below = np.isfinite(program.row_upper), np.isfinite(program.row_lower)
    solved = linprog(
        objective,
        A_ub=np.vstack([matrix.toarray()[above], -matrix.toarray()[below]]),
        b_ub=np.concatenate([program.row_upper[above], -program.row_lower[below]]),
        bounds=np.column_stack([lower, upper]),
    )
    assert solved.status in (0, 2), solved.message
    return solved.fun * program.unit if solved.status == 0 else math.inf


@pytest.mark.parametrize("quadratic", [False, True])
@pytest.mark.parametrize("goal", [MIN_TIME, MIN_COST, BOTH])
@pytest.mark.parametrize("space", SPACES)
def test_a_path_has_the_value_that_the_model_gives_it(
    space: str, goal: Goal, quadratic: bool
) -> None:
    given = problem(3, **SPACES[space])
    table = given.table(given.combinations()[0])
    program = make_program(row_bounds(table, goal, Limits()), goal, Limits(), quadratic=quadratic)
    assert program.is_quadratic == (quadratic and goal.cost_weight > 0)

    for rows in paths(table):
        estimate = evaluate(given.setting, table.plan(rows))
        expected = goal.value(estimate.step_s, estimate.dollars)
        assert least(program, rows) == pytest.approx(expected, rel=1e-7)
        assert measure(table, rows) == pytest.approx((estimate.step_s, estimate.dollars))


@pytest.mark.parametrize("space", ["one degree", "degrees per stage"])
def test_bounds_allow_exactly_the_plans_within_them(space: str) -> None:
    table = table_of(**SPACES[space])
    measured = {tuple(rows): measure(table, rows) for rows in paths(table)}
    middle_s = float(np.median([time_s for time_s, _ in measured.values()]))
    middle = float(np.median([dollars for _, dollars in measured.values()]))
    goal = replace(BOTH, max_time_s=middle_s, max_cost=middle)
    limits = Limits(min_stages=2, max_stages=2, max_functions=4)
    program = make_program(row_bounds(table, goal, limits), goal, limits, quadratic=True)
    assert not program.is_quadratic  # with a bound on dollars the product stands in a constraint

    allowed = []
    for rows, (time_s, dollars) in measured.items():
        within = time_s <= middle_s * (1 + BOUND_SLACK) and dollars <= middle * (1 + BOUND_SLACK)
        functions = int(table.degree[list(rows)].sum())
        allowed.append(within and len(rows) == 2 and functions <= 4)
        assert math.isfinite(least(program, list(rows))) == allowed[-1]

    assert 0 < sum(allowed) < len(allowed)


def test_an_excluded_path_is_no_solution_and_its_parts_are() -> None:
    table = table_of()
    path = next(rows for rows in paths(table) if len(rows) == 2)
    bounds = row_bounds(table, BOTH, Limits())

    program = make_program(bounds, BOTH, Limits(), excluded=[path])

    assert least(program, path) == math.inf
    others = [rows for rows in paths(table) if rows != path and set(rows) & set(path)]
    assert others
    assert all(math.isfinite(least(program, rows)) for rows in others)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("space", SPACES)
def test_rows_are_left_out_only_where_no_better_plan_has_them(space: str, seed: int) -> None:
    table = table_of(seed, **SPACES[space])
    measured = {tuple(rows): measure(table, rows) for rows in paths(table)}
    values = {rows: BOTH.value(*both) for rows, both in measured.items()}
    cut = float(np.quantile(list(values.values()), 0.1))

    bounds = row_bounds(table, BOTH, Limits(value=cut))

    assert not bounds.alive.all()
    assert bounds.value <= min(values.values()) * (1 + 1e-12)
    for rows, value in values.items():
        chosen = list(rows)
        time_s, dollars = measured[rows]
        if value <= cut:
            assert bounds.alive[chosen].all()
            assert (bounds.least_s[chosen] <= time_s * (1 + 1e-12)).all()
            assert (bounds.least_dollars[chosen] <= dollars * (1 + 1e-12)).all()
            assert (bounds.least_value[chosen] <= value * (1 + 1e-12)).all()
            assert (bounds.most_s[chosen] >= time_s).all()
            assert bounds.latest_s >= time_s


@pytest.mark.parametrize("price", ["1.7e-12", "1.7e-5", "170"])
def test_numbers_lie_near_1_whatever_things_cost(price: str) -> None:
    given = problem(5)
    platform = given.setting.platform.changed(
        {"price.gb_s": price, "price.put": "0", "price.get": "0", "price.missed_get": "0"}
    )
    given = replace(given, setting=replace(given.setting, platform=platform), _tables={})
    table = given.table(given.combinations()[0])

    program = make_program(row_bounds(table, MIN_COST, Limits()), MIN_COST, Limits())

    numbers = np.abs(np.concatenate([program.coefficient, program.objective]))
    numbers = numbers[numbers > 0]
    assert numbers.min() > 1e-5
    assert numbers.max() < 1e4


def test_the_cutoff_is_just_below_the_value_to_beat() -> None:
    table = table_of()
    best = min(BOTH.value(*measure(table, rows)) for rows in paths(table))
    limits = Limits(value=best)

    program = make_program(row_bounds(table, BOTH, limits), BOTH, limits)

    assert program.cutoff * program.unit == pytest.approx(best * (1 - CUT), rel=1e-12)
    assert len(program.choices) < len(table)


def test_what_a_solver_chose_is_read_as_a_path_or_refused() -> None:
    table = table_of()
    program = make_program(row_bounds(table, BOTH, Limits()), BOTH, Limits())
    path = [rows for rows in paths(table) if len(rows) == 3][-1]
    values = np.zeros(program.num_variables)
    values[np.flatnonzero(np.isin(program.choices, path))] = 1 - 1e-7

    assert program.path(values) == path
    values[np.flatnonzero(program.choices == path[1])] = 0.3
    assert program.path(values) is None


def test_the_first_plan_keeps_to_all_limits_and_is_good() -> None:
    found = 0
    for seed in range(20):
        table = table_of(seed, degrees=(1, 2, 4), per_stage=True, tiers_mb=(1024, 4096))
        limits = Limits(min_stages=2, max_stages=3, max_functions=5)
        values = [
            BOTH.value(*measure(table, rows))
            for rows in paths(table)
            if len(rows) > 1 and table.degree[rows].sum() <= 5
        ]
        rows = first_rows(table, BOTH, limits)
        assert rows is not None
        assert table.degree[rows].sum() <= 5
        assert len(rows) > 1
        value = BOTH.value(*measure(table, rows))
        assert min(values) <= value <= np.median(values)
        found += value <= min(values) * 1.01
        assert first_rows(table, BOTH, replace(limits, value=min(values))) is None
    assert found >= 10
