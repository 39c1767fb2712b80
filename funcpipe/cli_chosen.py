"""What `funcpipe train` has chosen by itself, told before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from funcpipe.report.front_text import SHAPE, ratio, shape_of_plan
from funcpipe.report.plan_text import NARROW, WIDTH, plan_parts, table_of
from funcpipe.report.units import format_dollars, format_number, places_of

if TYPE_CHECKING:
    from funcpipe.driver.auto import Chosen
    from funcpipe.driver.profiling import Profiled

__all__ = ["chosen_parts"]


def chosen_parts(chosen: Chosen, *, width: int = WIDTH) -> Iterator[RenderableType]:
    """Where the profile comes from, the plan with its prediction, and what there is instead."""
    yield Text(_profile(chosen.profiled))
    yield from plan_parts(
        chosen.asked.setting,
        chosen.answer,
        gpipe_alone=chosen.asked.gpipe_alone,
        merged_to=chosen.asked.merged_to,
        width=width,
    )
    yield from _alternatives(chosen, width=width)


def _profile(profiled: Profiled) -> str:
    kept = "" if profiled.path is None else f", kept in {profiled.path}"
    if profiled.cached:
        return f"profile: measured before, and it still holds{kept}"
    return f"profile: measured now ({'; '.join(profiled.reasons)}){kept}"


def _alternatives(chosen: Chosen, *, width: int) -> Iterator[RenderableType]:
    """One line for each objective; ratios are to the chosen plan's figures."""
    shown = 2 if width < NARROW else len(SHAPE)
    table = table_of("instead", "step s", "ratio", "dollars", "ratio", *SHAPE[:shown])
    own = chosen.answer.estimate
    found = [one.answer for one in chosen.alternatives if one.answer is not None]
    places = places_of(min(a.estimate.dollars for a in (chosen.answer, *found)))
    rows = [(f"{chosen.answer.objective} (chosen)", chosen.answer)]
    rows += [(one.objective, one.answer) for one in chosen.alternatives if one.answer is not None]
    for name, answer in rows:
        told = answer.estimate
        table.add_row(
            name,
            format_number(told.step_s),
            ratio(told.step_s, own.step_s),
            format_dollars(told.dollars, places=places),
            ratio(told.dollars, own.dollars),
            *shape_of_plan(answer.plan)[:shown],
        )
    yield table
    missing = [f"{one.objective}: {one.why}" for one in chosen.alternatives if one.answer is None]
    if missing:
        yield Text("\n".join(missing))
