"""One run from its options to its summary: every resource it takes is given back."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from funcpipe.driver.export import export_model
from funcpipe.driver.loop import Loop, Tell
from funcpipe.driver.machine import DriverMachine
from funcpipe.driver.options import RunOptions
from funcpipe.driver.outcome import Outcome, summarise
from funcpipe.driver.prepare import prepare, upload
from funcpipe.driver.timelines import write_timelines
from funcpipe.emulator.host import LocalHost
from funcpipe.emulator.server import KINDS, start_server
from funcpipe.errors import FuncpipeError, JobError, Stopped, StoreError
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.locate import LoadedJob
from funcpipe.report.events import EventLog
from funcpipe.report.summary import Summary, write_summary
from funcpipe.store.credentials import Credentials
from funcpipe.store.meter import Metered
from funcpipe.store.open import StoreSpec
from funcpipe.store.probe import probe

__all__ = ["execute"]

Listener = Callable[[Mapping[str, Any]], None]
"""Takes one event, as it is written to the run folder."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a run keeps its objects, and what functions need to get there."""

    spec: StoreSpec
    kind: str
    credentials: Credentials | None = None
    own: bool = False


@dataclass
class _Clock:
    """Seconds of each phase of a run."""

    began: float = field(default_factory=time.monotonic)
    phases: dict[str, float] = field(default_factory=dict)

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - began


def execute(loaded: LoadedJob, options: RunOptions, *, listener: Listener | None = None) -> Summary:
    """Train the job; its summary, which also lies in the run folder.

    Raises what ended the run if it was not its success; by then nothing of it is running or
    stored any more, and the run folder holds events, logs and a summary that says what happened.
    Wrong jobs, plans and models are refused before a folder is made or a server started.
    """
    clock = _Clock()
    with clock.phase("setup"):
        prepared = prepare(loaded, options)
    run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    folder = _make_folder(options.run_dir or Path("runs") / run_id)
    log = EventLog(folder / "events.jsonl", secrets=_secrets())

    def tell(kind: str, fields: Mapping[str, Any]) -> None:
        entry = {"kind": kind, "t": round(clock.elapsed(), 3), **fields}
        log.append(entry)
        if listener is not None:
            listener(entry)

    outcome = Outcome(
        run_id=run_id,
        job=loaded.ref,
        epochs=loaded.job.epochs,
        prepared=prepared,
        options=options,
    )
    try:
        prepared.plan.save(folder / "plan.json")
        started = {"run_id": run_id, "job": loaded.ref, "folder": str(folder)}
        tell("run_started", started | {"platform": options.platform, "store": options.store})
        tell("plan", {"plan": prepared.plan.to_dict(), "steps": prepared.num_steps})
        _run(outcome, folder, clock, tell)
    except BaseException as error:
        outcome.error = _as_ours(error)
        raise outcome.error from error
    finally:
        clock.phases["total"] = clock.elapsed()
        summary = summarise(outcome, clock.phases)
        write_summary(summary, folder / "summary.json", secrets=_secrets())
        tell("run_ended", {"status": summary.status})
        log.close()
    return summary


def _run(outcome: Outcome, folder: Path, clock: _Clock, tell: Tell) -> None:
    """Everything between an empty store and an exported model."""
    prepared, options = outcome.prepared, outcome.options
    root = f"runs/{outcome.run_id}"
    with ExitStack() as stack:
        signals = stack.enter_context(_Signals())
        with clock.phase("setup"):
            place = _open_place(options, stack)
            outcome.store_kind = place.kind
            store = Metered(place.spec.open(credentials=place.credentials))
            stack.callback(store.close)
            capabilities = probe(store, root)
            outcome.if_absent = capabilities.if_absent
            tell("store_ready", {"store": place.kind, "if_absent": capabilities.if_absent})
            _warn(outcome, tell)
            if not place.own:
                stack.callback(_sweep, store, root, tell)

            def note(text: str) -> None:
                outcome.notes.append(text)
                tell("note", {"text": text, "level": "warning"})

            spec = upload(
                prepared,
                store,
                root=root,
                spec=place.spec,
                if_absent=capabilities.if_absent,
                report_every=options.report_every,
                note=note,
            )
        host = LocalHost(
            log_folder=folder / "logs",
            environment={} if place.own else _aws_environment(),
            credentials=place.credentials,
            threads=options.threads,
        )
        stack.callback(host.close)
        machine = DriverMachine(
            prepared.plan.degrees,
            num_steps=prepared.num_steps,
            mean_loss=prepared.loaded.job.loss_reduction == "mean",
        )
        outcome.machine = machine
        outcome.usage = store.counts
        loop = Loop(
            spec=spec,
            machine=machine,
            host=host,
            store=store,
            tell=tell,
            interrupted=signals.interrupted,
        )
        with clock.phase("training"), signals.left_to_the_loop():
            loop.run(_invocations(spec))
        write_timelines(folder / "timeline.json", spec, machine.results)
        with clock.phase("export"):
            outcome.model_path = export_model(
                store,
                spec.run,
                num_layers=prepared.plan.num_layers,
                path=folder / "model.safetensors",
            )


