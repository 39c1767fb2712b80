"""A plan as text: what it takes and why, its stages, and what each does over a step."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from funcpipe.partitioner.backend import Status
from funcpipe.partitioner.cost import BOUND
from funcpipe.partitioner.objective import Objective
from funcpipe.report.picture import LEGEND, picture
from funcpipe.report.units import format_dollars, format_number, places_of

if TYPE_CHECKING:
    from funcpipe.partitioner.cost import StageEstimate
    from funcpipe.partitioner.plan import Plan
    from funcpipe.partitioner.planner import Answer
    from funcpipe.partitioner.profile import ModelProfile
    from funcpipe.partitioner.setting import Setting

__all__ = [
    "NARROW",
    "WIDTH",
    "plan_parts",
    "print_parts",
    "proof",
    "table_of",
    "text_of",
    "width_of",
]

WIDTH, LEAST_WIDTH = 100, 80
MB = 2**20
NARROW = 92
_PICTURE = 72
MOST_DRAWN = 20_000
"""Micro-batches times functions, beyond which no step is drawn: each is less than a letter."""


def print_parts(parts: Sequence[RenderableType], console: Console) -> None:
    """With colours on a terminal, as plain text elsewhere; at most 100 columns wide.

    Letters that the console's encoding lacks are written as their code.
    """
    if console.is_terminal and console.encoding.startswith("utf"):
        _print(parts, console, width_of(console))
    else:
        text = text_of(parts, width=width_of(console))
        known = text.encode(console.encoding, "backslashreplace").decode(console.encoding)
        console.file.write(known)


def width_of(console: Console) -> int:
    """Columns that are used there; on a terminal with less than 80, lines are folded by it."""
    return min(max(console.width, LEAST_WIDTH), WIDTH) if console.is_terminal else WIDTH


def text_of(parts: Sequence[RenderableType], *, width: int = WIDTH) -> str:
    """As plain text: no escape codes, no blanks at the ends of lines."""
    buffer = io.StringIO()
    _print(parts, Console(file=buffer, width=width, color_system=None, force_terminal=False), width)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


def _print(parts: Sequence[RenderableType], console: Console, width: int) -> None:
    for number, part in enumerate(parts):
        if number:
            console.print()
        console.print(part, width=width)


def plan_parts(
    setting: Setting,
    answer: Answer,
    *,
    gpipe_alone: bool = False,
    merged_to: int | None = None,
    width: int = WIDTH,
) -> Iterator[RenderableType]:
    """Everything about an answer, to be printed one below the other.

    gpipe_alone: whether 1f1b was left out though the user did not say so. merged_to: how many
    layers the search saw, if some had been put together.
    """
    yield _headline(setting, answer, gpipe_alone=gpipe_alone, merged_to=merged_to)
    yield _facts(setting, answer)
    yield _stages(setting, answer, narrow=width < NARROW)
    yield _layers(setting.profile, answer.plan)
    yield _drawn(setting, answer, width)


def proof(answer: Answer, *, gpipe_alone: bool = False) -> str:
    """How sure it is that there is no better plan, in words. gpipe_alone: as for `plan_parts`."""
    if answer.status is Status.OPTIMAL:
        return "proven optimal among gpipe plans" if gpipe_alone else "proven optimal"
    if answer.gpipe_proven:
        return f"no gpipe plan is better (proven); {_better('one of 1f1b', answer)}"
    which = "a better gpipe plan" if gpipe_alone else "a better plan"
    return f"not proven: {_better(which, answer)}"


_LESS = {"min-time": "take {} less time", "min-cost": "cost {} less"}


def _better(which: str, answer: Answer) -> str:
    """How much so, as far as it is known."""
    if answer.bound <= 0:
        return "how much better another plan may be is not known"
    less = _LESS.get(answer.objective.kind, "have {} less of the objective")
    return f"{which} may {less.format(f'up to {_percent(answer.gap)}')}"


def _percent(share: float) -> str:
    """Rounded up: what is said to be the most is no less."""
    percent = 100 * share
    if percent < 0.01:
        return "0.01%"
    digits = max(0, 1 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * 10**digits - 1e-9) / 10**digits:.{digits}f}%"


def _headline(
    setting: Setting, answer: Answer, *, gpipe_alone: bool, merged_to: int | None
) -> Text:
    line = Text(f"Plan for {setting.profile.name} on {setting.platform.name}, {answer.objective}: ")
    sure = merged_to is None and (answer.status is Status.OPTIMAL or answer.gpipe_proven)
    told = proof(answer, gpipe_alone=gpipe_alone)
    if merged_to is not None:
        told = f"for cuts between {merged_to} merged layers, {told}"
    line.append(told, "bold green" if sure else "bold yellow")
    return line


# -- totals ----------------------------------------------------------------------------------


def _facts(setting: Setting, answer: Answer) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _fact_rows(setting, answer):
        grid.add_row(Text(name), Text(value))
    return grid


def _fact_rows(setting: Setting, answer: Answer) -> Iterator[tuple[str, str]]:
    estimate, plan = answer.estimate, answer.plan
    yield "step", _step(answer)
    yield "cost", _cost(answer)
    yield "speed", _speed(setting, answer)
    if setting.num_steps is not None:
        hours = estimate.step_s * setting.num_steps / 3600
        yield (
            "run",
            (
                f"{_counted(setting.num_steps, 'step')}: {format_number(hours)} h, "
                f"{format_dollars(estimate.dollars * setting.num_steps)}"
            ),
        )
    batches = _counted(estimate.num_micro_batches, "micro-batch")
    yield "batch", f"{setting.batch_size:,} samples, {batches} of {plan.micro_batch_size:,}"
    yield "runs as", _runs_as(plan, batches)
    yield "objective", _objective(answer)
    yield "found by", f"{answer.solver} in {format_number(answer.seconds, digits=2)} s"
    for note in answer.notes:
        yield "note", note


def _step(answer: Answer) -> str:
    time = answer.estimate.time
    text = f"{format_number(time.total_s)} s"
    if time.how == BOUND:
        text = f"at most {text}"
    parts = {"forward": time.forward_s, "backward": time.backward_s}
    if time.tail_s is not None and time.tail_s > 0:
        parts["synchronisation and optimiser"] = time.tail_s
    told = [f"{name} {format_number(s)}" for name, s in parts.items() if s is not None]
    return f"{text}{': ' if told else ''}{', '.join(told)} ({time.how})"


def _speed(setting: Setting, answer: Answer) -> str:
    time = answer.estimate.time
    price = (
        f"{format_dollars(answer.estimate.dollars / setting.batch_size * 1e6)} per million samples"
    )
    if time.total_s <= 0:
        return f"unknown, for a step takes no time; {price}"
    least = "at least " if time.how == BOUND else ""
    return f"{least}{format_number(setting.batch_size / time.total_s)} samples/s; {price}"


def _cost(answer: Answer) -> str:
    estimate = answer.estimate
    causes: dict[str, float] = estimate.to_dict()["dollars_by_cause"]
    parts = [f"{name} {format_dollars(dollars)}" for name, dollars in causes.items() if dollars]
    return f"{format_dollars(estimate.dollars)} per step: {', '.join(parts) or 'nothing'}"


def _runs_as(plan: Plan, batches: str) -> str:
    text = f"{_counted(len(plan.stages), 'stage')}, {_counted(plan.num_functions, 'function')}, "
    if len(plan.stages) == 1 and plan.schedule == "1f1b" and plan.in_flight == 1:
        text += f"gradients accumulated over {batches} ("
    text += plan.schedule
    if plan.in_flight is not None:
        text += f" with {plan.in_flight} in flight"
    text += ")" if "(" in text else ""
    return f"{text}, {plan.sync} synchronisation" if max(plan.degrees) > 1 else text


def _objective(answer: Answer) -> str:
    objective: Objective = answer.objective
    text = f"{objective}: {format_number(answer.value)}"
    if answer.status is not Status.OPTIMAL:
        text += f", and none below {format_number(answer.bound)}"
    if objective.max_time_s is not None:
        text += f"; a step of at most {format_number(objective.max_time_s)} s"
    if objective.max_cost is not None:
        text += f"; a step for at most {format_dollars(objective.max_cost)}"
    return text


def _counted(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


# -- stages ----------------------------------------------------------------------------------


def _stages(setting: Setting, answer: Answer, *, narrow: bool) -> Table:
    """Seconds are of one micro-batch, those of `sync` of a step; dollars of a step."""
    first = ("layers", "degree", "memory\nMB", "used")
    wide = ("vCPU", "forward\ns", "backward\ns", "up\ns", "down\ns")
    seconds = ("fwd\ns", "bwd\ns", "net\ns") if narrow else wide
    table = table_of(
        "" if narrow else "stage", *first, *seconds, "sync\ns", "dollars", "limited\nby"
    )
    places = places_of(min(stage.dollars for stage in answer.estimate.stages))
    rows = zip(answer.plan.stages, answer.estimate.stages, strict=True)
    for number, (stage, told) in enumerate(rows):
        vcpu = [] if narrow else [format_number(setting.platform.vcpu(told.memory_mb))]
        table.add_row(
            str(number),
            f"{stage.first_layer}-{stage.stop_layer - 1}",
            str(stage.replicas),
            f"{told.memory_mb:,}",
            f"{math.floor(100 * told.memory.total / (told.memory_mb * MB))}%",
            *vcpu,
            *_seconds(told, narrow=narrow),
            format_dollars(told.dollars, places=places),
            told.limit,
        )
    return table


def _seconds(told: StageEstimate, *, narrow: bool) -> Iterator[str]:
    """Forward, backward, both directions of the network (their sum if narrow), synchronisation."""
    times = told.times
    up = (times.up_f or 0.0) + (times.up_b or 0.0)
    down = (times.down_f or 0.0) + (times.down_b or 0.0)
    network = (up + down,) if narrow else (up, down)
    for seconds in (times.compute_f, times.compute_b, *network, told.sync_s):
        yield format_number(seconds, digits=2 if narrow else 3) if seconds else "-"


def _layers(profile: ModelProfile, plan: Plan) -> Table:
    """The first and the last layer of each stage by name."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for number, stage in enumerate(plan.stages):
        first, last = profile.layers[stage.first_layer], profile.layers[stage.stop_layer - 1]
        names = first.name if first is last else f"{first.name} - {last.name}"
        names += "; computes its activations again in the backward" if stage.recompute else ""
        grid.add_row(f"stage {number}", Text(names))
    return grid


