"""Plans as text: what is told, that it is what the model says, and that it can be read anywhere."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from funcpipe.partitioner.backend import Status
from funcpipe.partitioner.baselines import Baseline
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.partitioner.planner import Answer, Front
from funcpipe.partitioner.platform import load_platform
from funcpipe.partitioner.profile import LayerProfile, ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.simulate import simulate_plan
from funcpipe.partitioner.spans import Span
from funcpipe.report import plan_text
from funcpipe.report.front_text import compare_parts, front_parts, scatter
from funcpipe.report.picture import picture
from funcpipe.report.plan_text import plan_parts, print_parts, text_of


def profile(name: str = "toy") -> ModelProfile:
    layer = LayerProfile(
        name="x",
        forward_s=((0.5,),),
        backward_s=((1.0,),),
        parameter_bytes=2e6,
        activation_bytes=1e6,
        output_bytes=1e5,
        step_s=(0.25,),
    )
    names = ("embed", "block", "block2", "head")
    return ModelProfile(name=name, layers=tuple(replace(layer, name=n) for n in names))


def setting(name: str = "toy", num_steps: int | None = None) -> Setting:
    return Setting(
        profile=profile(name),
        platform=load_platform("aws-lambda"),
        batch_size=8,
        num_steps=num_steps,
    )


def plan(**changes: Any) -> Plan:
    stages = (
        StagePlan(first_layer=0, stop_layer=3, replicas=2, memory_mb=1769),
        StagePlan(first_layer=3, stop_layer=4, replicas=2, memory_mb=3538),
    )
    return Plan(**{"stages": stages, "micro_batch_size": 2} | changes)


def answer(chosen: Plan | None = None, **changes: Any) -> Answer:
    chosen = plan() if chosen is None else chosen
    told = evaluate(setting(), chosen)
    objective = Objective(kind="min-cost")
    fields = {
        "plan": chosen,
        "estimate": told,
        "objective": objective,
        "goal": objective.goal(),
        "value": told.dollars,
        "bound": told.dollars,
        "status": Status.OPTIMAL,
        "seconds": 1.23,
        "solver": "search",
        "notes": ("look twice",),
    }
    return Answer(**fields | changes)


def text(one: Answer, where: Setting | None = None, *, width: int = 100) -> str:
    return text_of(list(plan_parts(where or setting(), one, width=width)), width=width)


# -- one plan ----------------------------------------------------------------------------------


def test_the_first_line_says_for_what_and_how_sure() -> None:
    first = text(answer()).splitlines()[0]

    assert first == "Plan for toy on aws-lambda, min-cost: proven optimal"


def test_an_unproven_plan_is_not_called_optimal() -> None:
    told = answer(status=Status.FEASIBLE, value=2.0, bound=1.9)

    shown = text(told)

    assert "proven optimal" not in shown
    assert "min-cost: not proven: a better plan may cost up to 5.0% less\n" in shown
    assert "min-cost: 2.00, and none below 1.90" in shown


def first_line(**changes: Any) -> str:
    """Behind the names of model and platform."""
    shown = text(answer(status=Status.FEASIBLE, **changes)).partition("\n\n")[0]
    return " ".join(shown.split()).partition("aws-lambda, ")[2]


@pytest.mark.parametrize(
    ("value", "bound", "share"),
    [
        (1.0, 0.28, "72%"),
        (1.0, 0.983, "1.7%"),
        (1.0, 0.9991, "0.090%"),
        (1.0, 1 - 1e-7, "0.01%"),
        (3.0, 1e-9, "100%"),
        (3.0, 1.0, "67%"),
    ],
)
def test_a_gap_is_a_readable_share_and_rounded_up(value: float, bound: float, share: str) -> None:
    told = first_line(value=value, bound=bound)

    assert told == f"min-cost: not proven: a better plan may cost up to {share} less"


def test_without_a_bound_no_share_is_told() -> None:
    told = first_line(value=1.0, bound=0.0)

    assert told == "min-cost: not proven: how much better another plan may be is not known"


@pytest.mark.parametrize(
    ("kind", "less"),
    [
        ("min-time", "take up to 72% less time"),
        ("min-cost", "cost up to 72% less"),
        ("raw", "have up to 72% less of the objective"),
    ],
)
def test_that_no_gpipe_plan_is_better_comes_before_what_one_of_1f1b_could_be(
    kind: str, less: str
) -> None:
    objective = Objective(kind=kind)
    told = first_line(gpipe_proven=True, objective=objective, value=1.0, bound=0.28)

    assert told == f"{objective}: no gpipe plan is better (proven); one of 1f1b may {less}"


def test_a_proof_among_gpipe_plans_says_so_if_nobody_chose_them() -> None:
    parts = list(plan_parts(setting(), answer(), gpipe_alone=True))
    unsure = answer(status=Status.FEASIBLE, value=2.0, bound=1.9)
    others = list(plan_parts(setting(), unsure, gpipe_alone=True))

    assert text_of(parts).splitlines()[0].endswith(": proven optimal among gpipe plans")
    assert "not proven: a better gpipe plan may cost up to 5.0% less" in text_of(others)


def test_totals_are_those_of_the_estimate() -> None:
    told = answer()
    shown = text(told)

    assert f"\nstep       {told.estimate.step_s:.1f} s: forward " in shown
    assert re.search(r"^speed +0\.\d{3} samples/s; \$\d", shown, re.M)
    assert "8 samples, 4 micro-batches of 2" in shown
    assert "2 stages, 4 functions, gpipe, pipelined synchronisation" in shown
    assert "search in 1.2 s" in shown
    assert "look twice" in shown
    causes = told.estimate.to_dict()["dollars_by_cause"]
    assert {name for name, dollars in causes.items() if dollars} == {"compute", "requests"}
    assert re.search(r"per step: compute \$[\d.]+, requests \$[\d.]+$", shown, re.M)


def test_a_run_of_known_length_is_priced_as_a_whole() -> None:
    where = setting(num_steps=1000)
    told = evaluate(where, plan())

    shown = text(answer(estimate=told), where)

    assert f"1,000 steps: {told.step_s / 3.6:.2f} h, ${1000 * told.dollars:.2f}" in shown
    assert "starts $" in shown


def test_bounds_are_repeated() -> None:
    bounded = Objective(kind="weighted", alpha=0.25, max_time_s=20, max_cost=0.5)

    shown = " ".join(text(answer(objective=bounded)).split())

    assert "weighted:0.25: " in shown
    assert "a step of at most 20.0 s; a step for at most $0.500" in shown


def test_the_table_has_a_row_for_each_stage() -> None:
    rows = [line.split() for line in text(answer()).splitlines() if re.match(r"\d +\d-\d", line)]

    assert [row[:4] for row in rows] == [["0", "0-2", "2", "1,769"], ["1", "3-3", "2", "3,538"]]
    # One vCPU: three layers of 0.5 s for each of two samples
    assert rows[0][5:8] == ["1.00", "3.00", "6.00"]
    assert rows[0][-1] == "compute"
    used = evaluate(setting(), plan()).stages[0].memory.total / 2**20 / 1769
    assert rows[0][4] == f"{int(100 * used)}%"


def test_stages_are_named_by_their_layers() -> None:
    again = replace(plan().stages[1], recompute=True)
    shown = text(answer(plan(stages=(plan().stages[0], again))))

    assert "stage 0  embed - block2\n" in shown
    assert "stage 1  head; computes its activations again in the backward\n" in shown


@pytest.mark.parametrize("width", [80, 100])
def test_it_fits_in_its_width(width: int) -> None:
    lines = text(answer(), width=width).splitlines()

    assert max(map(len, lines)) <= width
    assert not any(line.endswith(" ") for line in lines)
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines)


def test_1f1b_says_how_many_are_in_flight_and_that_it_was_simulated() -> None:
    told = evaluate(setting(), plan(schedule="1f1b", in_flight=4))
    shown = text(answer(plan(schedule="1f1b", in_flight=4), estimate=told))

    assert "1f1b with 4 in flight" in shown
    assert "(simulated)" in shown


def test_one_in_flight_in_one_stage_is_said_to_accumulate_gradients() -> None:
    stage = StagePlan(first_layer=0, stop_layer=4, memory_mb=3538)
    chosen = plan(stages=(stage,), schedule="1f1b", in_flight=1)
    shown = text(answer(chosen))

    assert (
        "1 stage, 1 function, gradients accumulated over 4 micro-batches (1f1b with 1 in flight)\n"
    ) in shown


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_smaller_last_micro_batch_makes_a_bound_and_the_picture_says_why_it_differs(
    schedule: str,
) -> None:
    # Given 8 samples in micro-batches of 3, 3 and 2
    chosen = plan(micro_batch_size=3, schedule=schedule)
    told = evaluate(setting(), chosen)
    drawn = simulate_plan(setting(), chosen)
    # When
    shown = text(answer(chosen))
    # Then
    assert drawn.total_s < told.step_s
    assert f"step at most {told.step_s:.1f} s" in " ".join(shown.split())
    assert "(upper bound)" in " ".join(shown.split())
    assert re.search(r"^speed +at least 0\.\d+ samples/s", shown, re.M)
    assert (
        f"A step of {drawn.total_s:.1f} s, from left to right; the smaller last micro-batch "
        "counts here as it is\n"
    ) in shown


def test_a_step_without_time_has_no_speed() -> None:
    told = answer().estimate
    shown = text(answer(estimate=replace(told, time=replace(told.time, total_s=0.0))))

    assert "unknown, for a step takes no time; $" in shown


def test_one_of_a_kind_is_no_plural() -> None:
    where = setting(num_steps=1)

    assert re.search(r"^run +1 step: ", text(answer(), where), re.M)


def test_text_goes_where_no_terminal_is_without_colours() -> None:
    # Given a console that knows ASCII only, and a model whose name has other letters
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding="ascii"))
    where = setting("modèle")
    # When
    print_parts(list(plan_parts(where, answer())), console)
    console.file.flush()
    # Then
    assert raw.getvalue().startswith(b"Plan for mod\\xe8le on aws-lambda")
    assert b"\x1b" not in raw.getvalue()


def test_a_terminal_gets_colours_within_its_width() -> None:
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=80, color_system="standard")

    print_parts(list(plan_parts(setting(), answer(), width=80)), console)

    assert "\x1b[1;32mproven optimal" in buffer.getvalue()
    plain = re.sub(r"\x1b\[[\d;]*m", "", buffer.getvalue())
    assert max(map(len, plain.splitlines())) <= 80


def test_names_are_no_markup() -> None:
    assert "[red]toy" in text(answer(), setting("[red]toy"))


# -- the picture -------------------------------------------------------------------------------


def span(stage: int, action: str, start_s: float, end_s: float, replica: int = 0) -> Span:
    lane = "up" if "SEND" in action else "compute"
    return Span(0, stage, replica, action, lane, start_s, end_s)


def test_letters_are_what_a_function_does() -> None:
    spans = [
        span(0, "0F0", 0, 2),
        span(0, "0SEND_F0", 2, 4),
        span(0, "0B0", 6, 8),
        span(0, "0SEND_P1.0", 8, 9),
        span(0, "0RECV_P1.0", 8, 9),
        span(0, "0STEP", 9, 10),
        span(1, "1F0", 4, 5.3),
        span(1, "1F1", 0, 9, replica=1),
    ]

    rows = picture(spans, num_stages=2, total_s=10, width=10)

    assert rows == ["FF....BBSU", "....Ff...."]


def test_many_short_actions_fill_the_letters_they_fall_into() -> None:
    spans = [span(0, f"0F{k}", k / 100, (k + 1) / 100) for k in range(50)]

    assert picture(spans, num_stages=1, total_s=1, width=10) == ["FFFFF....."]


def test_nothing_is_drawn_of_a_step_without_length() -> None:
    assert picture([span(0, "0F0", 0, 0)], num_stages=1, total_s=0, width=4) == ["...."]


def test_a_step_is_drawn_from_its_simulation() -> None:
    shown = text(answer())
    rows = re.findall(r"^stage \d \|(.*)\|$", shown, re.M)

    assert [len(row) for row in rows] == [72, 72]
    assert rows[0].startswith("F")
    assert rows[1].startswith(".")
    assert all(letter in rows[0] for letter in "FBU")


def test_too_many_micro_batches_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_text, "MOST_DRAWN", 3)

    assert "4 micro-batches are too many to draw a step of." in text(answer())


# -- several plans -----------------------------------------------------------------------------


def front(count: int, *, complete: bool = True) -> Front:
    answers = []
    for n in range(count):
        told = replace(answer().estimate, dollars=0.01 / (n + 1))
        time = replace(told.time, total_s=float(n + 1))
        answers.append(answer(estimate=replace(told, time=time)))
    return Front(
        answers=tuple(answers), complete=complete, spacing=0.01, seconds=2.0, notes=("so it is",)
    )


def test_a_front_is_a_table_and_a_picture() -> None:
    shown = text_of(list(front_parts(setting(), front(3))))

    assert shown.startswith("gpipe plans for toy on aws-lambda than which no other gpipe plan is")
    assert "3 in 2.0 s; none is missing that saves 1% of the dollars" in " ".join(shown.split())
    assert "note: so it is" in shown
    assert re.search(r"^1\.00 +\$0\.01000 +2 +2 +1769,3538 +2$", shown, re.M)
    assert len(re.findall(r"^\d\.00 +\$", shown, re.M)) == 3
    assert shown.count("*") == 3


def test_a_front_that_was_cut_short_says_so() -> None:
    shown = " ".join(text_of(list(front_parts(setting(), front(2, complete=False)))).split())

    assert "2 in 2.0 s; not all of them: the search was cut short" in shown


def test_a_long_front_is_thinned_and_keeps_its_ends() -> None:
    shown = text_of(list(front_parts(setting(), front(200))))

    times = re.findall(r"^([\d.]+) +\$", shown, re.M)
    assert (len(times), times[0], times[-1]) == (40, "1.00", "200")
    assert "40 of 200 are shown here" in shown


def test_one_plan_is_no_picture() -> None:
    assert "*" not in text_of(list(front_parts(setting(), front(1))))


def test_the_fastest_is_at_the_left_and_the_cheapest_at_the_bottom() -> None:
    lines = [line.partition("|")[2] for line in scatter([(1, 8.0), (2, 4.0), (8, 1.0)])[1:15]]

    marks = [(row, line.index("*")) for row, line in enumerate(lines) if "*" in line]
    assert marks == [(0, 0), (4, 21), (13, 63)]


def test_plans_at_one_time_do_not_divide_by_nothing() -> None:
    assert sum("*" in line for line in scatter([(1, 1.0), (1, 1.0)])[1:15]) == 1


def test_others_are_compared_by_their_ratios() -> None:
    own = answer()
    step_s, dollars = own.estimate.step_s, own.estimate.dollars
    others = [
        Baseline(
            name="even", plan=plan(), time_s=2 * step_s, dollars=dollars / 2, value=3 * own.value
        ),
        Baseline(
            name="lost",
            plan=None,
            time_s=float("inf"),
            dollars=float("inf"),
            value=float("inf"),
            why="it does not fit",
        ),
        Baseline(
            name="beyond", plan=plan(), time_s=step_s, dollars=dollars, value=1, why="of its nature"
        ),
        Baseline(name="guess", plan=None, time_s=step_s, dollars=dollars, value=1, why="so to say"),
    ]

    shown = text_of(list(compare_parts(own, others)))
    narrow = text_of(list(compare_parts(own, others, width=80)), width=80)

    assert "\N{HORIZONTAL ELLIPSIS}" not in shown + narrow
    (even,) = re.findall(r"^even .*$", shown, re.M)
    ratios = [word for word in even.split() if re.fullmatch(r"\d\.\d\d", word)]
    assert {"2.00", "0.50", "3.00"} <= set(ratios)
    assert re.search(r"^this plan .* 1\.00 ", shown, re.M)
    assert "lost: no plan; it does not fit" in shown
    assert "guess: so to say" in shown
    assert (
        "beyond: its plan is beyond what may be chosen here, and only to compare with; of" in shown
    )
    assert re.search(r"^guess .* - +- +- +-$", shown, re.M)
    assert not re.search(r"^lost +", shown, re.M)


def test_a_ratio_is_short_however_large() -> None:
    own = answer()
    far = Baseline(name="far", plan=plan(), time_s=1e300, dollars=0.01, value=1.0)

    shown = text_of(list(compare_parts(own, [far], width=200)), width=200)

    (row,) = re.findall(r"^far .*$", shown, re.M)
    assert row.split()[1:3] == ["1.00e+300", f"{1e300 / own.estimate.step_s:.1e}"]
