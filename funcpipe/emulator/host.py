"""An emulated platform's functions, as processes on this machine."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from funcpipe.clock import Clock
from funcpipe.driver.host import Execution, Exit, Reason
from funcpipe.emulator import variables
from funcpipe.emulator.books import Books
from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.environment import Environment, Sizes
from funcpipe.emulator.forks import Template
from funcpipe.emulator.guarded import Guarded, base_environment
from funcpipe.emulator.life import (
    Delivered,
    Delivery,
    EndEnvironment,
    Instruction,
    Life,
    Report,
    Run,
    StartEnvironment,
)
from funcpipe.emulator.limits import Limits
from funcpipe.emulator.listener import Listener
from funcpipe.emulator.memory_watch import MemoryWatch
from funcpipe.errors import PayloadTooLarge, PlatformError
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.pricing import Use
from funcpipe.store.shape import LinkSpec
from funcpipe.store.usage import Usage
from funcpipe.worker.context import Context

__all__ = ["LocalHost"]

KILLED_S = 10.0
"""Real seconds within which what was killed is gone; the template takes the rest with it."""


class LocalHost:
    """A `FunctionHost` that emulates `platform`, `dilation` times slower than real time.

    Functions are forked from a template that has imported torch. Each has a working folder, which
    is also its home and its temporary folder, and an environment made of a few harmless variables
    (PATH, locale), `environment` and `credentials`: nothing else of the driver's is passed on.
    What it prints goes to ``ID.log`` in `log_folder`, bounded (None: in a folder of the host's,
    which ends with it). All of it ends with the driver,
    however that ends. What of the platform this machine cannot enforce is in `limits`.

    `threads` is what the numerical libraries may use in each function (None: by its memory).
    `writable` are folders that functions may write to beside their own: a directory store.
    `entry` is the module that reads the payloads. `seed` decides which invocations come twice.
    """

    def __init__(
        self,
        *,
        platform: PlatformSpec,
        log_folder: Path | None,
        dilation: float = 1.0,
        seed: int = 0,
        credentials: Credentials | None = None,
        environment: Mapping[str, str] | None = None,
        threads: int | None = None,
        writable: Iterable[Path] = (),
        work_folder: Path | None = None,
        entry: str = "funcpipe.functions.local",
    ) -> None:
        if threads is not None and threads < 1:
            raise PlatformError(f"threads of a function must be at least 1, not {threads}")
        self._platform = platform
        self._clock = Clock(dilation)
        self._threads = threads
        self._writable = tuple(str(path.resolve()) for path in writable)
        if log_folder is not None:
            log_folder.mkdir(parents=True, exist_ok=True)
        self._guarded = Guarded(
            purpose="functions", parent=work_folder, environment=base_environment()
        )
        self.folder = self._guarded.folder
        self._log_folder = (log_folder or self.folder / "logs").resolve()
        self._life = Life(platform, seed=seed)
        self._lock = threading.RLock()
        self._payloads: dict[str, tuple[str, bytes]] = {}
        self._environments: dict[str, Environment] = {}
        self._books = Books(self._life, self._usage)
        self._exits: list[Exit] = []
        self._closed = False
        with ExitStack() as stack:
            stack.callback(self._guarded.stop)
            self._log_folder.mkdir(exist_ok=True)
            self._variables = variables.for_functions(self.folder, environment or {}, credentials)
            self._visible = variables.paths_in(self._variables)
            self.limits = Limits.open(platform, name=self.folder.name, guarded=self._guarded)
            stack.callback(self.limits.close)
            # The kernel's parent-death signal fires when the *thread* that started a process
            # ends, so the template is started by one that lives as long as the host.
            starter = stack.enter_context(ThreadPoolExecutor(1, "funcpipe-start"))
            self._template = starter.submit(self._make_template, entry).result()
            stack.callback(self._template.close)
            self._watch = MemoryWatch(on_excess=self._on_excess)
            stack.callback(self._watch.close)
            self._loop = Listener(self, self._lock, template=self._template.fileno())
            stack.callback(self._loop.close)
            self._resources = stack.pop_all()

    def _make_template(self, entry: str) -> Template:
        return Template(
            environment=variables.for_template(self._variables, self.folder),
            isolation=self.limits.isolation,
            entry=entry,
        )

    def start(self, payload: bytes, *, name: str, memory_mb: int | None = None) -> str:
        limit = self._platform.invocation.async_payload_bytes
        if limit is not None and len(payload) > limit:
            raise PayloadTooLarge(
                f"the payload of function {name} has {len(payload):,} bytes; "
                f"{self._platform.title} takes at most {limit:,}: put the rest in the store"
            )
        memory_mb = self._platform.memory.default_mb if memory_mb is None else memory_mb
        self._platform.check_memory(memory_mb, f"function {name}")
        identity = f"{_readable(name)}.{secrets.token_hex(4)}"
        with self._lock:
            if self._closed:
                raise PlatformError("the function host is closed")
            self._payloads[identity] = (name, payload)
            now = self._clock.now()
            instructions = self._life.invoke(identity, name=name, memory_mb=memory_mb, now=now)
            self._do(instructions)
        self._loop.wake()
        return identity

    def exits(self) -> list[Exit]:
        if self._loop.failure is not None:
            raise PlatformError("the emulator's own loop has failed") from self._loop.failure
        with self._lock:
            ended, self._exits = self._exits, []
        return ended

    def executions(self) -> list[Execution]:
        with self._lock:
            return self._books.executions()

    def uses(self) -> list[Use]:
        with self._lock:
            return self._books.uses(self._clock.now())

    def stored_bytes(self) -> int:
        with self._lock:
            return self._books.stored_bytes()

    def alive(self) -> int:
        with self._lock:
            return self._life.busy()

    def stop(self, ids: Iterable[str] | None = None, *, grace_s: float = 2.0) -> None:
        with self._lock:
            chosen = set(self._payloads if ids is None else ids) & set(self._payloads)
            ending = [
                self._environments[one.environment]
                for one in self._life.stop(chosen)
                if isinstance(one, EndEnvironment) and one.environment in self._environments
            ]
            for one in ending:
                one.ask_to_end()
        self._await_end(ending, grace_s)
        for one in ending:
            one.kill()
        self._await_end(ending, KILLED_S)

    def _await_end(self, ending: list[Environment], within_s: float) -> None:
        deadline = time.monotonic() + within_s
        # Without the loop nobody takes them away; they end with the template.
        while time.monotonic() < deadline and self._loop.failure is None:
            with self._lock:
                if not any(one.id in self._environments for one in ending):
                    return
            time.sleep(0.01)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.stop()
        with self._lock:
            idle = list(self._environments.values())
            for one in idle:
                self._life.end(one.id, "stopped")
                one.kill()
        self._await_end(idle, KILLED_S)
        self._resources.close()
        for one in self._environments.values():  # where the loop has failed, or nobody heard of it
            one.close()
        self._environments.clear()

    def __enter__(self) -> LocalHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What follows runs under the lock.

    def _do(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case StartEnvironment(environment, memory_mb, name):
                    self._launch(environment, memory_mb, name)
                case Run(environment, invocation, init_s):
                    self._run(environment, invocation, init_s)
                case EndEnvironment(environment):
                    self._environments[environment].kill()
                case Report():
                    self._report(one)
                case Delivered(delivery):
                    self._books.close(delivery, self._clock.now())

    def _launch(self, identity: str, memory_mb: int, name: str) -> None:
        full = f"{_readable(name)}.{identity}"
        one = Environment(
            id=identity,
            name=name,
            folder=self.folder / full,
            log=self._log_folder / f"{full}.log",
            sizes=self._sizes(memory_mb),
            cell=self.limits.cell(full),
            loop_image=self.limits.isolation.tmp == "loop",
            template=self._template,
        )
        self._environments[identity] = one
        own = variables.with_threads(self._variables, self._num_threads(memory_mb))
        try:
            one.launch(environment=own, writable=self._writable, visible=self._visible)
        except (OSError, PlatformError) as error:
            one.say(f"function {name} could not be started: {error}")
            self._forget(one, "crashed", None)
            return
        except BaseException:  # a signal broke in: nobody watches it, so it would never be missed
            self._life.end(identity, "stopped")
            self._forget(one, "stopped", None)
            raise
        self._guarded.tell(f"watch {one.pid}")
        if one.sizes.memory_bytes is not None:
            self._watch.add(
                identity,
                pid=one.pid,
                limit_bytes=one.sizes.memory_bytes,
                cell=one.cell,
                base=self._template.base,
            )
        self._loop.add(one)

    def _forget(self, one: Environment, reason: Reason, code: int | None) -> None:
        """It has ended: tell, and give everything of it back."""
        self._do(self._life.gone(one.id, reason=reason, code=code, now=self._clock.now()))
        one.finish()
        del self._environments[one.id]

    def _num_threads(self, memory_mb: int) -> int:
        return self._threads or self._platform.threads(memory_mb)

    def _sizes(self, memory_mb: int) -> Sizes:
        if not self._platform.limited:
            return Sizes(cpus=None, memory_bytes=None, tmp_mb=None)
        return Sizes(
            cpus=self._platform.vcpu(memory_mb) / self._clock.dilation,
            memory_bytes=memory_mb << 20,
            tmp_mb=self._platform.tmp.default_mb,
        )

    def _run(self, environment: str, invocation: str, init_s: float) -> None:
        delivery = self._delivery_in(environment)
        memory_mb = delivery.memory_mb
        context = Context(
            clock=self._clock,
            link=self._link(memory_mb),
            init_s=init_s,
            unseen_file_bytes=self._template.base.file_bytes,
            threads=self._num_threads(memory_mb),
        )
        one = self._environments[environment]
        try:
            one.run(self._payloads[invocation][1], context.to_dict())
        except OSError as error:  # its control group has gone
            one.say(f"the invocation could not be handed over: {error}")
            self._do(self._life.end(environment, "crashed"))

    def _link(self, memory_mb: int) -> LinkSpec | None:
        if not self._platform.limited:
            return None
        network = self._platform.network
        return LinkSpec(
            up_bytes_per_s=self._platform.up_bytes_per_s(memory_mb),
            down_bytes_per_s=self._platform.down_bytes_per_s(memory_mb),
            latency_s=network.latency_s,
            burst_bytes=network.burst_bytes,
            burst_bytes_per_s=network.burst_bytes_per_s,
        )

    def _delivery_in(self, environment: str) -> Delivery:
        return next(
            one for one in reversed(self._life.deliveries) if one.environment == environment
        )

    def _report(self, report: Report) -> None:
        one = self._environments[report.environment]
        self._exits.append(
            Exit(
                id=report.invocation,
                name=self._payloads[report.invocation][0],
                code=report.code,
                reason=report.reason,
                log_tail=one.log_tail(),
                detail=self._detail(one, report.reason),
            )
        )

    def _detail(self, one: Environment, reason: str) -> str:
        if reason == "out-of-memory":
            limit_mb = (one.sizes.memory_bytes or 0) >> 20
            held = one.excess or f"needed more than its {limit_mb:,} MB"
            return f"it {held} (a tier of {self._platform.name})"
        if reason == "time-limit":
            return f"{self._platform.title} ends a function after {self._life.limit_s:g} s"
        if reason in ("killed", "crashed"):
            if not self._guarded.alive():
                return "the process that guards the emulator was ended from outside"
            if not self._template.alive():
                return "the process that functions are forked from was ended from outside"
        return ""

    def _usage(self, delivery: Delivery) -> Usage:
        """Of one that still runs."""
        return self._environments[delivery.environment].usage()

    def _on_excess(self, environment: str, text: str) -> None:
        with self._lock:
            if environment in self._environments:
                self._environments[environment].excess = text
                self._do(self._life.end(environment, "out-of-memory"))

    def heard(self, environment: Environment) -> None:
        """The process in it has written to its status pipe."""
        try:
            messages = environment.messages()
        except (ValueError, RecursionError):
            environment.say("the function wrote to the descriptor of its status, and was ended")
            self._do(self._life.end(environment.id, "crashed"))
            return
        for message in messages:
            now = self._clock.now()
            if "ready" in message:
                self._do(self._life.ready(environment.id, now=now))
            elif "done" in message:
                environment.freeze()
                self._do(self._life.finished(environment.id, now=now))

    def collect(self) -> None:
        """Processes that have ended."""
        by_pid = {one.pid: one for one in self._environments.values()}
        for pid, code in self._template.exits():
            one = by_pid[pid]
            self.heard(one)
            self._loop.remove(one)
            self._watch.remove(one.id)
            self._guarded.tell(f"forget {pid}")
            self._forget(one, one.reason(code), code)

    def tick(self) -> float:
        """Do what is due; real seconds until the next time."""
        now = self._clock.now()
        self._do(self._life.tick(now=now))
        return (self._life.next_due_s() - now) * self._clock.dilation


def _readable(name: str) -> str:
    """As a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:80] or "function"
