"""What people call from Python; the command line calls the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcpipe.errors import JobError, PlanError
from funcpipe.job import Job
from funcpipe.locate import LoadedJob, importing_job, load_job, located
from funcpipe.usercode import inside_function

if TYPE_CHECKING:
    from funcpipe.driver.auto import Chosen
    from funcpipe.driver.options import RunOptions
    from funcpipe.driver.profiling import Profiled
    from funcpipe.model.reference import Reference
    from funcpipe.partitioner.cost import Estimate
    from funcpipe.partitioner.objective import Objective
    from funcpipe.partitioner.plan import Plan
    from funcpipe.partitioner.platform import PlatformSpec
    from funcpipe.partitioner.profile import ModelProfile
    from funcpipe.report.summary import Summary

__all__ = ["choose", "evaluate", "pareto", "plan", "profile", "profiled", "reference", "train"]


def train(
    job: Job | str,
    *,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    **options: Any,
) -> Summary:
    """Train `job` on functions and return the run's summary.

    job: a `Job`, or where one is: ``path/to/job.py`` or ``package.module:attr``.
    on_event: called with every event of the run, as `funcpipe.report.events` lists them.
    options: the fields of `funcpipe.driver.options.RunOptions`, such as ``stages=2``,
    ``replicas=(2,)``, ``micro_batch_size=8``, ``store="auto"``, ``run_dir="out"``; ``plan`` may
    be a `Plan` or the path of one. With no plan and none of `funcpipe.driver.options.SHAPE`, the
    job is profiled (as `profile` does) and the best plan searched for; how, may be told by the
    fields of `plan` that `funcpipe.driver.auto.PLANNER` names, such as ``objective="min-time"``.

    Raises `FuncpipeError` for whatever ended the run; nothing of it is running by then.
    """
    _refuse_inside("train")
    from funcpipe.driver.run import execute

    loaded, own, planner = _asked(job, options)
    found = _chosen(loaded, own, planner, on_event)
    return execute(loaded, own if found is None else found.options(own), listener=on_event)


def choose(
    job: Job | str,
    *,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    **options: Any,
) -> Chosen | None:
    """The plan that `train` would make for the same options; None if it would make none, for they
    give one or its shape. on_event: called with what happens while the job is profiled.
    """
    _refuse_inside("choose")
    return _chosen(*_asked(job, options), on_event)


def _asked(
    job: Job | str, options: Mapping[str, Any]
) -> tuple[LoadedJob, RunOptions, dict[str, Any]]:
    """The job, the options of its run, and those of the planner."""
    from funcpipe.driver.auto import split
    from funcpipe.driver.options import RunOptions
    from funcpipe.partitioner.plan import Plan

    fields, planner = split(options)
    plan = fields.get("plan")
    if plan is not None and not isinstance(plan, Plan):
        fields["plan"] = _loaded_plan(plan)
    own = RunOptions.of(fields)
    return _loaded(job), own, planner


def _chosen(
    loaded: LoadedJob,
    options: RunOptions,
    planner: Mapping[str, Any],
    on_event: Callable[[Mapping[str, Any]], None] | None,
) -> Chosen | None:
    from funcpipe.driver.auto import choose as choose_plan
    from funcpipe.driver.auto import is_asked_for

    if not is_asked_for(options, planner):
        return None
    return choose_plan(loaded, options, planner, listener=on_event)


def profile(
    job: Job | str,
    *,
    fresh: bool = False,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    **options: Any,
) -> ModelProfile:
    """What the layers of `job` take, measured on functions of an emulated platform, for `plan`.

    A profile is kept on this machine, and measured again when the model, the shapes of the data,
    the platform or this machine has changed, or if it is to be `fresh`. on_event: called with what
    happens meanwhile. options: the fields of `funcpipe.driver.profile_options.ProfileOptions`,
    such as ``emulate="aws-lambda"``, ``tiers_mb=(1769, 3538)``, ``micro_batch_sizes=(4, 16)``.
    """
    return profiled(job, fresh=fresh, on_event=on_event, **options).profile


def profiled(
    job: Job | str,
    *,
    fresh: bool = False,
    on_event: Callable[[Mapping[str, Any]], None] | None = None,
    **options: Any,
) -> Profiled:
    """As `profile`, with whether it was kept, where it is, and why it was measured."""
    _refuse_inside("profile")
    from funcpipe.driver.profile_options import ProfileOptions
    from funcpipe.driver.profiling import profile_job

    chosen = ProfileOptions.of({**options, **_as_text(options, "emulate")})
    return profile_job(_loaded(job), chosen, listener=on_event, fresh=fresh)


def job_file(job: str) -> Path:
    """The file in which a job lies, which is imported to see."""
    return _loaded(job).file


def _as_text(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: _text(options[name])} if name in options else {}


def _refuse_inside(name: str) -> None:
    if inside_function() or importing_job():
        raise JobError(
            f"fp.{name} was called while the job file was being imported; put the call under "
            "if __name__ == '__main__': so that functions can import the job without training it"
        )


def reference(
    job: Job | str, micro_batch_size: int | None = None, *, steps: int | None = None
) -> Reference:
    """Train `job` with plain PyTorch in this process: what a run on functions must equal.

    micro_batch_size: that of the run, or None to take each batch whole. The two are the same
    without dropout and batch normalisation. steps: stop after so many, None for all epochs.
    """
    from funcpipe.model.reference import reference as train_plainly

    return train_plainly(_loaded(job).job, micro_batch_size, steps=steps)


def _loaded(job: Job | str) -> LoadedJob:
    if isinstance(job, Job):
        return located(job)
    if isinstance(job, str):
        return load_job(job)
    raise JobError(f"expected a funcpipe.Job or the path of a job file; found {type(job).__name__}")


# -- planning, without torch -----------------------------------------------------------------


def plan(
    profile: ModelProfile | str | os.PathLike[str],
    platform: PlatformSpec | str | os.PathLike[str] = "aws-lambda",
    objective: Objective | str = "min-cost",
    **options: Any,
) -> Plan:
    """The plan that is best for `objective` among all that `options` leave to choose from.

    profile: a `ModelProfile`, or the path of one. platform: a name that ``funcpipe platforms``
    lists, or the path of a platform file. objective: ``min-time``, ``min-cost``,
    ``weighted:ALPHA`` or ``raw:ALPHA`` with ALPHA from 0 (time) to 1 (dollars).
    options: the other fields of `funcpipe.planning.PlanOptions`, such as ``max_cost=0.001``,
    ``batch_size=64``, ``degrees=(1, 2, 4)``, ``per_stage=True``. They are the options of
    ``funcpipe plan`` with ``_`` for ``-``, but for three:

        max_time_s       --max-time      most seconds of a step
        num_steps        --steps         steps of the run
        time_limit_s     --time-limit    seconds for the search

    What was found out about it, whether it is proven best, and among which plans (``notes``), is in
    ``plan.predicted``; `train` takes it as its `plan`. Raises `Infeasible`, with the reason, where
    there is none, and another `FuncpipeError` for what cannot be asked.
    """
    from funcpipe.planning import PlanOptions, question

    asked = PlanOptions.of({"platform": _text(platform), "objective": objective, **options})
    return question(_text(profile), asked).answer().plan


def pareto(
    profile: ModelProfile | str | os.PathLike[str],
    platform: PlatformSpec | str | os.PathLike[str] = "aws-lambda",
    **options: Any,
) -> list[Plan]:
    """All gpipe plans than which no other gpipe plan is both faster and cheaper, the fastest first.

    Plans of 1f1b are not looked at, and one may be both: `plan` with ``max_time_s`` or ``max_cost``
    looks at both schedules. options: as for `plan`; there is neither an objective nor a solver to
    choose.
    """
    from funcpipe.planning import PlanOptions, question

    for name in ("objective", "solver"):
        if name in options:
            raise PlanError(f"pareto takes no {name}: it finds the best plans for all objectives")
    asked = PlanOptions.of({"platform": _text(platform), **options})
    return [answer.plan for answer in question(_text(profile), asked).front().answers]


def evaluate(
    plan: Plan | str | os.PathLike[str],
    profile: ModelProfile | str | os.PathLike[str],
    platform: PlatformSpec | str | os.PathLike[str] = "aws-lambda",
    **options: Any,
) -> Estimate:
    """What a step of `plan` takes in seconds, memory and dollars, by the performance model.

    options: as for `plan`, those that say what is planned for: ``batch_size``, ``num_steps``,
    ``set``, and how to read the profile. Memory that does not fit is not refused: `Estimate.fits`.
    """
    from funcpipe.partitioner.cost import evaluate as evaluated
    from funcpipe.partitioner.plan import Plan
    from funcpipe.planning import PlanOptions, question

    known = plan if isinstance(plan, Plan) else _loaded_plan(plan)
    asked = PlanOptions.of({"platform": _text(platform), **options})
    return evaluated(question(_text(profile), asked).setting, known)


def _loaded_plan(plan: object) -> Plan:
    from funcpipe.partitioner.plan import Plan

    path = _text(plan)
    if not isinstance(path, str):
        raise PlanError(
            f"the plan is a {type(plan).__name__}; expected a funcpipe.Plan or the path of one"
        )
    if not path:
        raise PlanError("the name of the plan's file is empty; expected the path of one")
    return Plan.load(Path(path))


def _text(value: Any) -> Any:
    """A path as its text; anything else as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value
