"""What a user may choose about a run, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from funcpipe.errors import PlanError, PlatformError, StoreError
from funcpipe.partitioner.figures import as_text
from funcpipe.partitioner.limits import MOST_COUNT, is_count, shown
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.profile import ModelProfile

__all__ = ["PLATFORMS", "SHAPE", "RunOptions"]

PLATFORMS = ("local",)
RECOMPUTE = ("none", "all")
SERVERS = ("auto", "minio", "seaweedfs", "juicefs")
"""Stores that are started for the run; anything else is a place that already exists."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """plan: run exactly this; the other plan fields must then be left alone. profile: what it was
    made with, if that is known; only written down in the run's folder.

    stages, replicas, micro_batch_size: None lets funcpipe choose. store: ``auto``, ``minio``,
    ``seaweedfs``, ``juicefs``, a directory, or an S3 URL (with `endpoint` and `region` unless it
    is AWS). recompute: ``none``, ``all``, or the numbers of the stages that compute activations
    again in the backward instead of keeping them. steps: stop after so many training steps.
    threads: of each function; None: what the platform gives a function of its memory.

    emulate: the platform that ``local`` emulates, by name or as a file; ``none``: no limits and no
    prices. set: figures of it to change, such as {"network.latency_s": "0.05"}. memory_mb: of each
    function, or one per stage (None: the platform's default). dilation: how much slower than real
    time it runs (None: as slow as this machine needs). emulate_seed: which invocations the
    platform delivers twice.
    """

    plan: Plan | None = None
    stages: int | None = None
    replicas: tuple[int, ...] | None = None
    micro_batch_size: int | None = None
    schedule: str | None = None
    in_flight: int | None = None
    sync: str | None = None
    recompute: str | tuple[int, ...] | None = None
    memory_mb: tuple[int, ...] | None = None
    platform: str = "local"
    emulate: str = "aws-lambda"
    set: Mapping[str, str] = field(default_factory=dict)
    dilation: float | None = None
    emulate_seed: int = 0
    store: str = "auto"
    endpoint: str | None = None
    region: str | None = None
    run_dir: Path | None = None
    steps: int | None = None
    threads: int | None = None
    report_every: int = 1
    profile: ModelProfile | None = None

    @staticmethod
    def of(fields: Mapping[str, Any]) -> RunOptions:
        """From keywords; an unknown one is named, `replicas` may be one number."""
        known = RunOptions.__dataclass_fields__
        for name in fields:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise PlanError(f"unknown option {shown(name)}{hint}; known: {', '.join(known)}")
        chosen = dict(fields)
        for name in ("replicas", "memory_mb"):
            value = chosen.get(name)
            if isinstance(value, int):
                chosen[name] = (value,)
            elif value is not None and not (isinstance(value, list | tuple) and value):
                raise PlanError(
                    f"{name} is {shown(value)}; give one number, or one per stage: (2, 1)"
                )
            elif value is not None:
                chosen[name] = tuple(value)
        chosen["recompute"] = _stage_numbers(chosen.get("recompute"))
        if isinstance(chosen.get("emulate"), Path):
            chosen["emulate"] = str(chosen["emulate"])
        if isinstance(chosen.get("set"), Mapping):
            chosen["set"] = {path: as_text(value) for path, value in chosen["set"].items()}
        if chosen.get("run_dir") is not None:
            chosen["run_dir"] = Path(chosen["run_dir"])
        return RunOptions(**chosen)

    def __post_init__(self) -> None:
        if self.platform not in PLATFORMS:
            raise PlatformError(
                f"unknown platform {self.platform!r}; known: {', '.join(PLATFORMS)}"
            )
        _check_store(self.store, remote=bool(self.endpoint or self.region))
        counts = {
            "stages": self.stages,
            "micro_batch_size": self.micro_batch_size,
            "in_flight": self.in_flight,
            "steps": self.steps,
            "threads": self.threads,
            "report_every": self.report_every,
        }
        counts |= {f"replicas[{i}]": count for i, count in enumerate(self.replicas or ())}
        counts |= {f"memory_mb[{i}]": size for i, size in enumerate(self.memory_mb or ())}
        for name, value in counts.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise PlanError(f"{name} is {shown(value)}; a whole number is needed")
            if value is not None and value < 1:
                raise PlanError(f"{name} is {shown(value)}; at least 1 is needed")
            if value is not None and value > MOST_COUNT:
                raise PlanError(f"{name} is {shown(value)}; at most {MOST_COUNT:,} is possible")
        self._check_emulation()
        if not isinstance(self.profile, ModelProfile | None):
            raise PlanError(f"profile is {shown(self.profile)}; a ModelProfile or None is needed")
        if self.in_flight is not None and self.schedule != "1f1b" and self.plan is None:
            raise PlanError("in_flight belongs to the schedule 1f1b: choose that, or leave it out")
        _check_recompute(self.recompute)
        chosen = [name for name in SHAPE if getattr(self, name) is not None]
        if self.plan is not None and chosen:
            raise PlanError(
                f"a plan was given, and {', '.join(chosen)} beside it: the plan says it all; "
                "leave one of the two out"
            )

    def _check_emulation(self) -> None:
        if self.dilation is not None and not (
            isinstance(self.dilation, int | float)
            and not isinstance(self.dilation, bool)
            and 1 <= self.dilation <= 1000
        ):
            raise PlatformError(
                f"dilation is {shown(self.dilation)}; a number from 1 to 1000 is needed (2: "
                "emulated time runs at half of real speed), or None for what this machine needs"
            )
        if isinstance(self.emulate_seed, bool) or not isinstance(self.emulate_seed, int):
            raise PlatformError(
                f"emulate_seed is {shown(self.emulate_seed)}; a whole number is needed"
            )
        if not isinstance(self.set, Mapping) or not all(
            isinstance(text, str) for pair in self.set.items() for text in pair
        ):
            raise PlatformError(
                f"set is {shown(self.set)}; figures to change are given as a mapping, such as "
                '{"network.latency_s": 0.05}'
            )
        if not isinstance(self.emulate, str):
            raise PlatformError(
                f"emulate is {shown(self.emulate)}; the name or the file of a platform is needed"
            )
        limits = {"set": self.set, "memory_mb": self.memory_mb, "dilation": self.dilation}
        if self.emulate == "none" and (given := [name for name, value in limits.items() if value]):
            raise PlatformError(
                f"{' and '.join(given)} with emulate='none', which stands for no platform and no "
                "limits: choose a platform, or leave the rest out"
            )


def _stage_numbers(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _check_recompute(value: object) -> None:
    if value is None or (isinstance(value, str) and value in RECOMPUTE):
        return
    if (
        not isinstance(value, tuple)
        or not value
        or not all(is_count(number, 0) for number in value)
        or len(set(value)) < len(value)
    ):
        raise PlanError(
            f"recompute is {shown(value)}; give 'none', 'all', or the numbers of the stages, each "
            "once, counted from 0: (0, 2)"
        )


def _check_store(store: str, *, remote: bool) -> None:
    if remote and not store.startswith("s3://"):
        raise StoreError(
            f"--endpoint and --region belong to an S3 URL such as s3://bucket/prefix, not to the "
            f"store {store!r}"
        )
    if store.startswith("memory:"):
        raise StoreError("the memory store is for one process; functions cannot reach it")
    near = get_close_matches(store, SERVERS, n=1, cutoff=0.75)
    if store not in SERVERS and near and not Path(store).is_dir():
        raise StoreError(
            f"unknown store {store!r}; did you mean {near[0]!r}? For a directory of that name "
            f"write ./{store}"
        )
    if "://" in store and not store.startswith(("s3://", "file://")):
        raise StoreError(
            f"unknown store {store!r}; give {', '.join(SERVERS)}, a directory, or s3://bucket/prefix"
        )


SHAPE = ("stages", "replicas", "micro_batch_size", "schedule", "in_flight", "sync", "recompute")
"""What makes a simple plan, of stages that are alike; without any of it one is searched for."""
