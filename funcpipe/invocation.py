"""What a function is told when it is invoked: small, plain JSON, without credentials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from funcpipe.control import Control
from funcpipe.errors import FuncpipeError
from funcpipe.keys import Attempt, Run
from funcpipe.partitioner.plan import Plan
from funcpipe.schedule.program import Shape
from funcpipe.store.open import StoreSpec

__all__ = ["Invocation", "RunSpec", "shape_of"]

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What all functions of an attempt have in common.

    root: prefix of the run's keys. entry, digest: the bundle and the Job in it. trains: whether a
    stage has parameters to train. num_train, num_eval: samples. num_steps: of the whole run.
    settings: what the driver saw of the job, for functions to compare (`funcpipe.sameness`).
    if_absent: whether the store honours conditional writes (else leases are settled by waiting).
    wait_s: how long to wait for a peer's object. watch_s: least time between two looks at the
    control object. report_every: steps per report.
    """

    root: str
    attempt: int
    control_version: int
    plan: Plan
    trains: tuple[bool, ...]
    entry: str
    digest: str
    num_train: int
    num_eval: int
    num_steps: int
    store: StoreSpec
    if_absent: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    wait_s: float = 600.0
    watch_s: float = 1.0
    report_every: int = 1

    @property
    def run(self) -> Run:
        return Run(self.root)

    @property
    def keys(self) -> Attempt:
        return self.run.attempt(self.attempt)

    @property
    def control(self) -> Control:
        return Control(version=self.control_version, attempt=self.attempt)

    @property
    def shape(self) -> Shape:
        return shape_of(self.plan, self.trains)


def shape_of(plan: Plan, trains: tuple[bool, ...]) -> Shape:
    """What programs depend on. trains: whether a stage has parameters to train."""
    return Shape(
        degrees=plan.degrees,
        trains=trains,
        schedule=plan.schedule,
        in_flight=plan.in_flight,
        sync=plan.sync,
    )


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """One function's place in the run. `token` tells this invocation from others of its place."""

    spec: RunSpec
    stage: int
    replica: int
    token: str
    segment: int = 0

    @property
    def is_first(self) -> bool:
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        return self.stage == len(self.spec.plan.stages) - 1

    def encode(self) -> bytes:
        spec = {name: getattr(self.spec, name) for name in RunSpec.__dataclass_fields__}
        spec |= {"plan": self.spec.plan.to_dict(), "store": self.spec.store.to_dict()}
        place = {"stage": self.stage, "replica": self.replica, "segment": self.segment}
        return json.dumps({"format": FORMAT, "spec": spec, **place, "token": self.token}).encode()

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Invocation:
        """The inverse of `encode`, after JSON. `FuncpipeError` if it is of another format."""
        if data.get("format") != FORMAT:
            raise FuncpipeError(
                f"the invocation has format {data.get('format')!r}, this function knows {FORMAT}: "
                "driver and functions must be of one version; deploy again"
            )
        spec = dict(data["spec"])
        spec["plan"] = Plan.from_dict(spec["plan"])
        spec["store"] = StoreSpec.from_dict(spec["store"])
        spec["trains"] = tuple(spec["trains"])
        place = {name: data[name] for name in ("stage", "replica", "segment", "token")}
        return Invocation(spec=RunSpec(**spec), **place)
