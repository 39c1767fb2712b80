"""What was measured beside what was predicted, in a run's summary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from funcpipe.report.beside import Beside, rows_of_run
from funcpipe.report.summary import Summary
from funcpipe.report.text import summary_text

PREDICTED = {
    "step_s": 0.162,
    "dollars": 0.0009,
    "dollars_by_cause": {"starts": 0.0001},
    "stages": [{"memory_bytes": {"base": 3e8, "total": 4e8}}],
}
MEASURED = {"step_s": 0.2, "dollars": 0.001, "stages": [{"over_base_bytes": 80_000_000}]}

RUN = Summary(
    run_id="r1", status="done", job="job.py", plan={"predicted": PREDICTED}, platform="local",
    store="x", if_absent=True, steps=9, epochs=1, measured=MEASURED,
)  # fmt: skip


def test_an_error_is_what_the_prediction_is_off_by() -> None:
    assert Beside(name="x", unit="s", predicted=3.0, measured=4.0).off == -0.25
    for pair in ((None, 4.0), (3.0, None), (3.0, 0.0)):
        assert Beside(name="x", unit="s", predicted=pair[0], measured=pair[1]).off is None


def test_the_summary_shows_both() -> None:
    # then a step's dollars are without the starts, which it does not show
    assert """
                           predicted  measured  prediction off by
step                         0.162 s   0.200 s             -19.0%
cost of a step             $0.000800  $0.00100             -20.0%
stage 0: memory over base   100.0 MB   80.0 MB             +25.0%
""" in summary_text(RUN)


def test_memory_is_over_the_base_that_the_function_had() -> None:
    stages = [{"over_base_bytes": 80_000_000, "base_bytes": 310_000_000}]
    memory = rows_of_run(PREDICTED, {"stages": stages})[-1]
    assert (memory.predicted, memory.measured) == (90_000_000, 80_000_000)


def test_it_survives_the_file() -> None:
    assert Summary.from_dict(RUN.to_dict()) == RUN


@pytest.mark.parametrize("without", [{"measured": None}, {"plan": {}}])
def test_without_one_of_them_nothing_is_shown(without: dict[str, Any]) -> None:
    assert "prediction off by" not in summary_text(replace(RUN, **without))


@pytest.mark.parametrize(
    "told",
    [
        {"step_s": "long", "dollars": True, "stages": "many"},
        {"stages": [None]},
        {"step_s": 10**400, "dollars": float("nan")},
        {"stages": [{"memory_bytes": 7}]},
        {"stages": [{"memory_bytes": {"base": 1.0}}]},
        {"stages": [{}, {}]},
        7,
    ],
)
def test_what_a_foreign_plan_says_of_itself_is_not_believed(told: Any) -> None:
    assert rows_of_run(told, MEASURED) == []
