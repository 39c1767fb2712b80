"""How true the emulator is: CPU shares, networks and time dilation against their nominal values.

cpu_error       a CPU-bound action at 0.25, 0.5 and 1 vCPU against its time without a limit divided
                by the share, which the same function measures right before
net_error       puts and gets of 1 to 64 MB, both ways at once by 4 functions at once, against
                size / bandwidth + latency
dilation_error  the step time of a network-bound and of a compute-bound job, in platform seconds,
                at dilation 2 and 4 against dilation 1

Each is the median of |measured / nominal - 1| over its cases; `..._max` is the largest. A case is
the median of its repeats. The last line is JSON. Nothing fails for being slow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import funcpipe as fp
from funcpipe.driver.host import Exit
from funcpipe.emulator.dilation import Demand, Machine, choose_dilation, store_cost
from funcpipe.emulator.host import LocalHost
from funcpipe.emulator.server import KINDS, start_server
from funcpipe.partitioner.platform import PlatformSpec, load_platform
from funcpipe.report.events import read_events

HERE = Path(__file__).resolve().parent
MB = 10**6
SHARES = {442: 0.25, 884: 0.5, 1769: 1.0}  # MB of memory: vCPU, on AWS Lambda to within 0.1 %
SIZES_MB = (1, 4, 16, 64)
DILATIONS = (1.0, 2.0, 4.0)
AIM_MEDIAN, AIM_MAX = 0.05, 0.12
QUICK_START = {"time.cold_start_s": "0", "time.warm_start_s": "0"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measured time beside its nominal one, in platform seconds."""

    name: str
    measured_s: float
    nominal_s: float

    @property
    def error(self) -> float:
        return abs(self.measured_s / self.nominal_s - 1)


def main() -> None:
    options = _options()
    load = os.getloadavg()[0]
    errors: dict[str, float] = {}
    parts = {
        "cpu_error": cpu_cases,
        "net_error": lambda folder: net_cases(folder, options.store),
        "dilation_error": lambda folder: dilation_cases(folder, options.store),
    }
    with tempfile.TemporaryDirectory(prefix="funcpipe-bench-") as folder:
        for name, measure in parts.items():
            if options.only and name != options.only:
                continue
            cases = []
            for case in measure(Path(folder)):
                cases.append(case)
                print(
                    f"{case.name:<42} {case.measured_s:8.3f} s  nominal {case.nominal_s:8.3f} s  "
                    f"error {case.error:6.1%}",
                    flush=True,
                )
            errors[name] = round(statistics.median(case.error for case in cases), 4)
            errors[f"{name}_max"] = round(max(case.error for case in cases), 4)
            print(
                f"{name}: median {errors[name]:.1%} (aim {AIM_MEDIAN:.0%}), "
                f"largest {errors[f'{name}_max']:.1%} (aim {AIM_MAX:.0%})\n",
                flush=True,
            )
    cores = len(os.sched_getaffinity(0))
    loads = {"load_before": round(load, 2), "load_after": round(os.getloadavg()[0], 2)}
    print(json.dumps(errors | {"store": options.store, "cores": cores} | loads))


def cpu_cases(folder: Path) -> Iterator[Case]:
    """One function at a time, which takes the time without its limit and then with it."""
    products = _products_for(folder, seconds=0.3)
    limited = load_platform("aws-lambda", changes=QUICK_START)
    for memory_mb, share in SHARES.items():
        ratios, nominal = [], []
        for _ in range(5):
            taken = compute(folder, limited, f"{products}x5", memory_mb=memory_mb)
            nominal.append(statistics.median(taken["free"]) / share)
            ratios.append(statistics.median(taken["held"]) / nominal[-1])
        expected = statistics.median(nominal)
        yield Case(
            name=f"cpu: {share:g} vCPU",
            measured_s=statistics.median(ratios) * expected,
            nominal_s=expected,
        )


def _products_for(folder: Path, *, seconds: float) -> int:
    """How many products of matrices take so long here."""
    taken = compute(folder, load_platform("none"), "20x5", memory_mb=None)
    return max(1, round(20 * seconds / statistics.median(taken["free"])))


def compute(folder: Path, platform: PlatformSpec, work: str, *, memory_mb: int | None) -> Any:
    (taken,) = call(
        folder,
        platform,
        [{"do": "compute"}],
        memory_mb=memory_mb,
        variables={"BENCH_PRODUCTS": work},
    )
    return taken


