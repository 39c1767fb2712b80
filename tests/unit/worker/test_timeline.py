"""What a worker remembers of its actions."""

from __future__ import annotations

import json
import threading
import time

import pytest

from funcpipe.clock import Clock
from funcpipe.report.critical import Ran
from funcpipe.schedule.action import parse
from funcpipe.schedule.execute import Start
from funcpipe.worker import timeline
from funcpipe.worker.tasks import Cost
from funcpipe.worker.timeline import Timeline


def start(token: str, pass_index: int = 0) -> Start:
    return Start(pass_index, parse(token))


def test_a_row_says_it_all_and_reads_back() -> None:
    # given an action with a cost
    kept = Timeline()
    kept.add(start("1RECV_F3", 7), 1.5, 2.25, Cost(0.0, 0.125, 0.5, 4))
    # then its row is plain JSON, and the report's reader finds everything in it
    (row,) = json.loads(json.dumps(kept.rows()))
    assert row == [7, "1RECV_F3", 1.5, 2.25, 0.0, 0.125, 0.5, 4]
    assert Ran.of(row) == Ran(
        pass_index=7,
        action=parse("1RECV_F3"),
        start_s=1.5,
        end_s=2.25,
        transfer_s=0.125,
        wait_s=0.5,
        misses=4,
    )


def test_seconds_are_the_platform_s_and_the_time_of_day_is_this_machine_s() -> None:
    now = [100.0]

    class Manual(Clock):
        def now(self) -> float:
            return now[0]

    before = time.time()
    kept, cost = Timeline(Manual()), Cost(clock=Manual())
    now[0] = 102.5
    with cost.user(), cost.transfer():
        now[0] = 104.0
    assert kept.now() == 4.0
    assert (cost.user_s, cost.transfer_s) == (1.5, 1.5)
    assert before <= kept.began_at <= time.time()


def test_rows_are_bounded_and_sums_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "KEPT", 3)
    kept = Timeline()
    for index in range(10):
        kept.add(start("0F0", index), 0.0, 1.0, Cost(user_s=1.0, transfer_s=0.5, wait_s=0.25))
    assert [row[0] for row in kept.rows()] == [7, 8, 9]
    assert (kept.user_s, kept.transfer_s, kept.wait_s) == (10.0, 5.0, 2.5)


def test_lanes_may_add_at_once() -> None:
    kept = Timeline()

    def lane(token: str) -> None:
        for index in range(500):
            kept.add(start(token, index), 0.0, 1.0, Cost(user_s=1.0))

    lanes = [threading.Thread(target=lane, args=(token,)) for token in ("0F0", "0B0", "0SEND_F0")]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    assert len(kept.rows()) == 1500
    assert kept.user_s == 1500.0
