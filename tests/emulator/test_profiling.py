"""A function that measures, on an emulated platform: under its limits, in its seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from funcpipe.driver.host import Exit
from funcpipe.emulator.host import LocalHost
from funcpipe.partitioner.platform import load_platform
from tests.unit.worker.profiled import Stored

from .helpers import eventually, processes_with

pytestmark = pytest.mark.timeout(120)

QUICK = {"time.cold_start_s": "0", "time.warm_start_s": "0", "network.latency_s": "0.001"}


def run(host: LocalHost, payload: bytes) -> Exit:
    host.start(payload, name="profile", memory_mb=1769)
    ended: list[Exit] = []

    def has_ended() -> bool:
        ended.extend(host.exits())
        return bool(ended)

    assert eventually(has_ended, within_s=90.0)
    return ended[0]


def test_a_model_is_measured_range_by_range_in_one_environment(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    platform = load_platform("aws-lambda", changes=QUICK)
    logs, writable = tmp_path / "logs", [tmp_path / "objects"]
    with LocalHost(platform=platform, log_folder=logs, writable=writable) as host:
        # When two functions measure the two halves, and a third is asked for what nobody knows
        for first, stop in ((0, 2), (2, 3)):
            ended = run(host, stored.task(first, stop).encode())
            assert (ended.code, ended.reason) == (0, "done"), ended.log_tail
        told = {**json.loads(stored.task().encode()), "task": "dance"}
        refused = run(host, json.dumps(told).encode())
    # then both have left what they saw, and the third says why it did nothing
    for first, stop in ((0, 2), (2, 3)):
        found = stored.said(stored.run.profile_result(f"t{first}-{stop}"))
        assert len(found["layers"]) == stop - first
        assert found["base_bytes"] > 100 << 20
        assert found["threads"] == 1
        assert found["transport"]["put_cpu_s"] > 0
    assert refused.code == 1
    assert "knows no task 'dance'" in refused.log_tail
    assert processes_with(str(tmp_path)) == []
