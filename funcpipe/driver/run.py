"""One run from its options to its summary: every resource it takes is given back."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from funcpipe.driver.account import Account
from funcpipe.driver.export import export_model
from funcpipe.driver.loop import Loop, Tell
from funcpipe.driver.machine import DriverMachine
from funcpipe.driver.options import RunOptions
from funcpipe.driver.outcome import Outcome, summarise
from funcpipe.driver.place import Place, known_secrets, open_place, sweep
from funcpipe.driver.platform import dilation_for, host_for
from funcpipe.driver.prepare import ONE_AT_A_TIME, Prepared, prepare, upload
from funcpipe.driver.runclock import RunClock
from funcpipe.driver.signals import Signals
from funcpipe.driver.timelines import timelines, write_timelines
from funcpipe.errors import FuncpipeError, JobError, Stopped
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.locate import LoadedJob
from funcpipe.report.events import EventLog
from funcpipe.report.summary import Summary, write_summary
from funcpipe.store.meter import Metered
from funcpipe.store.probe import probe

__all__ = ["execute"]

_IGNORES_CONDITIONS = (
    "this store IGNORES conditional writes: a function that is started twice is told apart by "
    "waiting instead, which is weaker, and two drivers on one run would not notice each other"
)

Listener = Callable[[Mapping[str, Any]], None]
"""Takes one event, as it is written to the run folder."""


def execute(loaded: LoadedJob, options: RunOptions, *, listener: Listener | None = None) -> Summary:
    """Train the job; its summary, which also lies in the run folder.

    Raises what ended the run if it was not its success; by then nothing of it is running or
    stored any more, and the run folder holds events, logs and a summary that says what happened.
    Wrong jobs, plans and models are refused before a folder is made or a server started.
    """
    clock = RunClock()
    with Signals() as signals:
        with clock.phase("setup"), signals.breaking_in(), ONE_AT_A_TIME:
            prepared = prepare(loaded, options)
        run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        folder = _make_folder(options.run_dir or Path("runs") / run_id)
        outcome = Outcome(
            run_id=run_id,
            job=loaded.ref,
            epochs=loaded.job.epochs,
            prepared=prepared,
            options=options,
        )
        return _recorded(outcome, folder, clock, signals, listener)


def _recorded(
    outcome: Outcome, folder: Path, clock: RunClock, signals: Signals, listener: Listener | None
) -> Summary:
    """Run it, and write down in `folder` what happens and how it ended, whatever that is."""
    prepared, options = outcome.prepared, outcome.options
    log = _open_log(folder)

    def tell(kind: str, fields: Mapping[str, Any]) -> None:
        entry = {"kind": kind, "t": round(clock.elapsed(), 3), **fields}
        if kind == "step":
            clock.step_done()
        try:
            log.append(entry)
        except OSError as error:
            raise FuncpipeError(f"cannot write {log.path}: {error.strerror}") from error
        if listener is not None:
            listener(entry)

    cause: BaseException | None = None
    try:
        prepared.plan.save(folder / "plan.json")
        _save_json(folder / "platform.json", prepared.platform.to_dict())
        if options.profile is not None:
            options.profile.save(folder / "profile.json")
        started = {"run_id": outcome.run_id, "job": outcome.job, "folder": str(folder)}
        tell("run_started", started | {"platform": options.platform, "store": options.store})
        tell("plan", {"plan": prepared.plan.to_dict(), "steps": prepared.num_steps})
        _run(outcome, folder, clock, tell, signals)
    except BaseException as error:  # noqa: BLE001 - raised again below, as ours
        cause, outcome.error = error, _as_ours(error)
    try:
        outcome.close_account(tell)
    except (OSError, FuncpipeError) as error:
        cause, outcome.error = cause or error, outcome.error or _as_ours(error)
    clock.close()
    summary = summarise(outcome, clock.phases)
    try:
        write_summary(summary, folder / "summary.json", secrets=known_secrets())
        tell("run_ended", {"status": summary.status})
    except (OSError, FuncpipeError) as error:
        # What ended the run comes before what cannot be written about it.
        cause, outcome.error = cause or error, outcome.error or _as_ours(error)
    finally:
        log.close()
    if outcome.error is not None:
        raise outcome.error from (None if cause is outcome.error else cause)
    return summary


def _run(outcome: Outcome, folder: Path, clock: RunClock, tell: Tell, signals: Signals) -> None:
    """Everything between an empty store and an exported model.

    On leaving, whatever was taken is given back, and no signal breaks into that.
    """
    prepared, options = outcome.prepared, outcome.options
    with ExitStack() as stack, signals.breaking_in():
        with clock.phase("setup"):
            place = open_place(options, stack)
            outcome.store_kind = place.kind
            store = Metered(place.spec.open(credentials=place.credentials))
            stack.callback(store.close)
            outcome.usage = store.counts
        try:
            with clock.phase("setup"), ONE_AT_A_TIME:
                spec = _fill(outcome, place, store, stack, tell)
            dilation = dilation_for(
                prepared.plan,
                prepared.platform,
                options,
                store=place.kind,
                largest=prepared.largest,
            )
            with clock.phase("setup"):
                host = host_for(options, prepared.platform, dilation, place, folder / "logs")
            stack.callback(host.close)
            outcome.emulated(host, dilation, tell)
            outcome.account = account = Account(
                prepared.platform, host, driver=store.counts, now=clock.elapsed
            )
            machine = outcome.machine = _machine_for(prepared)
            loop = Loop(
                spec=spec,
                machine=machine,
                host=host,
                store=store,
                tell=tell,
                account=account,
                dilation=dilation.factor,
                interrupted=signals.interrupted,
            )
            slowed = clock.slowed(dilation.factor)
            with slowed, clock.phase("training"), signals.left_to_the_loop():
                loop.run(_invocations(spec))
            outcome.full_share = loop.load.full_share
            outcome.timeline = timelines(
                spec,
                machine.results,
                batch_size=prepared.loaded.job.batch_size,
                dilation=dilation.factor,
            )
            write_timelines(folder / "timeline.json", outcome.timeline)
            with clock.phase("export"):
                outcome.model_path = export_model(
                    store,
                    spec.run,
                    num_layers=prepared.plan.num_layers,
                    path=folder / "model.safetensors",
                )
        except FuncpipeError as error:
            explained = place.explain(error)
            if explained is error:
                raise
            raise explained from error


def _fill(outcome: Outcome, place: Place, store: Metered, stack: ExitStack, tell: Tell) -> RunSpec:
    """Put into the store what functions begin with."""
    root = f"runs/{outcome.run_id}"
    capabilities = probe(store, root)
    if not place.own:
        stack.callback(sweep, store, root, tell)
    outcome.if_absent = capabilities.if_absent
    tell("store_ready", {"store": place.kind, "if_absent": capabilities.if_absent})

    def note(text: str) -> None:
        outcome.notes.append(text)
        tell("note", {"text": text, "level": "warning"})

    if not capabilities.if_absent:
        note(_IGNORES_CONDITIONS)
    for caveat in outcome.prepared.caveats:
        note(caveat)
    return upload(
        outcome.prepared,
        store,
        root=root,
        spec=place.spec,
        if_absent=capabilities.if_absent,
        report_every=outcome.options.report_every,
        note=note,
    )


def _machine_for(prepared: Prepared) -> DriverMachine:
    return DriverMachine(
        prepared.plan.degrees,
        num_steps=prepared.num_steps,
        mean_loss=prepared.loaded.job.loss_reduction == "mean",
    )


def _invocations(spec: RunSpec) -> list[Invocation]:
    return [
        Invocation(spec=spec, stage=stage, replica=replica, token=secrets.token_hex(16))
        for stage, replica in spec.shape.workers()
    ]


def _make_folder(folder: Path) -> Path:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise JobError(f"the run folder {folder} is not empty; name a new one with --run-dir")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "events.jsonl").open("x").close()  # of two runs that start at once, one gets it
    except FileExistsError as error:
        raise JobError(f"another run has just taken the run folder {folder}") from error
    except OSError as error:
        raise _no_folder(folder, error) from error
    return folder


def _save_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _open_log(folder: Path) -> EventLog:
    try:
        return EventLog(folder / "events.jsonl", secrets=known_secrets())
    except OSError as error:
        raise _no_folder(folder, error) from error


def _no_folder(folder: Path, error: OSError) -> JobError:
    return JobError(
        f"cannot write into the run folder {folder}: {error.strerror}; name another with --run-dir"
    )


def _as_ours(error: BaseException) -> FuncpipeError:
    if isinstance(error, FuncpipeError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("interrupted")
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        return FuncpipeError(
            f"{error.strerror or error}{place} (this machine's disk, memory or number of open "
            "files may be at its limit)"
        )
    return FuncpipeError(f"unexpected {type(error).__name__}: {error}")
