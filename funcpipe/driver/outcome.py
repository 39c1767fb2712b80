"""What is known about a run at its end, however it ended, as a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from funcpipe.calibration.observed import Held, Observed, observe
from funcpipe.driver.account import Account, Tell, by_operation
from funcpipe.driver.machine import DriverMachine
from funcpipe.driver.options import RunOptions
from funcpipe.driver.prepare import Prepared, layers_text
from funcpipe.emulator.dilation import Dilation
from funcpipe.emulator.host import LocalHost
from funcpipe.errors import FuncpipeError, Stopped, describe
from funcpipe.partitioner.pricing import Bill, unverified_prices
from funcpipe.report.summary import FunctionSummary, Summary
from funcpipe.store.usage import Usage

__all__ = ["Outcome", "summarise"]


_LATE_S = 0.5
_BEHIND = 0.05
_FULL = 0.1


@dataclass
class Outcome:
    """Filled in while the run goes on; whatever is missing at its end was not reached."""

    run_id: str
    job: str
    epochs: int
    prepared: Prepared
    options: RunOptions
    store_kind: str = ""
    if_absent: bool = True
    notes: list[str] = field(default_factory=list)
    machine: DriverMachine | None = None
    usage: Callable[[], Usage] | None = None
    model_path: Path | None = None
    error: FuncpipeError | None = None
    account: Account | None = None
    bill: Bill | None = None
    emulation: dict[str, Any] | None = None
    full_share: float = 0.0
    timeline: Mapping[str, Any] | None = None

    def emulated(self, host: LocalHost, dilation: Dilation, tell: Tell) -> None:
        """What runs the functions, and what of the platform is not enforced: told and kept."""
        platform = self.prepared.platform
        if not platform.limited:
            return
        self.emulation = {
            "platform": platform.name,
            "title": platform.title,
            "dilation": dilation.factor,
            "why": dilation.why,
            "enforced": list(host.limits.enforced),
            "missing": list(host.limits.missing),
        }
        tell("emulator", self.emulation)
        self.emulation["unverified"] = list(unverified_prices(platform))

    def close_account(self, tell: Tell) -> None:
        """The final bill, once nothing runs any more."""
        if self.account is None:
            return
        self.bill = self.account.close(tell)
        if self.prepared.platform.limited and self.account.late_s >= _LATE_S:
            self.notes.append(
                f"this machine took up to {self.account.late_s:.1f} s longer to start a function "
                "than the platform does; that is in the times, and not in the bill"
            )


def summarise(outcome: Outcome, seconds: Mapping[str, float]) -> Summary:
    """The run's summary. Requests and bytes are those of functions that came to their end."""
    machine, error = outcome.machine, outcome.error
    results = {} if machine is None else machine.results
    used = sum((Usage.from_dict(result["usage"]) for result in results.values()), Usage())
    driver = Usage() if outcome.usage is None else outcome.usage()
    status = _status(error)
    environments = _environments(results.values())
    notes = list(outcome.notes)
    if len(environments) > 1:
        notes.append(
            f"the functions differ in what bits depend on, so the same run may give others next "
            f"time: {environments}"
        )
    notes += _drifted(results)
    notes += _behind(results)
    if outcome.prepared.platform.limited and outcome.full_share > _FULL:
        notes.append(
            f"this machine's CPUs had nothing to spare in {outcome.full_share:.0%} of the time of "
            "training, so functions may have got less than their share, and times and dollars are "
            "too large by that: choose a larger --dilation, or let it do nothing else meanwhile"
        )
    bill = outcome.bill if outcome.prepared.platform.limited else None
    seen = _seen(outcome, results)
    return Summary(
        run_id=outcome.run_id,
        status=status,
        error=describe(error) if error is not None and status == "failed" else None,
        job=outcome.job,
        plan=outcome.prepared.plan.to_dict(),
        platform=outcome.options.platform,
        store=outcome.store_kind,
        if_absent=outcome.if_absent,
        notes=tuple(notes),
        environment=environments[0] if environments else {},
        steps=0 if machine is None else len(machine.losses),
        epochs=outcome.epochs,
        seconds=dict(seconds),
        losses=() if machine is None else tuple(machine.losses),
        metrics={} if machine is None else machine.metrics,
        requests=by_operation(used),
        requests_by_kind=used.to_dict()["requests"],
        bytes={"up": sum(used.bytes_up.values()), "down": sum(used.bytes_down.values())},
        driver_requests=by_operation(driver),
        functions=tuple(
            _function(outcome, place, result) for place, result in sorted(results.items())
        ),
        emulation=outcome.emulation,
        bill=None if bill is None else bill.to_dict(),
        measured=None if seen is None else seen.to_dict(),
        model_path=None if outcome.model_path is None else str(outcome.model_path),
    )


