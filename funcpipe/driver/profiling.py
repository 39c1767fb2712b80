"""From a job to its profile: the one that is kept if it still holds, else one that is measured."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from funcpipe import __version__
from funcpipe.driver.load import Load
from funcpipe.driver.measuring import WARMUP, Bench, Tell, measure
from funcpipe.driver.place import open_place, sweep
from funcpipe.driver.platform import host_for
from funcpipe.driver.prepare import ONE_AT_A_TIME, Prepared, prepare, store_model
from funcpipe.driver.profile_cache import cache_path, load_cached, name_of, save_cached
from funcpipe.driver.profile_options import ProfileOptions
from funcpipe.driver.profile_prints import prints_of
from funcpipe.driver.signals import Signals
from funcpipe.emulator.dilation import Demand, Dilation, Machine, choose_dilation, store_cost
from funcpipe.emulator.resources import usable_cpus
from funcpipe.errors import FuncpipeError
from funcpipe.keys import Run
from funcpipe.locate import LoadedJob
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.profiles import Point, assemble, differences, fingerprint_of, late_of
from funcpipe.store.probe import probe
from funcpipe.usercode import user_code

__all__ = ["Listener", "Profiled", "profile_job"]

MOST_COPIES = 4
_FULL = 0.25
"""Of the time without an idle CPU, above which it is told: functions are given 90 % of them."""

Listener = Callable[[Mapping[str, Any]], None]
"""Takes an event: ``kind``, ``t`` (seconds since the beginning), and what belongs to it."""

# Of no use here: a cold start takes none of the times that are measured, and what is invoked
# again measures again.
_QUIET = {"time.cold_start_s": "0", "invocation.retries": "0", "invocation.duplicate_rate": "0"}


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A job's profile. cached: whether an earlier one still held. reasons: why it was measured
    instead, in words. path: where it is kept; None if it could not be.
    """

    profile: ModelProfile
    cached: bool
    reasons: tuple[str, ...]
    path: Path | None


def profile_job(
    loaded: LoadedJob,
    options: ProfileOptions,
    *,
    listener: Listener | None = None,
    fresh: bool = False,
) -> Profiled:
    """The profile of the job on its platform; measured if none is kept that still holds.

    fresh: measure in any case. Builds the model and looks at the data here, as a run does, and
    raises what is wrong with them; whatever was started is given back, however it ends.
    """
    began = time.monotonic()

    def tell(kind: str, fields: Mapping[str, Any]) -> None:
        if listener is not None:
            listener({"kind": kind, "t": round(time.monotonic() - began, 3), **fields})

    asked = loaded.job.batch_size
    tiers = options.tiers(options.platform())
    options.sizes(asked)  # refused before anything is built
    with Signals() as signals:
        with signals.breaking_in(), ONE_AT_A_TIME:
            prepared = prepare(loaded, options.run_options(asked))
            batch_size = min(asked, prepared.num_train)
            sizes = options.sizes(batch_size)
            prints = prints_of(prepared, options, tiers=tiers, sizes=sizes, copies=_copies())
        path = cache_path(loaded, prepared.platform.name)
        kept, why = load_cached(path)
        reasons = [why] if kept is None else differences(fingerprint_of(kept), prints)
        if kept is not None and not reasons and not fresh:
            return Profiled(profile=kept, cached=True, reasons=(), path=path)
        reasons = ["it was asked for"] if fresh else reasons
        tell(
            "profile_started",
            {"job": loaded.ref, "platform": prepared.platform.title, "tiers_mb": list(tiers),
             "sizes": list(sizes), "copies": _copies(), "reasons": reasons},
        )  # fmt: skip
        if batch_size < asked:
            text = (
                f"the job's batch of {asked:,} samples is more than its data has: a step has "
                f"{batch_size:,}"
            )
            tell("note", {"text": text, "level": "warning"})
        load = Load()
        points = _measured(prepared, options, signals, tell, sizes=sizes, load=load)
    profile = assemble(
        points,
        name=name_of(loaded),
        batch_size=batch_size,
        late_s=late_of(prepared.platform),
        source=f"measured by funcpipe {__version__} on functions of an emulated "
        f"{prepared.platform.title}",
        measured=_how(prepared, options, points, prints) | {"full_share": load.full_share},
    )
    if load.full_share > _FULL:
        text = (
            f"this machine's CPUs had nothing to spare in {load.full_share:.0%} of the time of "
            "measuring, so that times may be too long: let it do nothing else, and add --fresh"
        )
        tell("note", {"text": text, "level": "warning"})
    kept_in: Path | None = path
    try:
        save_cached(profile, path)
    except OSError as error:
        text = f"the profile cannot be kept in {path}: {error.strerror or error}"
        tell("note", {"text": text, "level": "warning"})
        kept_in = None
    tell("profile_ended", {"layers": profile.num_layers})
    return Profiled(profile=profile, cached=False, reasons=tuple(reasons), path=kept_in)


