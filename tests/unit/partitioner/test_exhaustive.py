import itertools
import math
import re

import pytest

from funcpipe.errors import SolverError
from funcpipe.partitioner import cost, exhaustive
from funcpipe.partitioner.backend import Deadline, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.exhaustive import Exhaustive, count_plans
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.verify import faults
from tests.unit.partitioner.solver_problems import BOTH, MIN_COST, MIN_TIME, over, problem


def every_plan(given: Problem) -> list[Plan]:
    """Written down another way than in the solver: cuts, then a choice for each stage."""
    space, layers = given.space, given.setting.profile.num_layers
    plans = []
    for num_cuts in range(layers):
        for cuts in itertools.combinations(range(1, layers), num_cuts):
            spans = list(zip([0, *cuts], [*cuts, layers], strict=True))
            choices = list(itertools.product(space.tiers_mb or (), space.degrees, (False, True)))
            for chosen in itertools.product(choices, repeat=len(spans)):
                stages = tuple(
                    StagePlan(first_layer=a, stop_layer=b, memory_mb=mb, replicas=d, recompute=r)
                    for (a, b), (mb, d, r) in zip(spans, chosen, strict=True)
                )
                for size in given.space.sizes(given.setting):
                    plans.append(Plan(stages=stages, micro_batch_size=size))
    return plans


@pytest.mark.parametrize("goal", [MIN_TIME, MIN_COST, BOTH])
@pytest.mark.parametrize("per_stage", [True, False])
def test_the_best_of_all_plans(goal: Goal, per_stage: bool) -> None:
    given = problem(
        3, tiers_mb=(512, 2048), degrees=(1, 2), per_stage=per_stage, recompute="choose",
        micro_batch_sizes=(1, 4), max_stages=2,
    )  # fmt: skip
    allowed = []
    for plan in every_plan(given):
        estimate = evaluate(given.setting, plan)
        if not faults(given, goal, plan, estimate):
            allowed.append(goal.value(estimate.step_s, estimate.dollars))

    found = Exhaustive().solve(given, goal, deadline=Deadline())

    assert len(allowed) > 50
    assert found.status == Status.OPTIMAL
    assert found.value == found.bound == min(allowed)
    assert found.estimate == evaluate(given.setting, found.plan)


def test_bounds_are_kept() -> None:
    given = problem(3)
    fastest = Exhaustive().solve(given, MIN_TIME, deadline=Deadline())
    cheapest = Exhaustive().solve(given, MIN_COST, deadline=Deadline())
    assert fastest.estimate.dollars > cheapest.estimate.dollars
    between = (fastest.estimate.dollars + cheapest.estimate.dollars) / 2

    found = Exhaustive().solve(
        given, Goal(time_weight=1, cost_weight=0, max_cost=between), deadline=Deadline()
    )

    assert found.estimate.dollars <= between
    assert fastest.value < found.value < cheapest.estimate.step_s


def test_no_plan_at_all() -> None:
    impossible = Goal(time_weight=1, cost_weight=0, max_time_s=1e-3)

    found = Exhaustive().solve(problem(2), impossible, deadline=Deadline())

    assert found.status == Status.INFEASIBLE
    assert found.plan is None
    assert found.bound == math.inf


def test_memory_under_1f1b_depends_on_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cost, "simulated_step_s", lambda times, **_: sum(one.compute_f for one in times)
    )
    # 16 micro-batches held at once fit nowhere; one or two fit in the last places.
    given = problem(
        3, batch_size=16, micro_batch_sizes=(1,), degrees=(1,), tiers_mb=(512,),
        schedules=("gpipe", "1f1b"), depths=(1,), plain=True,
    )  # fmt: skip
    gpipe, other = (given.table(one) for one in given.combinations())
    assert count_plans(gpipe, 3) < count_plans(other, 3)

    found = Exhaustive().solve(given, MIN_TIME, deadline=Deadline())

    assert found.plan.schedule == "1f1b"
    assert found.plan.in_flight == len(found.plan.stages)
    assert found.estimate.fits


def test_too_many_plans_are_refused_before_any_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(4)
    number = count_plans(given.table(given.combinations()[0]), 4)
    assert Exhaustive(number).solve(given, MIN_TIME, deadline=Deadline()).plan is not None
    monkeypatch.setattr(exhaustive, "evaluate", None)

    with pytest.raises(SolverError, match=re.escape(f"more than {number - 1:,} plans; choose")):
        Exhaustive(number - 1).solve(given, MIN_TIME, deadline=Deadline())


def test_the_number_of_plans_of_a_large_model_overflows_nothing() -> None:
    given = problem(40, tiers_mb=(4096, 6144, 8192), plain=True)
    rows = given.table(given.combinations()[0])
    everything_fits = len(rows) == 3 * 40 * 41 // 2
    assert everything_fits

    assert count_plans(rows, 40) == 3 * 4**39


def test_equal_plans_are_told_apart_by_their_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_costs = Goal(time_weight=0.0, cost_weight=0.0)

    first, second = (
        Exhaustive().solve(problem(3, degrees=(1, 2)), nothing_costs, deadline=Deadline())
        for _ in range(2)
    )

    assert first.plan == second.plan
    assert first.plan.num_functions == 1


def test_out_of_time_without_and_with_a_plan() -> None:
    given = problem(3)
    known = Exhaustive().solve(given, MIN_TIME, deadline=Deadline()).plan

    nothing = Exhaustive().solve(given, MIN_TIME, deadline=over())
    something = Exhaustive().solve(given, MIN_TIME, deadline=over(), incumbent=known)

    assert (nothing.status, nothing.plan) == (Status.TIMED_OUT, None)
    assert (something.status, something.plan) == (Status.FEASIBLE, known)
    assert something.bound <= something.value
    assert "time limit" in something.notes[0]


def test_ctrl_c_returns_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def interrupted(*args: object) -> object:
        if len(tried) == 5:
            raise KeyboardInterrupt
        tried.append(args)
        return evaluate(*args)

    monkeypatch.setattr(exhaustive, "evaluate", interrupted)

    found = Exhaustive().solve(problem(3), MIN_TIME, deadline=Deadline())

    assert found.status == Status.FEASIBLE
    assert found.plan is not None
    assert "Ctrl-C" in found.notes[0]


def test_ctrl_c_before_any_plan_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exhaustive, "evaluate", interrupted)

    with pytest.raises(KeyboardInterrupt):
        Exhaustive().solve(problem(3), MIN_TIME, deadline=Deadline())
