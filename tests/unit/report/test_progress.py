"""Progress of a run: what the events add up to, and both ways of showing it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from funcpipe.report.progress import (
    LiveProgress,
    PlainProgress,
    ProgressState,
    progress_for,
)


def step(number: int, t: float, *, total: int = 25, **others: Any) -> dict[str, Any]:
    return {"kind": "step", "t": t, "step": number, "total": total, "loss": 1 / number, **others}


START = [
    {"kind": "run_started", "t": 0.0, "run_id": "r1", "job": "job.py"},
    {"kind": "plan", "t": 0.1, "plan": {}},
    {"kind": "store_ready", "t": 1.0, "store": "seaweedfs", "if_absent": True},
    {"kind": "function_started", "t": 2.0, "stage": 0, "replica": 0},
    {"kind": "function_started", "t": 2.5, "stage": 1, "replica": 0},
    {"kind": "note", "t": 2.6, "text": "one thread each", "level": "info"},
]
STEPS = [step(n, 3.0 + n / 2, alive=2, requests=20 * n) for n in range(1, 26)]
END = [
    {"kind": "evaluation", "t": 16.0, "step": 25, "metrics": {"accuracy": 0.975}},
    {"kind": "function_ended", "t": 16.5, "stage": 0, "replica": 0, "code": 0},
    {"kind": "note", "t": 16.6, "text": "slow store", "level": "warning"},
    {"kind": "run_ended", "t": 17.0, "status": "done"},
]

GOLDEN = """\
    0.0 s  run r1: job.py
    1.0 s  store ready: seaweedfs
    2.6 s  one thread each
    3.5 s  step 1/25  loss 1.0000
    8.0 s  step 10/25  loss 0.1000  2.00 steps/s  8 s left
   13.0 s  step 20/25  loss 0.0500  2.00 steps/s  2 s left
   15.5 s  step 25/25  loss 0.0400  2.00 steps/s
   16.0 s  evaluated after step 25: accuracy 0.9750
   16.6 s  warning: slow store
   17.0 s  run done
