"""Several plans beside each other: a front of them, or one among those that others choose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from funcpipe.report.plan_text import NARROW, WIDTH, table_of
from funcpipe.report.units import format_dollars, format_number, places_of

if TYPE_CHECKING:
    from funcpipe.partitioner.baselines import Baseline
    from funcpipe.partitioner.plan import Plan
    from funcpipe.partitioner.planner import Answer, Front
    from funcpipe.partitioner.setting import Setting

__all__ = ["SHAPE", "compare_parts", "front_parts", "ratio", "scatter", "shape_of_plan"]

_COLUMNS, _ROWS = 64, 14
_MOST_SHOWN = 40


def front_parts(
    setting: Setting, front: Front, *, merged_to: int | None = None
) -> Iterator[RenderableType]:
    """All plans of a front, from the fastest to the cheapest, and where they lie.

    merged_to: how many layers the search saw, if some had been put together.
    """
    if front.complete:
        whole = f"none is missing that saves {100 * front.spacing:.2g}% of the dollars"
        if merged_to is not None:
            whole += f" and cuts between {merged_to} merged layers"
    else:
        whole = "not all of them: the search was cut short"
    yield Text(
        f"gpipe plans for {setting.profile.name} on {setting.platform.name} than which no other "
        f"gpipe plan is both faster and cheaper: {len(front.answers):,} in "
        f"{format_number(front.seconds, digits=2)} s; {whole}"
    )
    if front.notes:
        yield Text("\n".join(f"note: {note}" for note in front.notes))
    table = table_of("step s", "dollars", *SHAPE)
    places = places_of(min((one.estimate.dollars for one in front.answers), default=0.0))
    for one in _some(front.answers):
        dollars = format_dollars(one.estimate.dollars, places=places)
        table.add_row(format_number(one.estimate.step_s), dollars, *shape_of_plan(one.plan))
    yield table
    if len(front.answers) > _MOST_SHOWN:
        yield Text(f"{_MOST_SHOWN} of {len(front.answers):,} are shown here; --json has them all.")
    if len(front.answers) > 1:
        points = [(one.estimate.step_s, one.estimate.dollars) for one in front.answers]
        yield Text("\n".join(scatter(points)))


def _some(answers: Sequence[Answer]) -> list[Answer]:
    """All, or some at even distances of places, the first and the last among them."""
    if len(answers) <= _MOST_SHOWN:
        return list(answers)
    last = len(answers) - 1
    return [answers[round(n * last / (_MOST_SHOWN - 1))] for n in range(_MOST_SHOWN)]


def compare_parts(
    answer: Answer, baselines: Sequence[Baseline], *, width: int = WIDTH
) -> Iterator[RenderableType]:
    """The plan and what others would choose. Ratios are to the plan's own figures."""
    shown = 2 if width < NARROW else len(SHAPE)
    names = ("step s", "ratio", "dollars", "ratio", "objective", "ratio")
    table = table_of("plan", *names, *SHAPE[:shown])
    own = answer.estimate
    places = places_of(own.dollars)
    rows: list[tuple[str, Plan | None, float, float, float]]
    rows = [("this plan", answer.plan, own.step_s, own.dollars, answer.value)]
    rows += [(o.name, o.plan, o.time_s, o.dollars, o.value) for o in baselines]
    for name, plan, step_s, dollars, value in rows:
        if not math.isfinite(step_s):
            continue
        table.add_row(
            name,
            format_number(step_s),
            ratio(step_s, own.step_s),
            format_dollars(dollars, places=places),
            ratio(dollars, own.dollars),
            format_number(value),
            ratio(value, answer.value),
            *shape_of_plan(plan)[:shown],
        )
    yield table
    remarks = [f"{one.name}: {_remark(one)}" for one in baselines if one.why]
    if remarks:
        yield Text("\n".join(remarks))


def _remark(one: Baseline) -> str:
    if not math.isfinite(one.time_s):
        return f"no plan; {one.why}"
    if one.plan is None:
        return one.why
    return f"its plan is beyond what may be chosen here, and only to compare with; {one.why}"


SHAPE = ("stages", "degrees", "memory MB", "micro-batch")


def shape_of_plan(plan: Plan | None) -> tuple[str, ...]:
    if plan is None:
        return ("-",) * len(SHAPE)
    sizes = [stage.memory_mb or 0 for stage in plan.stages]
    return (
        str(len(plan.stages)),
        _joined(plan.degrees),
        _joined(sizes),
        f"{plan.micro_batch_size}",
    )


def _joined(numbers: Sequence[int]) -> str:
    """``2,2,1``, or ``2`` if all are the same, or the least and the largest of many."""
    if len(set(numbers)) == 1:
        return str(numbers[0])
    text = ",".join(map(str, numbers))
    return text if len(text) <= 11 else f"{min(numbers)}-{max(numbers)}"


def ratio(value: float, own: float) -> str:
    ratio = value / own if own > 0 else math.nan
    if math.isnan(ratio):
        return "-"
    return f"{ratio:.2f}" if ratio < 1e5 else f"{ratio:.1e}"


def scatter(points: Sequence[tuple[float, float]]) -> list[str]:
    """Points as stars: seconds to the right, dollars upwards, both on logarithmic scales.

    points: (seconds, dollars) above 0.
    """
    columns = _scaled([seconds for seconds, _ in points], _COLUMNS)
    rows = _scaled([dollars for _, dollars in points], _ROWS)
    grid = [[" "] * _COLUMNS for _ in range(_ROWS)]
    for column, row in zip(columns, rows, strict=True):
        grid[_ROWS - 1 - row][column] = "*"
    seconds, dollars = zip(*points, strict=True)
    labels = {0: format_dollars(max(dollars)), _ROWS - 1: format_dollars(min(dollars))}
    room = max(map(len, labels.values()))
    lines = [f"{labels.get(n, ''):>{room}} |{''.join(row)}".rstrip() for n, row in enumerate(grid)]
    low, high = f"{format_number(min(seconds))} s", f"{format_number(max(seconds))} s"
    axis = " " * room + " +" + "-" * _COLUMNS
    below = " " * (room + 2) + low + high.rjust(_COLUMNS - len(low))
    return ["dollars and seconds of a step, each star a plan; both scales logarithmic", *lines,
            axis, below]  # fmt: skip


def _scaled(values: Sequence[float], size: int) -> list[int]:
    """Places from 0 to size - 1, by the logarithm."""
    logs = [math.log(max(value, 1e-300)) for value in values]
    low, high = min(logs), max(logs)
    if high == low:
        return [0] * len(logs)
    return [round((value - low) / (high - low) * (size - 1)) for value in logs]
