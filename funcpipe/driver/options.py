"""What a user may choose about a run, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from funcpipe.errors import PlanError, PlatformError, StoreError
from funcpipe.partitioner.plan import Plan

__all__ = ["PLATFORMS", "RunOptions"]

PLATFORMS = ("local",)
SERVERS = ("auto", "minio", "seaweedfs", "juicefs")
"""Stores that are started for the run; anything else is a place that already exists."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """plan: run exactly this; the other plan fields must then be left alone.

    stages, replicas, micro_batch_size: None lets funcpipe choose. store: ``auto``, ``minio``,
    ``seaweedfs``, ``juicefs``, a directory, or an S3 URL (with `endpoint` and `region` unless it
    is AWS). steps: stop after so many training steps. threads: of each function.
    """

    plan: Plan | None = None
    stages: int | None = None
    replicas: tuple[int, ...] | None = None
    micro_batch_size: int | None = None
    schedule: str | None = None
    in_flight: int | None = None
    sync: str | None = None
    platform: str = "local"
    store: str = "auto"
    endpoint: str | None = None
    region: str | None = None
    run_dir: Path | None = None
    steps: int | None = None
    threads: int = 1
    report_every: int = 1

    @staticmethod
    def of(fields: Mapping[str, Any]) -> RunOptions:
        """From keywords; an unknown one is named, `replicas` may be one number."""
        known = RunOptions.__dataclass_fields__
        for name in fields:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise PlanError(f"unknown option {name!r}{hint}; known: {', '.join(known)}")
        chosen = dict(fields)
        replicas = chosen.get("replicas")
        if isinstance(replicas, int):
            chosen["replicas"] = (replicas,)
        elif isinstance(replicas, str):
            raise PlanError(f"replicas is {replicas!r}; give one number, or one per stage: (2, 1)")
        elif replicas is not None:
            chosen["replicas"] = tuple(replicas)
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
        for name, value in counts.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise PlanError(f"{name} is {value!r}; a whole number is needed")
            if value is not None and value < 1:
                raise PlanError(f"{name} is {value}; at least 1 is needed")
        if self.in_flight is not None and self.schedule != "1f1b" and self.plan is None:
            raise PlanError("in_flight belongs to the schedule 1f1b: choose that, or leave it out")
        chosen = [name for name in _PLANNED if getattr(self, name) is not None]
        if self.plan is not None and chosen:
            raise PlanError(
                f"a plan was given, and {', '.join(chosen)} beside it: the plan says it all; "
                "leave one of the two out"
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


_PLANNED = ("stages", "replicas", "micro_batch_size", "schedule", "in_flight", "sync")
