"""With what changes a problem would have a plan. All that is named has been tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.infeasible_memory import too_large
from funcpipe.partitioner.reach import fewest_functions, plan_fits

__all__ = ["several_changes", "single_changes"]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """text: what would be allowed. space: fields of `Space`."""

    text: str
    space: dict[str, Any]


def single_changes(problem: Problem) -> list[str]:
    """Each of which is enough, bounds on stages and functions as they are."""
    found = [
        next((one.text for one in group if _helps(problem, [one])), None)
        for group in _memory_changes(problem)
    ]
    found.append(_smaller_batch(problem))
    return [text for text in found if text is not None]


def several_changes(problem: Problem) -> str:
    """Several that are enough together, none of which can be left out; or that nothing is."""
    every = [group[-1] for group in _memory_changes(problem)]
    every += _bound_changes(problem)
    for chosen in [every, *(_without(every, one) for one in every)]:
        if _helps(problem, chosen):
            return f"What fits instead: {', together with '.join(_needed(problem, chosen))}"
    changed = _changed(problem, every)
    texts = ", ".join(one.text for one in every)
    if not every or not changed.combinations() or any(fewest_functions(changed) < float("inf")):
        return "No change that was tried helps"
    return f"Nothing that can be chosen helps: with {texts}, {too_large(changed)}"


def _needed(problem: Problem, changes: list[_Change]) -> list[str]:
    needed = changes
    for change in changes:
        if _helps(problem, _without(needed, change)):
            needed = _without(needed, change)
    return [one.text for one in needed]


def _without(changes: list[_Change], change: _Change) -> list[_Change]:
    return [one for one in changes if one is not change]


def _changed(problem: Problem, changes: list[_Change]) -> Problem:
    fields: dict[str, Any] = {}
    for change in changes:
        fields |= change.space
    return Problem(setting=problem.setting, space=replace(problem.space, **fields))


def _helps(problem: Problem, changes: list[_Change]) -> bool:
    return plan_fits(_changed(problem, changes))


def _memory_changes(problem: Problem) -> list[list[_Change]]:
    """By kind; in each the smallest change first and the one that saves the most memory last."""
    space, setting = problem.space, problem.setting
    size = min(space.sizes(setting))
    smaller = [1 << i for i in reversed(range((size - 1).bit_length()))]
    groups = [
        [_Change(text=f"micro-batches of {n}", space={"micro_batch_sizes": (n,)}) for n in smaller]
    ]
    if space.recompute == "never":
        groups.append([_Change(text="recomputation", space={"recompute": "choose"})])
    if "1f1b" not in space.schedules or min(space.depths) > 1:
        text = "the schedule 1f1b with one micro-batch in flight for each stage"
        fields = {"schedules": ("1f1b",), "depths": (1,)}
        groups.append([_Change(text=text, space=fields)])
    degrees = [1 << i for i in range(1, setting.num_micro_batches(size).bit_length())]
    groups.append(
        [
            _Change(text=f"a degree of {n}", space={"degrees": (n,)})
            for n in degrees
            if max(space.degrees) < n <= (problem.max_functions or n)
        ]
    )
    groups.append(list(_larger_tiers(problem)))
    return [group for group in groups if group]


def _larger_tiers(problem: Problem) -> Iterator[_Change]:
    memory, tiers = problem.setting.platform.memory, problem.space.tiers(problem.setting)
    last = memory.most_mb - (memory.most_mb - memory.least_mb) % memory.step_mb
    for tier in sorted({*memory.tiers_mb, last}):
        if tier > max(tiers):
            yield _Change(text=f"functions of {tier} MB", space={"tiers_mb": (*tiers, tier)})


def _bound_changes(problem: Problem) -> list[_Change]:
    free = {"max_functions": None, "max_stages": None, "min_stages": 1}
    if all(getattr(problem.space, name) == value for name, value in free.items()):
        return []
    return [_Change(text="any number of stages and functions", space=free)]


def _smaller_batch(problem: Problem) -> str | None:
    sizes, batch = problem.space.micro_batch_sizes, problem.setting.batch_size // 2
    while batch >= min(sizes or (1,)):
        smaller = Problem(
            setting=replace(problem.setting, batch_size=batch),
            space=replace(
                problem.space,
                micro_batch_sizes=sizes and tuple(size for size in sizes if size <= batch),
            ),
        )
        if plan_fits(smaller):
            return f"batches of {batch}"
        batch //= 2
    return None
