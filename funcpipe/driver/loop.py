"""The driver's IO loop: looks at functions and store, feeds the state machine, does as it says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from funcpipe.clock import Clock
from funcpipe.control import publish
from funcpipe.driver.account import Account
from funcpipe.driver.host import Exit, FunctionHost
from funcpipe.driver.load import Load
from funcpipe.driver.lost import Exited, Place
from funcpipe.driver.machine import (
    Announce,
    DriverMachine,
    Event,
    FaultSeen,
    Finish,
    Instruction,
    Interrupted,
    ReadFault,
    ReadResult,
    ReportSeen,
    ResultSeen,
    StopAll,
)
from funcpipe.errors import ObjectMissing, StoreError, Throttled
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.store.base import ObjectStore

__all__ = ["Loop", "Tell"]

Tell = Callable[[str, Mapping[str, Any]], None]
"""Takes an event's name and its fields."""

# Looks into the store, in platform seconds: each costs a request.
LEAST_POLL_S, MOST_POLL_S = 0.03, 0.5
FIRST_POLL_S = 0.25  # until the first report: functions take seconds to start
FAULT_POLL_S = 1.0
# Looks at the host cost nothing: how soon the end of a function is noticed, in real seconds.
HOST_POLL_S = 0.1
# A start that is answered with 429 is tried again; those that run meanwhile wait, and cost.
THROTTLED_FIRST_S, THROTTLED_MOST_S, THROTTLED_PATIENCE_S = 0.5, 8.0, 120.0


class Loop:
    """Starts the functions of a run and stays until it is over."""

    def __init__(
        self,
        *,
        spec: RunSpec,
        machine: DriverMachine,
        host: FunctionHost,
        store: ObjectStore,
        tell: Tell,
        account: Account,
        dilation: float,
        interrupted: threading.Event,
    ) -> None:
        self._spec = spec
        self._machine = machine
        self._host = host
        self._store = store
        self._tell = tell
        self._account = account
        self._clock = Clock(dilation)
        self.load = Load()
        self._interrupted = interrupted
        self._places: dict[str, Place] = {}
        self._next_report = dict.fromkeys(machine.reporters, 0)
        self._poll_s = FIRST_POLL_S
        self._reported_at = 0.0
        self._report_due = 0.0
        self._fault_due = self._clock.now() + FAULT_POLL_S

    def run(self, invocations: list[Invocation]) -> None:
        """Until done; raises the error that ended the run otherwise."""
        for one in invocations:
            if not self._machine.finished:
                self._start(one)
        while not self._machine.finished:
            self._step(self._poll_s)
        self._account.tell_ended(self._tell)
        if self._machine.error is not None:
            raise self._machine.error

    def _start(self, one: Invocation) -> None:
        """Invoke a function; while the platform refuses for want of room, wait and look around."""
        memory_mb = one.spec.plan.stages[one.stage].memory_mb
        name = f"stage{one.stage}-replica{one.replica}"
        began, pause_s = self._clock.now(), THROTTLED_FIRST_S
        while True:
            try:
                identity = self._host.start(one.encode(), name=name, memory_mb=memory_mb)
                break
            except Throttled as error:
                waited_s = self._clock.now() - began
                if waited_s >= THROTTLED_PATIENCE_S:
                    raise error.at(stage=one.stage, replica=one.replica) from None
                self._tell("throttled", {"name": name, "waited_s": round(waited_s, 3)})
                until = self._clock.now() + pause_s
                while self._clock.now() < until:
                    self._step(pause_s)
                    if self._machine.finished:
                        return
                pause_s = min(2 * pause_s, THROTTLED_MOST_S)
        self._places[identity] = (one.stage, one.replica)
        self._tell("function_started", {"stage": one.stage, "replica": one.replica})

    def _step(self, poll_s: float) -> None:
        """Look around; if nothing has happened, wait a little, but not long for the host."""
        self.load.look()
        if not self._look() and not self._machine.finished:
            self._interrupted.wait(min(poll_s * self._clock.dilation, HOST_POLL_S))

    def _look(self) -> bool:
        """One round over everything that may have happened; whether anything had."""
        if self._interrupted.is_set():
            self._handle(Interrupted("interrupted"))
            return True
        busy, now = False, self._clock.now()
        if now >= self._report_due:
            for place in list(self._next_report):
                busy |= self._read_report(place)
            self._report_due = self._clock.now() + (0.0 if busy else self._poll_s)
        for ended in self._host.exits():
            busy = True
            self._ended(ended)
        self._account.tell_ended(self._tell)
        if now >= self._fault_due:
            self._fault_due = self._clock.now() + FAULT_POLL_S
            self._handle(FaultSeen(self._read(self._spec.keys.fault())))
        return busy

    def _ended(self, ended: Exit) -> None:
        place = self._places[ended.id]
        while self._read_report(place):
            pass
        self._handle(Exited(place, ended.reason, ended.code, ended.log_tail, ended.detail))

    def _read_report(self, place: Place) -> bool:
        """The next report of a function, if it is there: one GET, and a DELETE when it was."""
        if place not in self._next_report:
            return False
        key = self._spec.keys.report(*place, self._next_report[place])
        report = self._read(key)
        if report is None:
            return False
        self._next_report[place] += 1
        self._store.delete([key])
        if place == self._machine.reporters[0]:
            self._pace()
        self._handle(ReportSeen(place, report["entries"]))
        return True

    def _pace(self) -> None:
        """Look twice in the time between two reports: often enough, and a miss costs a request."""
        now = self._clock.now()
        if self._reported_at:
            between = now - self._reported_at
            self._poll_s = min(MOST_POLL_S, max(LEAST_POLL_S, between / 2))
        self._reported_at = now

    def _read(self, key: str) -> Any:
        try:
            return json.loads(bytes(self._store.get(key)))
        except ObjectMissing:
            return None
        except ValueError:
            # Its writer was killed in the middle; some stores keep what had come by then.
            return None

    def _handle(self, event: Event) -> None:
        for instruction in self._machine.handle(event):
            self._do(instruction)

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Announce(name, fields):
                self._announce(name, {**fields, "alive": self._host.alive()})
            case ReadFault(exited):
                self._handle(FaultSeen(self._read(self._spec.keys.fault()), exited))
            case ReadResult(place):
                self._handle(ResultSeen(place, self._read(self._spec.keys.result(*place))))
            case StopAll(reason):
                self._stop(reason)
            case Finish():
                pass

    def _announce(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "step":
            bill = self._account.bill()
            fields = {**fields, "requests": bill.num_requests}
            if self._account.has_prices:
                parts = {"by_cause": bill.by_cause(), "by_name": bill.by_name()}
                fields |= {"dollars": bill.total, **parts}
        self._tell(name, fields)

    def _stop(self, reason: str) -> None:
        """Tell blocked workers through the store, then end what is still there."""
        try:
            publish(
                self._store,
                self._spec.run,
                self._spec.control.next(state="stop", reason=reason[:500]),
            )
        except StoreError as error:
            self._tell("note", {"text": f"could not publish the stop: {error}", "level": "warning"})
        self._host.stop()