def table_of(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, vertical="bottom", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    return table


# -- the picture -----------------------------------------------------------------------------


def _drawn(setting: Setting, answer: Answer, width: int) -> Text:
    from funcpipe.partitioner.simulate import simulate_plan

    plan, num = answer.plan, answer.estimate.num_micro_batches
    if num * len(plan.stages) > MOST_DRAWN:
        return Text(f"{num:,} micro-batches are too many to draw a step of.")
    simulation = simulate_plan(setting, plan, timeline=True)
    assert simulation.timeline is not None  # noqa: S101 - asked for
    labels = [f"stage {number} " for number in range(len(plan.stages))]
    room = min(_PICTURE, width - max(map(len, labels)) - 2)
    rows = picture(
        simulation.timeline, num_stages=len(labels), total_s=simulation.total_s, width=room
    )
    took = f"A step of {format_number(simulation.total_s)} s, from left to right"
    lines = [took + _difference(setting, answer, simulation.total_s)]
    widest = max(map(len, labels))
    lines += [f"{label:{widest}}|{row}|" for label, row in zip(labels, rows, strict=True)]
    return Text("\n".join([*lines, LEGEND]))


def _difference(setting: Setting, answer: Answer, drawn_s: float) -> str:
    """Why the picture's step is shorter than the one that is told above it."""
    if math.isclose(drawn_s, answer.estimate.step_s, rel_tol=1e-9, abs_tol=1e-12):
        return ""
    size = answer.plan.micro_batch_size
    if setting.batch_size % min(size, setting.batch_size):
        return "; the smaller last micro-batch counts here as it is"
    return "; what is counted in full above counts here as it is"
