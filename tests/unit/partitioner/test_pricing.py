"""Bills: what is charged, to whom, and that an independent recomputation agrees."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from funcpipe.errors import FuncpipeError
from funcpipe.partitioner.platform import PlatformSpec, load_platform
from funcpipe.partitioner.pricing import (
    CAUSES,
    Bill,
    Charge,
    Use,
    bill,
    dollars_per_s,
    unverified_prices,
)
from funcpipe.report.events import EventLog
from tests.emulator.bill_from_events import bill_from_files

OPERATIONS = ("PUT", "GET", "GET_MISSED", "DELETE", "LIST")
CAUSES_OF = ("PUT", "GET", "missed GET", "DELETE", "LIST")
LAMBDA = load_platform("aws-lambda")
# Every price is there and different from all others, and the currency is not the dollar.
ODD = {
    "cpu.vcpu": [[1000, 0.3], [2000, 0.7]],
    "tmp.default_mb": 700,
    "gpu.kind": "T",
    "gpu.memory_mb": 16384,
    "price.currency": "CNY",
    "price.dollars": 0.14,
    "price.gb_s": 1.7e-05,
    "price.vcpu_s": 0.00011,
    "price.disk_gb_s": 5.5e-06,
    "price.disk_free_mb": 512,
    "price.gpu_gb_s": 0.00023,
    "price.invocation": 8e-07,
    "price.granularity_ms": 100,
    "price.put": 6e-06,
    "price.get": 4e-07,
    "price.missed_get": 3e-07,
    "price.list": 7e-06,
    "price.delete": 1e-07,
    "price.stored_gb_month": 0.12,
    "price.put_gb": 0.0032,
    "price.get_gb": 0.0006,
    "price.internet_out_gb": 0.5,
}


def platform_with(changes: Mapping[str, Any]) -> PlatformSpec:
    texts = {
        path: one if isinstance(one, str) else json.dumps(one) for path, one in changes.items()
    }
    return LAMBDA.changed(texts)


def made_up_use(source: random.Random, number: int) -> Use:
    return Use(
        name=f"stage{number % 3}-replica{number % 2}",
        memory_mb=source.choice([128, 1000, 1769, 1999, 10240]),
        init_ms=source.choice([0, 5211]),
        run_ms=source.randrange(0, 900_000),
        requests={op: source.randrange(0, 5000) for op in OPERATIONS if source.random() < 0.8},
        bytes_up=source.randrange(0, 10**11),
        bytes_down=source.randrange(0, 10**11),
    )


def delivery(use: Use, t: float) -> dict[str, Any]:
    event = {"kind": "delivery", "t": t, "id": f"i{t}", "delivery": 1, "cold": use.init_ms > 0}
    return {**event, "reason": "ended", **vars(use)}


def quantities(found: Bill) -> dict[tuple[str, str], float]:
    return {(charge.cause, charge.name): charge.quantity for charge in found.charges}


def test_a_function_on_lambda_is_billed_as_the_price_list_says() -> None:
    # given one cold delivery of 1 GB, 2 s of start and 8 s of run
    use = Use(name="stage0-replica0", memory_mb=1024, init_ms=2000, run_ms=8000)
    # when it is billed
    found = bill(LAMBDA, [use])
    # then every second is $0.0000166667, those of the start too
    assert found.by_cause() == pytest.approx(
        {"compute": 8 * 1.66667e-5, "initialisation": 2 * 1.66667e-5, "invocations": 2e-7},
        rel=1e-12,
    )
    assert found.total == pytest.approx(0.0001668670, rel=1e-12)
    assert [(charge.quantity, charge.unit) for charge in found.charges] == [
        (8.0, "s"),
        (2.0, "s"),
        (1, "invocations"),
    ]


def test_start_and_run_are_rounded_up_together_in_each_delivery() -> None:
    platform = platform_with({"price.granularity_ms": 100})
    uses = [
        Use(name="stage0-replica0", memory_mb=1024, init_ms=130, run_ms=130),  # 260 -> 300
        Use(name="stage0-replica0", memory_mb=1024, run_ms=1),  # 1 -> 100
        Use(name="stage0-replica0", memory_mb=1024, run_ms=200),
        Use(name="stage0-replica0", memory_mb=1024),
    ]
    assert quantities(bill(platform, uses)) == {
        ("compute", "stage0-replica0"): pytest.approx(0.170 + 0.100 + 0.200),
        ("initialisation", "stage0-replica0"): pytest.approx(0.130),
        ("invocations", "stage0-replica0"): 4,
    }


def test_a_start_that_is_not_billed_costs_nothing() -> None:
    platform = platform_with({"price.bills_initialisation": False})
    found = bill(platform, [Use(name="a", memory_mb=1024, init_ms=5000, run_ms=1000)])
    assert quantities(found) == {("compute", "a"): 1.0, ("invocations", "a"): 1}


def test_a_second_costs_memory_cpu_disk_above_what_is_free_and_gpu() -> None:
    parts = (1.7e-5 * 1500 / 1024, 0.00011 * 0.5, 5.5e-6 * 188 / 1024, 0.00023 * 16)
    odd = platform_with(ODD)
    assert dollars_per_s(odd, 1500) == pytest.approx(0.14 * sum(parts), rel=1e-12)
    free = platform_with(
        {**ODD, "price.disk_free_mb": 5000, "gpu.kind": "null", "gpu.memory_mb": None}
    )
    assert dollars_per_s(free, 1500) == pytest.approx(0.14 * sum(parts[:2]), rel=1e-12)


def test_what_is_free_is_listed_and_what_did_not_happen_is_not() -> None:
    use = Use(name="a", memory_mb=1024, requests={"DELETE": 7, "PUT": 0}, bytes_up=10)
    found = bill(LAMBDA, [use])
    assert quantities(found) == {("invocations", "a"): 1, ("DELETE", "a"): 7, ("transfer", "a"): 10}
    assert found.by_cause()["DELETE"] == 0.0
    assert bill(LAMBDA, []).charges == ()
    assert bill(LAMBDA, []).total == 0.0


def test_the_driver_pays_for_requests_downloads_and_what_lies_in_the_store() -> None:
    found = bill(
        platform_with(ODD),
        [],
        driver_requests={"PUT": 10, "GET_MISSED": 4},
        driver_bytes_up=2_000_000_000,
        driver_bytes_down=3_000_000_000,
        stored_byte_s=1e9 * 730 * 3600 * 2,
    )
    assert found.by_name() == pytest.approx(
        {
            "driver": 0.14 * (10 * 6e-6 + 4 * 3e-7 + 2 * 0.0032 + 3 * (0.0006 + 0.5)),
            "store": 0.14 * 2 * 0.12,
        },
        rel=1e-12,
    )


def test_causes_and_names_come_in_order_and_add_up_to_the_total() -> None:
    source = random.Random(1)
    uses = [made_up_use(source, number) for number in (5, 4, 3, 2, 1, 0)]
    uses += [
        Use(name="stage10-replica0", memory_mb=128),
        Use(name="stage9-replica0", memory_mb=128),
    ]
    requests = dict.fromkeys(OPERATIONS, 1)
    found = bill(LAMBDA, uses, driver_requests=requests, driver_bytes_down=1, stored_byte_s=1.0)
    assert list(found.by_cause()) == list(CAUSES)
    assert list(found.by_name()) == [
        *(f"stage{stage}-replica{replica}" for stage in range(3) for replica in range(2)),
        "stage9-replica0",
        "stage10-replica0",
        "driver",
        "store",
    ]
    for parts in (found.by_cause(), found.by_name()):
        assert math.fsum(parts.values()) == pytest.approx(found.total, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("changes", [{}, ODD], ids=["lambda", "odd"])
def test_a_recomputation_from_the_event_log_agrees(
    tmp_path: Path, seed: int, changes: dict[str, Any]
) -> None:
    # given the log of a run and the platform's file beside it
    source = random.Random(seed)
    platform = platform_with(changes)
    uses = [made_up_use(source, number) for number in range(20)]
    rest: dict[str, Any] = {
        "driver_requests": {"PUT": source.randrange(100), "GET": 3, "LIST": 2, "GET_MISSED": 1},
        "driver_bytes_up": source.randrange(10**9),
        "driver_bytes_down": source.randrange(10**9),
        "stored_byte_s": source.random() * 1e15,
    }
    found = bill(platform, uses, **rest)
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append({"kind": "bill", "t": 0.0, "driver_requests": {"PUT": 10**6}, "dollars": 5.0})
        for number, use in enumerate(uses):
            log.append(delivery(use, float(number)))
        log.append({"kind": "bill", "t": 99.0, "dollars": found.total, **rest})
    (tmp_path / "platform.json").write_text(json.dumps(platform.to_dict()))
    # when it is recomputed from those files in exact fractions
    exact = bill_from_files(tmp_path / "events.jsonl", tmp_path / "platform.json")
    # then it is the same bill, to the last request
    close = {"rel": 1e-12, "abs": 0.0}
    assert found.total == pytest.approx(float(exact.total), **close)
    assert found.by_cause() == pytest.approx(
        {k: float(v) for k, v in exact.by_cause.items()}, **close
    )
    assert found.by_name() == pytest.approx(
        {k: float(v) for k, v in exact.by_name.items()}, **close
    )
    for operation, cause in zip(OPERATIONS, CAUSES_OF, strict=True):
        billed = [charge.quantity for charge in found.charges if charge.cause == cause]
        assert sum(billed) == exact.requests[operation]
    assert exact.deliveries == len(uses)


def test_one_request_or_millisecond_more_is_seen_by_the_recomputation(tmp_path: Path) -> None:
    use = Use(name="stage0-replica0", memory_mb=1769, run_ms=899_999, requests={"GET": 99_999})
    (tmp_path / "platform.json").write_text(json.dumps(LAMBDA.to_dict()))
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(delivery(use, 1.0))
    exact = float(bill_from_files(tmp_path / "events.jsonl", tmp_path / "platform.json").total)
    assert bill(LAMBDA, [use]).total == pytest.approx(exact, rel=1e-12)
    for more in ({"run_ms": 900_000}, {"requests": {"GET": 100_000}}):
        other = bill(LAMBDA, [dataclasses.replace(use, **more)])
        assert other.total != pytest.approx(exact, rel=1e-9)


def test_a_bill_survives_json() -> None:
    found = bill(LAMBDA, [made_up_use(random.Random(2), 1)], stored_byte_s=1e12)
    data = json.loads(json.dumps(found.to_dict()))
    assert Bill.from_dict(data) == found
    assert data["total"] == found.total


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"charges": 3},
        {"charges": [{"cause": "compute"}]},
        {"charges": [{"cause": "rent", "name": "a", "quantity": 1, "unit": "s", "dollars": 1}]},
        {"charges": [{"cause": "PUT", "name": "a", "quantity": 1, "unit": "s", "dollars": None}]},
    ],
)
def test_what_is_no_bill_is_said_to_be_none(data: object) -> None:
    with pytest.raises(FuncpipeError, match="not a bill"):
        Bill.from_dict(data)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Use(name="a", memory_mb=0),
        lambda: Use(name="a", memory_mb=128, run_ms=-1),
        lambda: Use(name="a", memory_mb=128, run_ms=1.5),  # type: ignore[arg-type]
        lambda: Use(name="a", memory_mb=128, requests={"POST": 1}),
        lambda: Use(name="a", memory_mb=128, requests={"PUT": -1}),
        lambda: Charge(cause="rent", name="a", quantity=1, unit="s", dollars=1.0),
        lambda: Charge(cause="PUT", name="a", quantity=1, unit="requests", dollars=math.nan),
        lambda: bill(LAMBDA, [], driver_requests={"POST": 1}),
        lambda: bill(LAMBDA, [], driver_bytes_down=-1),
        lambda: bill(LAMBDA, [], stored_byte_s=-1.0),
    ],
)
def test_what_cannot_have_happened_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"whole number|no request|one of|cannot be"):
        make()


def test_prices_without_a_source_are_named() -> None:
    assert {"price.put", "price.get"} <= set(unverified_prices(LAMBDA))
    assert "price.gb_s" not in unverified_prices(LAMBDA)
    assert "price.put" not in unverified_prices(platform_with({"price.put": 1e-6}))