def _invocations(spec: RunSpec) -> list[Invocation]:
    return [
        Invocation(spec=spec, stage=stage, replica=replica, token=secrets.token_hex(16))
        for stage, replica in spec.shape.workers()
    ]


def _open_place(options: RunOptions, stack: ExitStack) -> _Place:
    """The store that the user named; a server is started, and stopped with the run."""
    name = options.store
    if name == "auto" or name in KINDS:
        if options.endpoint or options.region:
            raise StoreError(
                f"--endpoint and --region belong to an S3 URL; the store {name!r} is started here"
            )
        server = stack.enter_context(start_server(name))
        spec = StoreSpec(url=server.url, endpoint=server.endpoint, region="us-east-1")
        return _Place(spec=spec, kind=server.kind, credentials=server.credentials, own=True)
    kind = "s3" if name.startswith("s3://") else "directory"
    if name.startswith("memory:"):
        raise StoreError("the memory store is for one process; functions cannot reach it")
    if kind == "directory" and "://" not in name:
        name = str(Path(name).absolute())
    return _Place(
        spec=StoreSpec(url=name, endpoint=options.endpoint, region=options.region), kind=kind
    )


def _aws_environment() -> dict[str, str]:
    """What the AWS chain of the user's shell says; functions see nothing else of it."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def _secrets() -> list[str]:
    """What must never be written down, should an error text of somebody else's contain it."""
    names = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return [os.environ[name] for name in names if os.environ.get(name)]


def _warn(outcome: Outcome, tell: Tell) -> None:
    if outcome.if_absent:
        return
    text = (
        "this store IGNORES conditional writes: a function that is started twice is told apart "
        "by waiting instead, which is weaker, and two drivers on one run would not notice each "
        "other"
    )
    outcome.notes.append(text)
    tell("note", {"text": text, "level": "warning"})


def _sweep(store: Metered, root: str, tell: Tell) -> None:
    """Remove all that the run put into a store that goes on living."""
    try:
        store.delete(list(store.list(f"{root}/")))
    except StoreError as error:
        tell("note", {"text": f"objects may be left under {root}/: {error}", "level": "warning"})


def _make_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise JobError(f"the run folder {folder} is not empty; name a new one with --run-dir")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _as_ours(error: BaseException) -> FuncpipeError:
    if isinstance(error, FuncpipeError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Stopped("interrupted")
    if isinstance(error, OSError):
        return FuncpipeError(f"{error.strerror or error}: {error.filename or 'no file named'}")
    return FuncpipeError(f"unexpected {type(error).__name__}: {error}")


class _Signals:
    """SIGINT and SIGTERM end the run in order, whatever it is doing.

    In the loop they set `interrupted`, and the loop ends the run; elsewhere (`breakable`) they
    break into it with `Stopped`, once: giving everything back is not to be interrupted.
    """

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.breakable = True
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        first = not self.interrupted.is_set()
        self.interrupted.set()
        if first and self.breakable:
            raise Stopped(f"stopped by {signal.Signals(number).name}")

    @contextmanager
    def left_to_the_loop(self) -> Iterator[None]:
        self.breakable = False
        try:
            yield
        finally:
            self.breakable = True