def net_cases(folder: Path, store: str) -> Iterator[Case]:
    platform = load_platform("aws-lambda", changes=QUICK_START)
    memory_mb = platform.memory.default_mb
    rate, latency_s = platform.up_bytes_per_s(memory_mb), platform.network.latency_s
    demand = Demand(
        vcpu=platform.vcpu(memory_mb),
        up_bytes_per_s=rate,
        down_bytes_per_s=platform.down_bytes_per_s(memory_mb),
    )
    machine = Machine(cores=len(os.sched_getaffinity(0)))
    with start_server(store) as server:
        dilation = choose_dilation([demand] * 4, machine, store_cost(server.kind))
        print(f"network: dilation {dilation.factor:g} ({dilation.why})", flush=True)
        place = {"url": server.url, "endpoint": server.endpoint, "region": server.region}
        for size_mb in SIZES_MB:
            tasks = [
                {
                    "do": "transfer",
                    "store": place,
                    "bytes": size_mb * MB,
                    "rounds": max(3, 12 // size_mb),
                    "pause_s": 1.0,
                    "name": f"f{number}-{size_mb}",
                }
                for number in range(4)
            ]
            told = call(
                folder,
                platform,
                tasks,
                memory_mb=memory_mb,
                dilation=dilation.factor,
                credentials=server.credentials,
            )
            for way in ("put", "get"):
                seconds = [row[way] for rows in told for row in rows]
                yield Case(
                    name=f"network: {way} of {size_mb} MB, 4 functions",
                    measured_s=statistics.median(seconds),
                    nominal_s=size_mb * MB / rate + latency_s,
                )


def call(
    folder: Path,
    platform: PlatformSpec,
    tasks: list[Mapping[str, Any]],
    *,
    memory_mb: int | None,
    variables: Mapping[str, str] | None = None,
    **settings: Any,
) -> list[Any]:
    """What functions answer that run at the same time, one for each task."""
    out = Path(tempfile.mkdtemp(dir=folder))
    with LocalHost(
        platform=platform,
        log_folder=out / "logs",
        environment={"PYTHONPATH": str(HERE), **(variables or {})},
        entry="bench_function",
        writable=[out],
        **settings,
    ) as host:
        for number, task in enumerate(tasks):
            payload = json.dumps({**task, "to": str(out / f"{number}.json")}).encode()
            host.start(payload, name=f"f{number}", memory_mb=memory_mb)
        exits: list[Exit] = []
        while len(exits) < len(tasks):
            exits += host.exits()
            time.sleep(0.05)
    for one in exits:
        if one.reason != "done":
            sys.exit(f"{one.name} {one.reason}: {one.detail}\n{one.log_tail}")
    return [json.loads((out / f"{number}.json").read_text()) for number in range(len(tasks))]


def dilation_cases(folder: Path, store: str) -> Iterator[Case]:
    """Both jobs on two functions of half a vCPU, which this machine can be without dilation."""
    jobs = {
        "network_bound": {"steps": 8, "set": QUICK_START | {"network.up_bytes_per_s": "20000000",
                          "network.down_bytes_per_s": "20000000"}},
        "compute_bound": {"steps": 8, "set": QUICK_START},
    }  # fmt: skip
    for (name, options), dilation in itertools.product(jobs.items(), DILATIONS):
        run = folder / f"{name}-{dilation:g}"
        fp.train(
            f"{HERE / 'emulated_jobs.py'}:{name}",
            stages=2,
            memory_mb=884,
            micro_batch_size=32,
            store=store,
            run_dir=run,
            dilation=dilation,
            **options,
        )
        step_s = _step_s(run)
        if dilation == DILATIONS[0]:
            base_s = step_s
        else:
            yield Case(name=f"dilation {dilation:g}: {name}", measured_s=step_s, nominal_s=base_s)


def _step_s(run: Path) -> float:
    """The median time between two steps, without the first two."""
    moments = [event["t"] for event in read_events(run / "events.jsonl") if event["kind"] == "step"]
    return statistics.median(b - a for a, b in itertools.pairwise(moments[1:]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--store", default="seaweedfs", choices=sorted(KINDS))
    parser.add_argument("--only", choices=("cpu_error", "net_error", "dilation_error"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