def _seen(
    outcome: Outcome, results: Mapping[tuple[int, int], Mapping[str, Any]]
) -> Observed | None:
    """What a step took; None if the run ended before there were any, or was on no platform."""
    prepared = outcome.prepared
    if outcome.timeline is None or not prepared.platform.limited:
        return None
    held = [
        Held(
            stage=stage,
            peak_bytes=result["peak_bytes"],
            base_bytes=result["base_bytes"],
            data_bytes=result["data_bytes"],
        )
        for (stage, _), result in results.items()
    ]
    return observe(outcome.timeline, held, prepared.plan, prepared.platform)


def _status(error: FuncpipeError | None) -> str:
    if error is None:
        return "done"
    return "stopped" if isinstance(error, Stopped) else "failed"


def _drifted(results: Mapping[tuple[int, int], Mapping[str, Any]]) -> Iterator[str]:
    """Warnings about stages whose replicas do not hold the same bits at the end."""
    for what, name in (("weights", "parameters"), ("buffers", "buffers")):
        digests: dict[int, set[str]] = {}
        for (stage, _), result in results.items():
            digests.setdefault(stage, set()).add(result[what])
        for stage in sorted(stage for stage, found in digests.items() if len(found) > 1):
            yield (
                f"the replicas of stage {stage} ended with different {name}: a layer changes them "
                "by itself, from the micro-batches that it sees. The exported model is the first "
                "replica's; the metrics are of all of them together. Use one replica there"
            )


def _behind(results: Mapping[tuple[int, int], Mapping[str, Any]]) -> Iterator[str]:
    """A warning when this machine could not move bytes as fast as the emulated network."""
    links = [result["link"] for result in results.values() if result.get("link")]
    taken_s, late_s = (sum(link[part] for link in links) for part in (0, 1))
    if late_s > _BEHIND * taken_s:
        yield (
            f"requests took {late_s / taken_s:.0%} longer than on the emulated network, because "
            "this machine or its store is busy: times are too long by that; choose a larger "
            "--dilation"
        )


def _environments(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The different settings that functions ran under, of those that results' bits depend on."""
    found: list[dict[str, Any]] = []
    for result in results:
        one = {name: result[name] for name in ("threads", "capability", "torch")}
        if one not in found:
            found.append(one)
    return found


def _function(
    outcome: Outcome, place: tuple[int, int], result: Mapping[str, Any]
) -> FunctionSummary:
    stage, replica = place
    plan, account, name = outcome.prepared.plan, outcome.account, f"stage{stage}-replica{replica}"
    usage = Usage.from_dict(result["usage"])
    measured = {
        name: result[name]
        for name in (
            "seconds",
            "compute_s",
            "waiting_s",
            "transfer_s",
            "peak_bytes",
            "base_bytes",
            "data_s",
            "data_bytes",
            "start_s",
        )
    }
    return FunctionSummary(
        stage=stage,
        replica=replica,
        layers=layers_text(plan, stage),
        requests=sum(by_operation(usage).values()),
        memory_mb=plan.stages[stage].memory_mb,
        cold_starts=None if account is None else account.cold_starts[name],
        dollars=None if outcome.bill is None else outcome.bill.by_name().get(name),
        **measured,
    )
