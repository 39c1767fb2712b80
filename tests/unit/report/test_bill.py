"""What a summary shows of an emulated platform and of its bill."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from funcpipe.errors import FuncpipeError
from funcpipe.partitioner.pricing import Bill, Charge
from funcpipe.report.summary import FunctionSummary, Summary, read_summary, write_summary
from funcpipe.report.text import summary_text


def charge(cause: str, name: str, quantity: float, unit: str, dollars: float) -> Charge:
    return Charge(cause=cause, name=name, quantity=quantity, unit=unit, dollars=dollars)


BILL = Bill(
    charges=(
        charge("compute", "stage0-replica0", 60.1, "s", 0.00175),
        charge("compute", "stage1-replica0", 1200.0, "s", 0.0351),
        charge("initialisation", "stage0-replica0", 5.0, "s", 0.000146),
        charge("invocations", "stage0-replica0", 1, "invocations", 2e-7),
        charge("PUT", "stage0-replica0", 4000, "requests", 0.02),
        charge("PUT", "driver", 22, "requests", 0.00011),
        charge("DELETE", "stage0-replica0", 2100, "requests", 0.0),
        charge("storage", "store", 3.6e9, "byte-s", 3e-8),
        charge("transfer", "driver", 12_000_000, "bytes", 0.00108),
    )
)
EMULATION: dict[str, Any] = {
    "platform": "aws-lambda",
    "title": "AWS Lambda",
    "dilation": 4.5,
    "why": "3 functions of 1.00 vCPU need more",
    "missing": ["the size of /tmp is not bounded", "no vCPU share"],
    "unverified": ["price.put", "price.get"],
}
FUNCTION = FunctionSummary(
    stage=0,
    replica=0,
    layers="0-4",
    seconds=60.1,
    compute_s=31.2,
    waiting_s=20.5,
    transfer_s=12.8,
    peak_bytes=331_000_000,
    base_bytes=262_000_000,
    memory_mb=1769,
    cold_starts=1,
    dollars=0.021896,
)
RUN = Summary(
    run_id="r42",
    status="done",
    job="job.py",
    plan={},
    platform="local",
    store="seaweedfs",
    if_absent=True,
    steps=180,
    epochs=15,
    seconds={"total": 77.8},
    bytes={"up": 1, "down": 2},
    functions=(FUNCTION,),
    emulation=EMULATION,
    bill=BILL.to_dict(),
)

GOLDEN = """\
Run r42: done after 180 steps, 77.8 s

seconds   total 77.8
cost      $0.0582, $0.000323 per step
job       job.py, 15 epochs
plan      none
ran on    local, store seaweedfs
emulated  AWS Lambda; times are platform seconds; this machine took 4.5 x as long: 3 functions of
          1.00 vCPU need more
note      not enforced: the size of /tmp is not bounded
note      not enforced: no vCPU share
note      prices without a public source: price.put, price.get
bytes     1 B up, 2 B down

                        over  base data start data compute transfer waiting total
stage replica layers base MB    MB   MB     s    s       s        s       s     s requests
0           0    0-4    69.0 262.0    -   0.0    -    31.2     12.8    20.5  60.1        0

bill               quantity     dollars share
compute         1,260.100 s  $0.0368500 63.3%
initialisation      5.000 s  $0.0001460  0.3%
invocations               1  $0.0000002  0.0%
PUT                   4,022  $0.0201100 34.6%
DELETE                2,100          $0  0.0%
storage        1.0 MB-hours <$0.0000001  0.0%
transfer            12.0 MB  $0.0010800  1.9%
total                        $0.0581862

                memory   cold
bill of             MB starts       time   requests       other     dollars
stage0-replica0  1,769      1 $0.0018960 $0.0200002           -  $0.0218962
stage1-replica0      -      - $0.0351000          -           -  $0.0351000
driver               -      -          - $0.0001100  $0.0010800  $0.0011900
store                -      -          -          - <$0.0000001 <$0.0000001
"""


def test_the_text_is_as_expected() -> None:
    assert summary_text(RUN) == GOLDEN


def test_a_summary_with_a_bill_survives_its_file(tmp_path: Path) -> None:
    write_summary(RUN, tmp_path / "summary.json")
    found = read_summary(tmp_path / "summary.json")
    assert found == RUN
    assert Bill.from_dict(found.bill) == BILL


def test_a_platform_in_real_time_says_nothing_of_slowness() -> None:
    run = dataclasses.replace(RUN, emulation={**EMULATION, "dilation": 1.0, "missing": []})
    text = summary_text(run)
    assert "emulated  AWS Lambda; times are platform seconds\n" in text
    assert "not enforced" not in text


def test_a_factor_of_one_that_is_too_small_is_told() -> None:
    why = "fixed by the user, though this machine needs 2"
    run = dataclasses.replace(RUN, emulation={**EMULATION, "dilation": 1.0, "why": why})
    assert f"times are platform seconds: {why}" in " ".join(summary_text(run).split())


def test_a_run_of_no_steps_has_a_cost_all_the_same() -> None:
    assert "cost      $0.0582\n" in summary_text(dataclasses.replace(RUN, steps=0))


def test_a_run_that_nothing_was_charged_for_shows_no_tables() -> None:
    text = summary_text(dataclasses.replace(RUN, bill=Bill().to_dict()))
    assert "cost      $0, $0 per step\n" in text
    assert "bill of" not in text


def test_a_bill_of_nothing_but_what_is_free_is_shown() -> None:
    free = Bill(charges=(charge("DELETE", "driver", 3, "requests", 0.0),))
    text = summary_text(dataclasses.replace(RUN, bill=free.to_dict()))
    assert "DELETE        3      $0     -\n" in text


@pytest.mark.parametrize("width", [80, 100])
def test_text_fits_the_width_and_nothing_is_cut(width: int) -> None:
    lines = summary_text(RUN, width=width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert not any("…" in line for line in lines)


def test_a_bill_that_is_none_cannot_be_in_a_summary() -> None:
    with pytest.raises(FuncpipeError, match="not a bill"):
        dataclasses.replace(RUN, bill={"charges": 7})
