"""With what changes a problem would have a plan. All that is named has been tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from funcpipe.errors import PlanError
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.infeasible_memory import too_large
from funcpipe.partitioner.reach import fewest_functions, plan_fits

__all__ = ["no_way_out", "ways_out"]


@dataclass(frozen=True, kw_only=True)
class _Change:
    """text: what would be allowed. space: fields of `Space`."""

    text: str
    space: dict[str, Any]


def ways_out(problem: Problem, *, bounds: bool) -> list[str]:
    """Changes each of which is enough; if none of one kind is, several kinds together.

    bounds: whether those on stages and functions may be among several. A smaller batch, which is
    another training, comes last.
    """
    groups = _memory_changes(problem)
    found = [next((one for one in group if _helps(problem, [one])), None) for group in groups]
    ways = [one.text for one in found if one is not None]
    if not ways:
        groups += [_bound_changes(problem)] if bounds else []
        together = _several(problem, [group for group in groups if group])
        ways = [", together with ".join(one.text for one in together)] if together else []
    batch = _smaller_batch(problem)
    return ways if batch is None else [*ways, batch]


def no_way_out(problem: Problem) -> str:
    """Where `ways_out` finds none: what all changes together come to."""
    groups = [*_memory_changes(problem), _bound_changes(problem)]
    changed = _changed(problem, [group[-1] for group in groups if group])
    if not _can_be(changed) or np.isfinite(fewest_functions(changed)).any():
        return "No change that was tried helps"
    texts = ", ".join(group[-1].text for group in groups if group)
    even = f"even with {texts}, " if texts else ""
    return f"Nothing that was tried helps: {even}{too_large(changed)}"


def _several(problem: Problem, groups: list[list[_Change]]) -> list[_Change]:
    """At most one of each group, none of which can be left out; empty if all together do not help.

    Of a group the smallest change that is enough.
    """
    every = [group[-1] for group in groups]
    tried = [every, *(_without(every, one) for one in every)]
    chosen: list[_Change] = next((some for some in tried if _helps(problem, some)), [])
    for change in list(chosen):
        if _helps(problem, _without(chosen, change)):
            chosen = _without(chosen, change)
    for number, change in enumerate(chosen):
        for smaller in next(group for group in groups if change in group):
            some = [*chosen[:number], smaller, *chosen[number + 1 :]]
            if _helps(problem, some):
                chosen = some
                break
    return chosen


def _without(changes: list[_Change], change: _Change) -> list[_Change]:
    return [one for one in changes if one is not change]


def _changed(problem: Problem, changes: list[_Change]) -> Problem:
    fields: dict[str, Any] = {}
    for change in changes:
        fields |= change.space
    return Problem(setting=problem.setting, space=replace(problem.space, **fields))


def _helps(problem: Problem, changes: list[_Change]) -> bool:
    changed = _changed(problem, changes)
    return _can_be(changed) and plan_fits(changed)


def _can_be(problem: Problem) -> bool:
    """Whether there are not too many micro-batches, which several changes may come to."""
    try:
        return bool(problem.combinations())
    except PlanError:
        return False


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
            _Change(text=f"a degree of {n}", space={"degrees": (*space.degrees, n)})
            for n in degrees
            if n > max(space.degrees)
            and n % max(space.degrees) == 0
            and n <= (problem.max_functions or n)
        ]
    )
    if not space.per_stage and all(high % low == 0 for low, high in pairwise(space.degrees)):
        groups.append([_Change(text="a degree for each stage", space={"per_stage": True})])
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
    """A half, a quarter ... of it; with a size of micro-batches where some are larger than it."""
    sizes, batch = problem.space.micro_batch_sizes, problem.setting.batch_size // 2
    while batch:
        setting, too_long = replace(problem.setting, batch_size=batch), max(sizes or (1,)) > batch
        tried: list[tuple[int, ...] | None] = [sizes]
        if sizes and too_long:
            tried = [(n,) for n in reversed(sizes) if n <= batch] or [(batch,)]
        for some in tried:
            space = replace(problem.space, micro_batch_sizes=some)
            if plan_fits(Problem(setting=setting, space=space)):
                rest = f" and micro-batches of {some[0]}" if some and too_long else ""
                return f"batches of {batch}{rest}"
        batch //= 2
    return None
