"""Plans: what the planner decides and the runtime executes, as versioned JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from funcpipe.errors import PlanError, PlatformError
from funcpipe.partitioner.jsonfile import read_json
from funcpipe.partitioner.limits import MOST_COUNT, is_count, is_version, shown

__all__ = ["Plan", "StagePlan", "balanced_cuts", "even_plan"]

VERSION = 1
SCHEDULES = ("gpipe", "1f1b")
METHODS = ("pipelined", "three-phase")


def _count(owner: str, name: str, value: object, *, least: int = 1) -> None:
    if not is_count(value, least):
        raise PlanError(
            f"{owner}: {name} is {shown(value)}; a whole number of at least {least} and at most "
            f"{MOST_COUNT:,} is needed"
        )


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """Layers ``first_layer`` to ``stop_layer - 1``, run by `replicas` functions.

    memory_mb: size of each function's memory tier; None leaves it to the platform. recompute:
    whether activations are computed again in the backward instead of being kept.
    """

    first_layer: int
    stop_layer: int
    replicas: int = 1
    memory_mb: int | None = None
    recompute: bool = False

    def __post_init__(self) -> None:
        _count("stage", "first_layer", self.first_layer, least=0)
        _count("stage", "stop_layer", self.stop_layer, least=self.first_layer + 1)
        _count("stage", "replicas", self.replicas)
        if self.memory_mb is not None:
            _count("stage", "memory_mb", self.memory_mb)
        if not isinstance(self.recompute, bool):
            raise PlanError(f"stage: recompute is {shown(self.recompute)}; expected true or false")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a job is run.

    stages: consecutive, from layer 0. micro_batch_size: samples. in_flight: micro-batches between
    forward and backward at the first stage under `1f1b`; None means the number of stages.
    predicted: what the planner said of it, as JSON; two plans are equal whatever was said of them.
    """

    stages: tuple[StagePlan, ...]
    micro_batch_size: int
    schedule: str = "gpipe"
    in_flight: int | None = None
    sync: str = "pipelined"
    predicted: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.predicted is not None and not isinstance(self.predicted, Mapping):
            raise PlanError(f"plan: predicted is {shown(self.predicted)}; expected a JSON object")
        if not isinstance(self.stages, list | tuple) or not all(
            isinstance(stage, StagePlan) for stage in self.stages
        ):
            raise PlanError(f"plan: stages is {shown(self.stages)}; expected a tuple of StagePlan")
        if not self.stages:
            raise PlanError("a plan has at least one stage; this one has none")
        expected = 0
        for number, stage in enumerate(self.stages):
            if stage.first_layer != expected:
                raise PlanError(
                    f"stage {number} begins at layer {stage.first_layer}; it must begin at layer "
                    f"{expected}, where the stage before it ends"
                )
            expected = stage.stop_layer
        _count("plan", "micro_batch_size", self.micro_batch_size)
        if self.in_flight is not None:
            _count("plan", "in_flight", self.in_flight)
        _choice("schedule", self.schedule, SCHEDULES)
        _choice("sync", self.sync, METHODS)

    @property
    def num_layers(self) -> int:
        return self.stages[-1].stop_layer

    @property
    def degrees(self) -> tuple[int, ...]:
        return tuple(stage.replicas for stage in self.stages)

    @property
    def num_functions(self) -> int:
        return sum(self.degrees)

    def to_dict(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self), "stages": [asdict(s) for s in self.stages]}

    @staticmethod
    def from_dict(data: object) -> Plan:
        """The inverse of `to_dict`; `PlanError` for anything that is not a plan of this version."""
        if not isinstance(data, Mapping):
            raise PlanError(f"a plan is a JSON object; found {type(data).__name__}")
        if not is_version(data.get("version"), VERSION):
            raise PlanError(
                f"plan version {shown(data.get('version'))} is not known; expected {VERSION}"
            )
        stages = data.get("stages")
        if not isinstance(stages, Sequence) or isinstance(stages, str):
            raise PlanError("a plan needs `stages`, a list of stages")
        rest = {name: value for name, value in data.items() if name not in ("version", "stages")}
        return _build(Plan, {**rest, "stages": tuple(_build(StagePlan, stage) for stage in stages)})

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Plan:
        """From a file; `PlanError` with its name for whatever is wrong with it."""
        try:
            return Plan.from_dict(read_json(path))
        except (PlanError, PlatformError) as error:
            raise PlanError(f"{path}: {error.message}") from error


def _choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise PlanError(f"plan: {name} is {shown(value)}; known: {', '.join(known)}")


_Kind = TypeVar("_Kind", Plan, StagePlan)


def _build(kind: type[_Kind], data: object) -> _Kind:
    name = kind.__name__
    if not isinstance(data, Mapping):
        raise PlanError(f"{name}: expected a JSON object; found {type(data).__name__}")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(map(str, data)) - known):
        raise PlanError(
            f"{name}: unknown field {shown(unknown[0])}; known: {', '.join(sorted(known))}"
        )
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if missing := sorted(needed - set(data)):
        raise PlanError(
            f"{name}: the field {missing[0]!r} is missing; known: {', '.join(sorted(known))}"
        )
    return kind(**data)


def balanced_cuts(weights: Sequence[float], num_stages: int) -> list[int]:
    """Cut points 0 = c_0 < ... < c_S = L so that the heaviest stage is as light as can be.

    `weights`: cost of each layer, any unit, not negative. Among equal choices the one whose
    stages are most alike (least sum of squares) wins. `PlanError` if there are fewer layers
    than stages.
    """
    num_layers = len(weights)
    _count("plan", "number of stages", num_stages)
    if num_stages > num_layers:
        plural = "" if num_layers == 1 else "s"
        raise PlanError(
            f"{num_stages} stages were asked for, but the model has {num_layers} layer{plural}; "
            f"use at most {num_layers} stage{plural}"
        )
    total = [0.0]
    for weight in weights:
        total.append(total[-1] + weight)
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [0])}
    for stage in range(1, num_stages + 1):
        reached = {}
        for stop in range(stage, num_layers - (num_stages - stage) + 1):
            reached[stop] = min(
                (max(heaviest, load), squares + load * load, [*cuts, stop])
                for start, (heaviest, squares, cuts) in best.items()
                if start < stop
                for load in (total[stop] - total[start],)
            )
        best = reached
    return best[num_layers][2]


def even_plan(
    weights: Sequence[float],
    *,
    num_stages: int,
    replicas: Sequence[int],
    micro_batch_size: int,
    schedule: str = "gpipe",
    in_flight: int | None = None,
    sync: str = "pipelined",
) -> Plan:
    """The simple choice: stages balanced by weight. `replicas`: one for all, or one per stage."""
    cuts = balanced_cuts(weights, num_stages)
    if len(replicas) not in (1, num_stages):
        raise PlanError(
            f"{len(replicas)} replica counts for {num_stages} stages; give one for all stages "
            f"or {num_stages} separated by commas"
        )
    degrees = list(replicas) * (num_stages if len(replicas) == 1 else 1)
    stages = tuple(
        StagePlan(first_layer=start, stop_layer=stop, replicas=degree)
        for start, stop, degree in zip(cuts, cuts[1:], degrees, strict=False)
    )
    return Plan(
        stages=stages,
        micro_batch_size=micro_batch_size,
        schedule=schedule,
        in_flight=in_flight,
        sync=sync,
    )