"""


def state_after(*events: dict[str, Any]) -> ProgressState:
    state = ProgressState()
    for event in events:
        state = state.after(event)
    return state


def test_functions_alive_are_counted_and_then_told() -> None:
    assert state_after(*START).alive == 2
    assert state_after(*START, step(1, 3.0, alive=7)).alive == 7
    assert state_after(*START, END[1]).alive == 1
    assert state_after(END[1]).alive == 0


def test_the_rate_is_that_of_the_last_steps() -> None:
    slow = [step(n, 10.0 * n, total=100) for n in range(1, 11)]
    fast = [step(10 + n, 100.0 + 0.25 * n, total=100) for n in range(1, 31)]
    assert state_after(slow[0]).steps_per_s is None
    assert state_after(*slow).steps_per_s == pytest.approx(0.1)
    assert state_after(*slow, *fast).steps_per_s == pytest.approx(4.0)
    assert state_after(*slow, *fast).remaining_s == pytest.approx(15.0)


def test_steps_at_one_time_have_no_rate() -> None:
    assert state_after(step(1, 1.0), step(2, 1.0)).steps_per_s is None


def test_unknown_events_and_fields_are_passed_over() -> None:
    before = state_after(*START)
    after = before.after({"kind": "weather", "t": 9.0, "rain": True})
    assert after.t == 9.0
    assert after.alive == before.alive
    assert state_after({**STEPS[0], "rain": True}) == state_after(STEPS[0])


def test_time_never_runs_backwards() -> None:
    assert state_after(step(1, 5.0), {"kind": "note", "t": 4.0, "text": "late"}).t == 5.0


def test_plain_lines_are_as_expected() -> None:
    lines: list[str] = []
    with PlainProgress(lines.append) as progress:
        for event in [*START, *STEPS, *END]:
            progress.update(event)
    assert "".join(f"{line}\n" for line in lines) == GOLDEN


@pytest.mark.parametrize(("every", "shown"), [(1, [1, 2, 3, 4, 5]), (2, [1, 2, 4, 5]), (9, [1, 5])])
def test_the_first_step_every_so_many_and_the_last_are_shown(every: int, shown: list[int]) -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, every_steps=every)
    for number in range(1, 6):
        progress.update(step(number, float(number), total=5))
    assert [int(line.split("step ")[1].split("/")[0]) for line in lines] == shown


def test_a_step_that_is_skipped_over_does_not_silence_the_rest() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, every_steps=10)
    for number in (1, 9, 12, 13, 21):
        progress.update(step(number, float(number)))
    assert [line.split()[3] for line in lines] == ["1/25", "12/25", "21/25"]


def test_every_steps_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PlainProgress(print, every_steps=0)


def test_the_view_fits_what_it_is_shown_on() -> None:
    pipe = io.StringIO()
    assert isinstance(progress_for(Console(file=pipe, force_terminal=True)), LiveProgress)
    plain = progress_for(Console(file=pipe, force_terminal=False))
    assert isinstance(plain, PlainProgress)
    plain.update(END[-1])
    assert pipe.getvalue() == "   17.0 s  run done\n"


def test_the_terminal_ends_with_the_last_state() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=90)
    with LiveProgress(console) as progress:
        for event in [*START, *STEPS, *END]:
            progress.update(event)
    last = screen.getvalue().rpartition("slow store")[2]
    assert "step 25/25  loss 0.0400  2.00 steps/s" in last
    assert "done, 17 s, functions alive 1, requests 500, accuracy 0.9750" in last


def test_the_terminal_is_redrawn_at_most_ten_times_a_second() -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, color_system=None, width=90)
    with LiveProgress(console) as progress:
        for number in range(1, 101):
            progress.update(step(number, number / 100, total=200))
    # Eleven draws at most while the second lasts, and one at the end.
    assert 2 <= drawn.getvalue().count("loss ") <= 12
    assert "step 100/200" in drawn.getvalue()


def test_dollars_are_shown_as_they_grow() -> None:
    lines: list[str] = []
    progress = PlainProgress(lines.append, every_steps=1)
    for event in [step(1, 1.0), step(2, 2.0, dollars=0.01234), step(3, 3.0)]:
        progress.update(event)
    assert [line.partition("$")[2] for line in lines] == ["", "0.0123", "0.0123"]
    assert progress.state.dollars == 0.01234
    progress.update({"kind": "bill", "t": 4.0, "driver_requests": {}, "dollars": 0.5})
    assert progress.state.dollars == 0.5


def test_a_platform_and_its_throttling_are_told() -> None:
    events: list[dict[str, Any]] = [
        {"kind": "emulator", "t": 0.5, "platform": "aws-lambda", "title": "Lambda", "dilation": 1},
        {"kind": "emulator", "t": 0.5, "title": "Lambda", "dilation": 4.5, "why": "few cores"},
        {
            "kind": "emulator",
            "t": 0.5,
            "title": "Lambda",
            "dilation": 1,
            "why": "fixed by the user",
        },
        {"kind": "throttled", "t": 1.0, "name": "stage0-replica1", "waited_s": 2.0},
        {"kind": "delivery", "t": 2.0, "name": "stage0-replica1", "run_ms": 5},
    ]
    lines: list[str] = []
    progress = PlainProgress(lines.append)
    for event in events:
        progress.update(event)
    told = [
        "emulates Lambda",
        "emulates Lambda, 4.5 x slower: few cores",
        "emulates Lambda, at real speed: fixed by the user",
        "throttled: stage0-replica1 waited 2.0 s for room on the platform",
    ]
    assert [line.partition(" s  ")[2] for line in lines] == [*told[:3], f"warning: {told[3]}"]
    assert progress.state.notes == (*(("info", text) for text in told[:3]), ("warning", told[3]))


def test_an_error_inside_leaves_the_terminal_usable() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None)
    with pytest.raises(KeyError), LiveProgress(console):
        raise KeyError("stop")
    assert screen.getvalue().count("\x1b[?25h") == 1  # the cursor is shown again
