"""An emulated platform's limits, held against functions that break them, or nearly so."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from funcpipe.driver.host import Execution, Exit
from funcpipe.emulator import capability, limits
from funcpipe.emulator.cgroups import Cgroups
from funcpipe.emulator.host import LocalHost
from funcpipe.errors import PayloadTooLarge, PlanError, Throttled
from funcpipe.partitioner.platform import load_platform

from .helpers import eventually, left_of, processes_with

pytestmark = pytest.mark.timeout(180)

TIER_MB = 512
QUICK = {"time.cold_start_s": "0", "time.warm_start_s": "0"}


def make_host(
    folder: Path, changes: dict[str, str] | None = None, platform: str = "aws-lambda", **more: Any
) -> LocalHost:
    return LocalHost(
        platform=load_platform(platform, changes=QUICK | (changes or {})),
        log_folder=folder / "logs",
        work_folder=folder / "work",
        environment={"PYTHONPATH": str(Path(__file__).parent)},
        entry="fake_function",
        **more,
    )


def start(host: LocalHost, name: str = "f", memory_mb: int = TIER_MB, **task: Any) -> str:
    return host.start(json.dumps(task).encode(), name=name, memory_mb=memory_mb)


def ends(host: LocalHost, count: int = 1, within_s: float = 30.0) -> dict[str, Exit]:
    """The next exits, by name."""
    found: list[Exit] = []
    assert eventually(lambda: found.extend(host.exits()) or len(found) >= count, within_s=within_s)
    assert len(found) == count
    return {one.name: one for one in found}


def run(host: LocalHost, memory_mb: int, *tasks: dict[str, Any]) -> dict[str, Any]:
    """What a function said that did these tasks and ended well."""
    start(host, memory_mb=memory_mb, do="several", tasks=tasks)
    ended = ends(host)["f"]
    assert ended.reason == "done", (ended, ended.log_tail)
    said: dict[str, Any] = json.loads(ended.log_tail.splitlines()[-1])
    return said


def without_cgroups(patch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> Cgroups:
        return Cgroups({}, dict.fromkeys(("cpu", "memory"), "this test wants none"))

    patch.setattr(limits, "open_cgroups", none)
    patch.setattr(capability, "open_cgroups", none)


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["cgroups", "watch"])
def test_memory_over_the_tier_is_out_of_memory_and_under_it_is_not(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    if by == "watch":
        without_cgroups(monkeypatch)
    with make_host(tmp_path, {"cpu.vcpu": "1"}) as host:
        if by == "cgroups" and not host.limits.memory:
            pytest.skip(f"no control groups here: {host.limits.missing}")
        assert host.limits.memory == (by == "cgroups")
        said = [text for text in host.limits.missing if text.startswith("vcpu")]
        assert bool(said) == (by == "watch")
        # when functions take 5 % less or more than they have, themselves or by a child
        over, under = TIER_MB * 105 // 100, TIER_MB * 95 // 100
        for name, to_mb, in_child in (
            ("over", over, False),
            ("under", under, False),
            ("child over", over, True),
            ("child under", under, True),
        ):
            start(host, name=name, do="allocate", to_mb=to_mb, in_child=in_child)
        ended = ends(host, 4)
    # then
    reasons = {name: one.reason for name, one in ended.items()}
    assert reasons == {
        "over": "out-of-memory",
        "under": "done",
        "child over": "out-of-memory",
        "child under": "done",
    }, {name: (one.detail, one.log_tail) for name, one in ended.items()}
    for name in ("over", "child over"):
        assert re.fullmatch(
            rf"it (held \d+ MB of|needed more than its) {TIER_MB} MB of AWS Lambda.*",
            ended[name].detail + " of"[:0],
        ) or f"{TIER_MB} MB" in ended[name].detail
    assert ended["under"].detail == ""
