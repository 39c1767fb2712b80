from __future__ import annotations

import json
from typing import Any

import pytest

from funcpipe.errors import FuncpipeError
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.partitioner.plan import Plan, StagePlan
from funcpipe.store.open import StoreSpec


def make_spec(*, num_stages: int = 2, **changes: Any) -> RunSpec:
    plan = Plan(
        stages=tuple(
            StagePlan(first_layer=10 * s, stop_layer=10 * s + 10, replicas=8, memory_mb=1769)
            for s in range(num_stages)
        ),
        micro_batch_size=16,
        schedule="1f1b",
        in_flight=3,
        sync="three-phase",
    )
    fields: dict[str, Any] = {
        "root": "runs/20261130-180305-047b27",
        "attempt": 2,
        "control_version": 5,
        "plan": plan,
        "trains": (True,) * num_stages,
        "entry": "package.module:job",
        "digest": "d" * 64,
        "num_train": 60_000,
        "num_eval": 10_000,
        "num_steps": 123_456,
        "store": StoreSpec(
            url="s3://bucket/prefix", endpoint="http://127.0.0.1:9000", region="us-east-1"
        ),
        "if_absent": False,
        "wait_s": 12.5,
        "watch_s": 0.5,
        "report_every": 7,
    }
    return RunSpec(**(fields | changes))


def make_invocation(**changes: Any) -> Invocation:
    fields: dict[str, Any] = {
        "spec": make_spec(),
        "stage": 1,
        "replica": 7,
        "token": "0123456789abcdef" * 2,
        "segment": 4,
    }
    return Invocation(**(fields | changes))


def test_what_is_encoded_comes_back() -> None:
    one = make_invocation()
    assert Invocation.from_dict(json.loads(one.encode())) == one
    # none of its fields was left at its default, which a forgotten one would come back as
    fields = RunSpec.__dataclass_fields__
    assert all(getattr(one.spec, name) != item.default for name, item in fields.items())


def test_another_format_is_refused() -> None:
    data = json.loads(make_invocation().encode())
    for found in (data["format"] + 1, None):
        with pytest.raises(FuncpipeError, match=rf"format {found}, this function knows 1.*deploy"):
            Invocation.from_dict({**data, "format": found})


def test_the_payload_of_32_stages_is_small() -> None:
    # the least that a platform takes is 128 KB, and it is written to logs
    assert len(make_invocation(spec=make_spec(num_stages=32)).encode()) < 4096


def test_the_payload_says_where_the_store_is_and_nothing_of_its_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-key")
    payload = make_invocation().encode()
    assert b"s3://bucket/prefix" in payload
    assert b"-key" not in payload
    assert set(json.loads(payload)["spec"]["store"]) == {"url", "endpoint", "region"}


def test_a_function_knows_its_place() -> None:
    places = [make_invocation(spec=make_spec(num_stages=3), stage=stage) for stage in range(3)]
    assert [one.is_first for one in places] == [True, False, False]
    assert [one.is_last for one in places] == [False, False, True]
    alone = make_invocation(spec=make_spec(num_stages=1), stage=0)
    assert (alone.is_first, alone.is_last) == (True, True)


def test_the_shape_and_the_control_object_are_those_of_the_plan_and_the_attempt() -> None:
    spec = make_spec(trains=(False, True))
    shape = spec.shape
    assert (shape.degrees, shape.trains) == ((8, 8), (False, True))
    assert (shape.schedule, shape.in_flight, shape.sync) == ("1f1b", 3, "three-phase")
    assert (spec.control.version, spec.control.attempt) == (5, 2)
    assert spec.keys.lease(1, 7, 4) == "runs/20261130-180305-047b27/a0002/lease/1.7.4"
