"""Whether a plan's predictions come true: profile, plan, run on the emulator, compare.

time_error     |simulated / measured - 1| of a step among others, over the plans of
               `predict_cases`: median and largest
drift_free     the same, with what was simulated multiplied by how much slower the machine was
               during the run than when the job was profiled: the `yardstick`, a plain PyTorch step
               of the job, is measured before and after each of the two
memory_ratio   measured peak over planned memory, both above the base that was measured: the
               largest of all stages, and the least of those with 200 MB or more planned
dollar_error   |predicted / billed - 1| of a step's dollars, the largest
rank           Kendall's tau between planned and measured order of these plans, by time and dollars
edge           a plan with as few MB as it is planned to need runs, and 1 MB less is refused
speedup        measured seconds of a step of each baseline's plan over those of the plan that
               `funcpipe train` chooses, both for min-time; saving: the same of dollars, min-cost

The last line is JSON. Nothing fails for being wrong: figures are told beside what was aimed at.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from predict_cases import CASES, JOBS, PLATFORM, at_the_edge, is_refused_below, plan_of

import funcpipe as fp
from funcpipe.calibration.compare import compare as beside
from funcpipe.calibration.compare import predicted_step_s
from funcpipe.calibration.observed import Held, observe
from funcpipe.emulator.server import KINDS
from funcpipe.errors import FuncpipeError
from funcpipe.partitioner.backend import Problem
from funcpipe.partitioner.baselines import BASELINES, compare
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.planner import make_setting, plan_for
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Space

TIERS = (1024, 1769, 2560, 3538)
"""That plans may have here: what this machine can emulate without days of patience."""
LARGE_BYTES = 200e6
CHOICE = Space(degrees=(1, 2, 4), tiers_mb=TIERS, schedules=("gpipe", "1f1b"), max_stages=4)
MOST_FUNCTIONS = {"digits": 8, "charlm": 8, "wide": 4}
MOST_STEPS = 8
GOALS = {"speedup": "min-time", "saving": "min-cost"}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run. Bytes above base: the stage that came nearest to its plan, and the least near one of
    those with `LARGE_BYTES` or more.
    """

    name: str
    predicted_s: float
    measured_s: float
    spread: float
    predicted_dollars: float
    billed_dollars: float
    most_memory: float
    least_memory: float | None
    dilation: float
    seconds: float
    drift: float

    @property
    def time_error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    @property
    def drift_free(self) -> float:
        return self.predicted_s * self.drift / self.measured_s - 1

    @property
    def dollar_error(self) -> float:
        return self.predicted_dollars / self.billed_dollars - 1

    def __str__(self) -> str:
        least = "" if self.least_memory is None else f", least {self.least_memory:.2f}"
        return (
            f"{self.name:<34} step {self.predicted_s:.3f} / {self.measured_s:.3f} s "
            f"({self.time_error:+.1%}, {self.drift_free:+.1%} without a drift of "
            f"{self.drift:.2f}, spread {self.spread:.1%})  "
            f"dollars {self.dollar_error:+.1%}  memory {self.most_memory:.2f}{least}  "
            f"[x{self.dilation:g}, {self.seconds:.0f} s]"
        )


class Runs:
    """Runs plans, each once, and says what came out."""

    def __init__(self, folder: Path, store: str, pace: dict[str, float]) -> None:
        self._folder = folder
        self._store = store
        self._pace = pace
        self._known: dict[str, Measured] = {}

    def measure(self, name: str, job: str, plan: Plan, setting: Setting, steps: int) -> Measured:
        alone = {"sync": None} if max(plan.degrees) == 1 else {}
        key = json.dumps([job, plan.to_dict() | {"predicted": None} | alone])
        if key not in self._known:
            self._known[key] = self._measure(name, job, plan, setting, steps)
            print(self._known[key], flush=True)
        return self._known[key]

    def _measure(self, name: str, job: str, plan: Plan, setting: Setting, steps: int) -> Measured:
        began, before = time.monotonic(), yardstick(job)
        folder = self._folder / f"{len(self._known):02d}-{name.replace(' ', '-')}"
        summary = fp.train(
            str(JOBS[job]), plan=plan, steps=steps, store=self._store, run_dir=folder
        )
        timeline = json.loads((folder / "timeline.json").read_text(encoding="utf-8"))
        held = [
            Held(stage=one.stage, peak_bytes=one.peak_bytes, base_bytes=one.base_bytes)
            for one in summary.functions
        ]
        seen = observe(timeline, held, plan, setting.platform)
        if seen is None or seen.dollars is None:
            raise FuncpipeError(f"the run in {folder} shows nothing of steps")
        rows = {row.name: row for row in beside(seen, setting, plan)}
        cost = rows["cost of a step"]
        stages = [
            (told.memory.total - own.base_bytes, own.over_base_bytes)
            for told, own in zip(evaluate(setting, plan).stages, seen.stages, strict=True)
        ]
        large = [over / planned for planned, over in stages if planned >= LARGE_BYTES]
        return Measured(
            name=name,
            predicted_s=predicted_step_s(setting, plan),
            measured_s=seen.step_s,
            spread=seen.spread,
            predicted_dollars=cost.predicted or math.nan,
            billed_dollars=cost.measured or math.nan,
            most_memory=max(over / planned for planned, over in stages),
            least_memory=min(large, default=None),
            dilation=(summary.emulation or {}).get("dilation", 1.0),
            seconds=time.monotonic() - began,
            drift=statistics.mean([before, yardstick(job)]) / self._pace[job],
        )


