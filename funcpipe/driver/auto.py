"""A plan for a job that came without one: measure its layers, search, say what else there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from funcpipe.driver.options import SHAPE, RunOptions
from funcpipe.driver.profile_options import VCPUS, ProfileOptions, evenly
from funcpipe.driver.profiling import Listener, Profiled, profile_job
from funcpipe.errors import PlanError
from funcpipe.locate import LoadedJob
from funcpipe.model.build import build_data
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.planner import Answer
from funcpipe.passes import total_steps
from funcpipe.planning import PlanOptions, Question, question
from funcpipe.usercode import user_code

__all__ = ["PLANNER", "Alternative", "Chosen", "choose", "is_asked_for", "split"]

PLANNER = (
    "objective", "max_time_s", "max_cost", "micro_batch_sizes", "degrees", "per_stage", "schedules",
    "depths", "tiers_mb", "max_functions", "min_stages", "max_stages", "merge", "solver",
    "time_limit_s",
)  # fmt: skip
"""The fields of `PlanOptions` that a run may be given beside its own; the others follow from it."""

CHOOSE = "choose"
"""Of `recompute`: stages are not named, the planner decides."""

OTHERS = ("min-cost", "min-time", "weighted:0.5")
OTHERS_LIMIT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """What another objective would choose. answer: None where nothing was found, `why` then says
    why not.
    """

    objective: str
    answer: Answer | None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The plan of a run that was given none, and what it was chosen by."""

    profiled: Profiled
    asked: Question
    answer: Answer
    alternatives: tuple[Alternative, ...]

    def options(self, own: RunOptions) -> RunOptions:
        """Those of the run, with the plan and what it was made with."""
        return replace(own, plan=self.answer.plan, profile=self.profiled.profile, memory_mb=None)


def split(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords of a run into those of the run itself, and those for the planner."""
    own = {name: value for name, value in fields.items() if name not in PLANNER}
    planner = {name: fields[name] for name in PLANNER if name in fields}
    if own.get("recompute") == CHOOSE:
        planner["recompute"] = own.pop("recompute")
    return own, planner


def is_asked_for(options: RunOptions, planner: Mapping[str, Any]) -> bool:
    """Whether funcpipe is to make the plan: no plan is given, and nothing of its shape.

    `PlanError` for planner's options that would do nothing.
    """
    given = [name for name in ("plan", *SHAPE) if getattr(options, name) is not None]
    asked = not given and options.emulate != "none"
    if planner and not asked:
        told = ", ".join(planner)
        raise PlanError(
            f"{told}: what a plan is searched by, and none is searched where "
            + (f"{', '.join(given)} is given" if given else "no platform is emulated")
            + "; leave one of the two out"
        )
    return asked


def choose(
    loaded: LoadedJob,
    options: RunOptions,
    planner: Mapping[str, Any],
    *,
    listener: Listener | None = None,
    begin: Callable[[str], object] = lambda _: None,
) -> Chosen:
    """Profile the job, or take what is known of it, and search for the plan.

    planner: fields of `PlanOptions` out of `PLANNER`. begin: told in words what begins.
    Raises `Infeasible` where no plan keeps the bounds, and whatever is wrong with the job.
    """
    asking = _plan_options(loaded, options, planner)
    begin("profiling")
    profiled = profile_job(loaded, _profile_options(options, asking), listener=listener)
    begin("planning")
    asked = question(profiled.profile, asking)
    answer = asked.answer()
    others = tuple(_alternative(asked, name) for name in OTHERS if name != str(answer.objective))
    return Chosen(profiled=profiled, asked=asked, answer=answer, alternatives=others)


def _plan_options(
    loaded: LoadedJob, options: RunOptions, planner: Mapping[str, Any]
) -> PlanOptions:
    job = loaded.job
    with user_code("loading the data", roots=(loaded.root,)):
        num_train = len(build_data(job))
    fields = dict(planner)
    if options.memory_mb is not None:
        fields = _with_memory(options.memory_mb, fields)
    return PlanOptions.of(
        {
            "platform": options.emulate,
            "set": options.set,
            "batch_size": job.batch_size,
            "num_steps": total_steps(job, num_train=num_train, steps=options.steps),
            **fields,
        }
    )


def _with_memory(memory_mb: tuple[int, ...], planner: dict[str, Any]) -> dict[str, Any]:
    if "tiers_mb" in planner:
        raise PlanError(
            "memory_mb and tiers_mb are both given: memory_mb is the one size of all functions, "
            "tiers_mb those that the planner may choose from; leave one of the two out"
        )
    if len(memory_mb) > 1:
        raise PlanError(
            f"{len(memory_mb)} memory sizes, one for each stage, are given, but not how many "
            "stages there are: give stages too, or tiers_mb for the planner to choose from"
        )
    return planner | {"tiers_mb": memory_mb}


def _profile_options(options: RunOptions, asking: PlanOptions) -> ProfileOptions:
    """Measured where it runs, with memory sizes that may be chosen: a few of them, if many may."""
    tiers = asking.tiers_mb
    return ProfileOptions(
        emulate=options.emulate,
        set=options.set,
        tiers_mb=None if tiers is None else evenly(sorted(set(tiers)), len(VCPUS)),
        store=options.store,
        endpoint=options.endpoint,
        region=options.region,
        threads=options.threads,
    )


def _alternative(asked: Question, name: str) -> Alternative:
    """Within the same bounds."""
    own = asked.objective
    objective = Objective.parse(name, max_time_s=own.max_time_s, max_cost=own.max_cost)
    limit_s = min(OTHERS_LIMIT_S, asked.time_limit_s or OTHERS_LIMIT_S)
    try:
        answer = replace(asked, objective=objective, time_limit_s=limit_s).answer()
    except PlanError as error:
        return Alternative(objective=name, answer=None, why=error.message)
    return Alternative(objective=name, answer=answer)