def _measured(
    prepared: Prepared,
    options: ProfileOptions,
    signals: Signals,
    tell: Tell,
    *,
    sizes: Sequence[int],
    load: Load,
) -> list[Point]:
    """Everything between an empty store and the results of the functions.

    On leaving, whatever was taken is given back, and no signal breaks into that.
    """
    run_options = options.run_options(prepared.loaded.job.batch_size)
    with ExitStack() as stack, signals.breaking_in():
        place = open_place(run_options, stack)
        store = place.spec.open(credentials=place.credentials)
        stack.callback(store.close)
        root = f"runs/profile-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        try:
            probe(store, root)
            if not place.own:
                stack.callback(sweep, store, root, tell)
            run = Run(root)
            store.put(run.bundle(prepared.packed.digest), prepared.packed.data)
            with ONE_AT_A_TIME, user_code("building the model", roots=(prepared.loaded.root,)):
                store_model(prepared.loaded.job, prepared.chain, store, run)
            quiet = prepared.platform.changed(_QUIET)
            bench = Bench(
                store=store,
                spec=place.spec,
                root=root,
                entry=prepared.packed.entry,
                digest=prepared.packed.digest,
                costs=prepared.costs,
                platform=quiet,
                copies=_copies(),
                repeats=options.repeats,
                dilation=lambda memory_mb, copies: _dilation(quiet, memory_mb, copies, place.kind),
                hosts=lambda dilation: host_for(run_options, quiet, dilation, place, None),
                tell=tell,
                interrupted=signals.interrupted,
                held=signals.held,
                look=load.look,
            )
            return measure(bench, options.tiers(quiet), sizes)
        except FuncpipeError as error:
            explained = place.explain(error)
            if explained is error:
                raise
            raise explained from error


def _copies() -> int:
    """Functions at once: as many as this machine has cores, to see what they see in a run."""
    return max(1, min(MOST_COPIES, int(usable_cpus())))


def _dilation(platform: PlatformSpec, memory_mb: int, copies: int, store: str) -> Dilation:
    demand = Demand(vcpu=platform.vcpu(memory_mb), up_bytes_per_s=0.0, down_bytes_per_s=0.0)
    return choose_dilation([demand] * copies, Machine(cores=usable_cpus()), store_cost(store))


def _how(
    prepared: Prepared, options: ProfileOptions, points: Sequence[Point], prints: Mapping[str, str]
) -> dict[str, Any]:
    """How it was measured, for people; the fingerprint is read again."""
    first = points[0].results[0]
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "funcpipe": __version__,
        "platform": prepared.platform.name,
        "torch": first["torch"],
        "capability": first["capability"],
        "machine": prints["machine"],
        "warmup": WARMUP,
        "repeats": options.repeats,
        "job": prepared.loaded.ref,
        "fingerprint": dict(prints),
    }