def yardstick(job: str) -> float:
    """Seconds of a plain step of the job, now."""
    command = [sys.executable, str(Path(__file__).parent / "yardstick.py"), str(JOBS[job])]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="funcpipe-bench-") as temporary:
        folder = options.keep or Path(temporary)
        pace: dict[str, float] = {}
        settings = {}
        for name in options.jobs:
            before = yardstick(name)
            settings[name] = setting_of(name, options)
            pace[name] = statistics.mean([before, yardstick(name)])
        runs = Runs(folder, options.store, pace)
        told: dict[str, Any] = {}
        if "cases" in options.parts:
            told |= cases(runs, settings)
        if "edge" in options.parts:
            told |= {"edge": edge(runs, settings)}
        if "chosen" in options.parts:
            told |= chosen(runs, settings)
    print(json.dumps(told))


def setting_of(name: str, options: argparse.Namespace) -> Setting:
    """The job's profile, measured now unless one that still holds is kept."""
    began = time.monotonic()
    profile: ModelProfile = fp.profile(
        str(JOBS[name]), tiers_mb=TIERS, store=options.store, fresh=options.fresh
    )
    print(f"{name}: profiled in {time.monotonic() - began:.0f} s, spread {profile.spread:.1%}")
    return make_setting(profile, PLATFORM)


def cases(runs: Runs, settings: dict[str, Setting]) -> dict[str, Any]:
    found = []
    for case in CASES:
        if case.job in settings:
            plan = plan_of(case, settings[case.job])
            found.append(runs.measure(case.name, case.job, plan, settings[case.job], case.steps))
    errors = [abs(one.time_error) for one in found]
    free = [abs(one.drift_free) for one in found]
    least = [one.least_memory for one in found if one.least_memory is not None]
    return {
        "plans": len(found),
        "time_error": {"median": _rounded(statistics.median(errors)), "max": _rounded(max(errors))},
        "drift_free": {"median": _rounded(statistics.median(free)), "max": _rounded(max(free))},
        "memory_ratio": {
            "max": _rounded(max(one.most_memory for one in found)),
            "min_large": _rounded(min(least)) if least else None,
        },
        "dollar_error": _rounded(max(abs(one.dollar_error) for one in found)),
        "rank": {
            "time": kendall([(one.predicted_s, one.measured_s) for one in found]),
            "dollars": kendall([(o.predicted_dollars, o.billed_dollars) for o in found]),
        },
        "cases": [
            asdict(o) | {"time_error": o.time_error, "dollar_error": o.dollar_error} for o in found
        ],
    }


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's tau-a: (agreeing - disagreeing) / all pairs of plans."""
    signs = [
        math.copysign(1, (a[0] - b[0]) * (a[1] - b[1])) if (a[0] - b[0]) * (a[1] - b[1]) else 0
        for a, b in combinations(pairs, 2)
    ]
    return _rounded(sum(signs) / len(signs)) if signs else 1.0


def edge(runs: Runs, settings: dict[str, Setting]) -> dict[str, Any]:
    """Of each job the first of its cases, which has one stage."""
    told = {}
    for name, setting in settings.items():
        case = next(case for case in CASES if case.job == name)
        plan = at_the_edge(plan_of(case, setting), setting)
        try:
            runs.measure(f"{name} at its edge", name, plan, setting, case.steps)
            runs_there = True
        except FuncpipeError as error:
            print(f"{name} at its edge: {error}", flush=True)
            runs_there = False
        told[name] = {
            "memory_mb": plan.stages[0].memory_mb,
            "runs": runs_there,
            "refused_below": is_refused_below(plan, setting),
        }
    return told


def chosen(runs: Runs, settings: dict[str, Setting]) -> dict[str, Any]:
    told: dict[str, Any] = {name: {} for name in GOALS}
    for job, setting in settings.items():
        steps = min(MOST_STEPS, *(case.steps for case in CASES if case.job == job))
        for name, kind in GOALS.items():
            told[name][job] = dict(_against(runs, job, setting, kind, steps))
    return told


def _against(
    runs: Runs, job: str, setting: Setting, kind: str, steps: int
) -> Iterator[tuple[str, float | str]]:
    """By baseline: how many times the chosen plan's measured figure theirs is."""
    space = replace(CHOICE, max_functions=MOST_FUNCTIONS[job])
    problem = Problem(setting=setting, space=space)
    answer = plan_for(setting, objective=Objective(kind=kind), space=space)
    own = runs.measure(f"{job} {kind}", job, answer.plan, setting, steps)
    for name in BASELINES:
        (one,) = compare(problem, answer.goal, only=[name])
        if one.plan is None or not math.isfinite(one.time_s):
            yield name, one.why
            continue
        seen = runs.measure(f"{job} {kind} {name}", job, one.plan, setting, steps)
        pair = (seen.measured_s, own.measured_s)
        if kind == "min-cost":
            pair = (seen.billed_dollars, own.billed_dollars)
        yield name, _rounded(pair[0] / pair[1])


def _rounded(value: float) -> float:
    return round(value, 4)


def _options() -> argparse.Namespace:
    parts = ("cases", "edge", "chosen")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--store", default="auto", choices=["auto", *KINDS])
    parser.add_argument("--kept", dest="fresh", action="store_false", help="take profiles that "
                        "were measured before, if they still hold")  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the runs' folders there")
    return parser.parse_args()


if __name__ == "__main__":
    main()
