"""From what a user asks of the planner to its answers: checked keywords, a profile read, a search.

The command line and `funcpipe.api` both go through here; neither torch nor a job is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcpipe.errors import Infeasible, PlanError, PlatformError, ProfileError
from funcpipe.partitioner.figures import as_text, near
from funcpipe.partitioner.grounds import grounds
from funcpipe.partitioner.limits import MOST_COUNT, MOST_SECONDS, is_count, is_number, shown
from funcpipe.partitioner.objective import Objective
from funcpipe.partitioner.plan import SCHEDULES
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.partitioner.space import Space

if TYPE_CHECKING:
    from funcpipe.partitioner.baselines import Baseline
    from funcpipe.partitioner.importers import Scale
    from funcpipe.partitioner.merge import Merged
    from funcpipe.partitioner.planner import Answer, Front

__all__ = ["PlanOptions", "Question", "question"]

GPIPE = ("gpipe",)

# Of the time limit, for what merging costs, however long the plan took.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """platform: a name that `funcpipe platforms` lists, a file or a `PlatformSpec`; set: figures of
    it to change. objective: `min-time`, `min-cost`, `weighted:ALPHA`, `raw:ALPHA`, or an
    `Objective`; max_time_s, max_cost: bounds for a step, in seconds and dollars.

    batch_size: samples of a step (None: the profile's). num_steps: of the run, over which cold
    starts are spread (None: they are left out). From micro_batch_sizes to max_stages: the fields
    of `Space`, what may be chosen (schedules None: all that the solver knows). merge: plan for so
    many layers, neighbours put together.
    solver, time_limit_s: how, and how long, to search (None: to the end).

    format: whose profile a file holds. samples, slowdown, parallel, profile_vcpus,
    optimizer_factor: what a profile that others published does not say; see
    `funcpipe.partitioner.importers.Scale`.
    """

    platform: str | Path | PlatformSpec = "aws-lambda"
    set: Mapping[str, str] = field(default_factory=dict)
    objective: str | Objective = "min-cost"
    max_time_s: float | None = None
    max_cost: float | None = None
    batch_size: int | None = None
    num_steps: int | None = None
    micro_batch_sizes: tuple[int, ...] | None = None
    degrees: tuple[int, ...] = Space.degrees
    per_stage: bool = False
    schedules: tuple[str, ...] | None = None
    depths: tuple[int, ...] = Space.depths
    recompute: str = Space.recompute
    sync: tuple[str, ...] = Space.sync
    tiers_mb: tuple[int, ...] | None = None
    max_functions: int | None = None
    min_stages: int = Space.min_stages
    max_stages: int | None = None
    merge: int | None = None
    solver: str = "auto"
    time_limit_s: float | None = 60.0
    format: str = "auto"
    samples: int | None = None
    slowdown: float | None = None
    parallel: float | None = None
    profile_vcpus: tuple[float, ...] | None = None
    optimizer_factor: float | None = None

    @staticmethod
    def of(fields: Mapping[str, Any]) -> PlanOptions:
        """From keywords: an unknown one is named; lists, and single values of them, are taken."""
        known = PlanOptions.__dataclass_fields__
        for name in fields:
            if name not in known:
                raise PlanError(f"unknown option {shown(name)}{near(str(name), known)}")
        chosen = dict(fields)
        for name in _SEVERAL:
            if name in chosen:
                chosen[name] = _several(name, chosen[name])
        if isinstance(chosen.get("set"), Mapping):
            chosen["set"] = {path: as_text(value) for path, value in chosen["set"].items()}
        return PlanOptions(**chosen)

    def __post_init__(self) -> None:
        if not isinstance(self.set, Mapping) or not all(
            isinstance(text, str) for pair in self.set.items() for text in pair
        ):
            raise PlatformError(
                f"set is {shown(self.set)}; figures to change are given as a mapping, such as "
                '{"network.latency_s": 0.05}'
            )
        if not isinstance(self.per_stage, bool):
            raise PlanError(f"per_stage is {shown(self.per_stage)}; expected True or False")
        for name in ("solver", "format", "recompute"):
            if not isinstance(getattr(self, name), str):
                raise PlanError(f"{name} is {shown(getattr(self, name))}; expected a name")
        if not isinstance(self.platform, str | Path | PlatformSpec):
            raise PlatformError(
                f"the platform is {shown(self.platform)}; expected a name that `funcpipe "
                "platforms` lists, or the path of a platform file"
            )
        if self.merge is not None and not is_count(self.merge):
            raise PlanError(
                f"merge is {shown(self.merge)}; expected a whole number from 1 to {MOST_COUNT:,}"
            )
        limit = self.time_limit_s
        if limit is not None and not (is_number(limit) and 0 < limit <= MOST_SECONDS):
            raise PlanError(
                f"time_limit_s is {shown(limit)}; expected a number above 0, at most "
                f"{MOST_SECONDS:,}, or None for no limit"
            )

    @property
    def bounded_objective(self) -> Objective:
        """What the plan is to be best at, with the bounds."""
        bounds = {
            name: value
            for name in ("max_time_s", "max_cost")
            if (value := getattr(self, name)) is not None
        }
        if isinstance(self.objective, Objective):
            return replace(self.objective, **bounds)
        if not isinstance(self.objective, str):
            raise PlanError(
                f"objective is {shown(self.objective)}; expected a text such as min-cost"
            )
        return Objective.parse(self.objective, **bounds)

    @property
    def space(self) -> Space:
        chosen = {name: getattr(self, name) for name in Space.__dataclass_fields__}
        if self.schedules is None:
            knows_all = self.solver in ("auto", "search", "exhaustive")
            chosen["schedules"] = SCHEDULES if knows_all else GPIPE
        return Space(**chosen)

    @property
    def scale(self) -> Scale | None:
        """None if nothing was said of how a published profile is to be read."""
        from funcpipe.partitioner.importers import Scale

        told = {name: getattr(self, ours) for name, ours in _SCALE.items()}
        told = {name: value for name, value in told.items() if value is not None}
        return Scale(**told) if told else None


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be planned. any_schedule: nobody chose one, so that it is the solver that leaves
    `1f1b` out, if anything does. merged: what the search sees instead of the setting's profile.
    """

    setting: Setting
    space: Space
    objective: Objective
    solver: str
    time_limit_s: float | None
    any_schedule: bool = False
    merged: Merged | None = None

    def answer(self) -> Answer:
        """The best plan, whose notes `plan.predicted` has too; `Infeasible` if there is none."""
        from funcpipe.partitioner.planner import plan_for

        try:
            found = plan_for(
                self.searched,
                objective=self.objective,
                space=self.space,
                solver=self.solver,
                time_limit_s=self.time_limit_s,
            )
        except Infeasible as error:
            if self.gpipe_alone:
                raise _among_gpipe(error, "the solver search looks at both") from error
            raise
        found = self._expanded(found)
        notes = [*found.notes, *self._loss_by_merging(found)]
        if self.gpipe_alone:
            notes.append(
                f"among gpipe plans: {self.solver} knows no other, and a plan of 1f1b may be better"
            )
        return _noted(found, (*notes, *grounds(self.setting)))

    def front(self) -> Front:
        """All gpipe plans than which no other one is both faster and cheaper, within the bounds."""
        from funcpipe.partitioner.planner import pareto_front

        try:
            found = pareto_front(
                self.searched,
                objective_bounds=self.objective,
                space=replace(self.space, schedules=GPIPE) if self.any_schedule else self.space,
                time_limit_s=self.time_limit_s,
            )
        except Infeasible as error:
            if self.any_schedule:
                raise _among_gpipe(error, "ask for one plan instead of all") from error
            raise
        answers = tuple(self._expanded(answer) for answer in found.answers)
        notes = [*found.notes, *self._notes]
        if self.any_schedule:
            notes.append("plans of 1f1b were not looked at: one may be both faster and cheaper")
        return replace(found, answers=answers, notes=(*notes, *grounds(self.setting)))

    def compared(
        self, answer: Answer, *, begin: Callable[[str], object] = lambda _: None
    ) -> tuple[Answer, list[Baseline]]:
        """What others would choose, by the same model, the same goal and all layers.

        begin: called with the name of each before it is looked for. Ctrl-C ends the comparison
        with those that there are, and the answer then has a note of it.
        """
        from funcpipe.partitioner.backend import Problem
        from funcpipe.partitioner.baselines import BASELINES, compare

        problem = Problem(setting=self.setting, space=self.space)
        found: list[Baseline] = []
        try:
            for name in BASELINES:
                begin(name)
                found += compare(problem, answer.goal, only=[name])
        except KeyboardInterrupt:
            left = ", ".join(list(BASELINES)[len(found) :])
            note = f"Ctrl-C ended the comparison, which lacks {left}"
            answer = _noted(answer, (*answer.notes, note))
        return answer, found

    @property
    def gpipe_alone(self) -> bool:
        """Whether 1f1b is left out though nobody said so."""
        return self.any_schedule and self.space.schedules == GPIPE

    @property
    def merged_to(self) -> int | None:
        """How many layers the search sees, if some were put together."""
        return None if self.merged is None else self.merged.profile.num_layers

    @property
    def searched(self) -> Setting:
        if self.merged is None:
            return self.setting
        return replace(self.setting, profile=self.merged.profile)

    def _expanded(self, answer: Answer) -> Answer:
        """With the layers as they were, which changes no figure."""
        from funcpipe.partitioner.cost import evaluate

        if self.merged is None:
            return answer
        plan = self.merged.expand(answer.plan)
        notes = (*answer.notes, *self._notes)
        return replace(answer, plan=plan, estimate=evaluate(self.setting, plan), notes=notes)

    def _loss_by_merging(self, answer: Answer) -> tuple[str, ...]:
        """How much better the plan could be had no layers been put together, at most."""
        from funcpipe.partitioner.backend import Deadline, Problem
        from funcpipe.partitioner.merge import loss_at_most
        from funcpipe.partitioner.search import Search

        if self.merged is None or self.space.min_stages > 1:
            return ()
        if answer.interrupted:
            return ("Ctrl-C: how much better a plan for all layers could be was not looked at",)
        limit_s = self.time_limit_s
        if limit_s is not None:
            limit_s = max(limit_s - answer.seconds, limit_s * _LEAST_SHARE)
        relaxed = replace(self.setting, profile=self.merged.relaxed)
        space = replace(self.space, schedules=GPIPE, max_stages=None)
        found = Search().solve(
            Problem(setting=relaxed, space=space), answer.goal, deadline=Deadline(limit_s)
        )
        share = loss_at_most(answer.value, found.bound)
        return (
            f"for all layers, a gpipe plan could have at most {share:.1%} less; of 1f1b there is "
            "no such bound",
        )

    @property
    def _notes(self) -> tuple[str, ...]:
        if self.merged is None:
            return ()
        return (
            f"{self.merged.original.num_layers} layers were put together to "
            f"{self.merged.profile.num_layers}: what is said of the best plan holds for cuts "
            "between these",
        )


def _among_gpipe(error: Infeasible, else_: str) -> Infeasible:
    return Infeasible(f"{error.message} (among gpipe plans; one of 1f1b may do: {else_})")


def _noted(answer: Answer, notes: tuple[str, ...]) -> Answer:
    predicted = {**(answer.plan.predicted or {}), "notes": list(notes)}
    return replace(answer, notes=notes, plan=replace(answer.plan, predicted=predicted))


def question(profile: ModelProfile | str | Path, options: PlanOptions) -> Question:
    """Read what is to be read, and check all that can be without a search."""
    from funcpipe.partitioner.planner import make_setting

    space, objective = options.space, options.bounded_objective
    setting = make_setting(
        read_profile(profile, options),
        options.platform,
        batch_size=options.batch_size,
        num_steps=options.num_steps,
        changes=options.set,
    )
    asked = Question(
        setting=setting,
        space=space,
        objective=objective,
        solver=options.solver,
        time_limit_s=options.time_limit_s,
        any_schedule=options.schedules is None,
        merged=_merged(setting.profile, options.merge),
    )
    # Each raises what is wrong with what it looks at, before anything is searched.
    for check in (space.sizes, space.tiers, space.most_stages):
        check(asked.searched)
    return asked


def read_profile(profile: ModelProfile | str | Path, options: PlanOptions) -> ModelProfile:
    """As it is, or from its file."""
    if isinstance(profile, ModelProfile):
        return profile
    if not isinstance(profile, str | Path):
        raise PlanError(
            f"the profile is a {type(profile).__name__}; expected a ModelProfile or the path of one"
        )
    if not str(profile):
        raise ProfileError("the name of the profile's file is empty; expected the path of one")
    from funcpipe.partitioner.importers import load_profile

    return load_profile(Path(profile), format=options.format, scale=options.scale)


def _merged(profile: ModelProfile, target: int | None) -> Merged | None:
    """None if there is nothing to put together."""
    if target is None or target >= profile.num_layers:
        return None
    from funcpipe.partitioner.merge import merge

    return merge(profile, target)


# -- checking --------------------------------------------------------------------------------

_SEVERAL = (
    "micro_batch_sizes",
    "degrees",
    "schedules",
    "depths",
    "sync",
    "tiers_mb",
    "profile_vcpus",
)
_SCALE = {
    "samples": "samples",
    "slowdown": "slowdown",
    "parallel": "parallel",
    "vcpus": "profile_vcpus",
    "optimizer_factor": "optimizer_factor",
}


def _several(name: str, value: object) -> object:
    """A tuple of what may be given as one value, a list or a tuple; anything else as it is."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return (value,)
    if value is None or isinstance(value, list | tuple):
        return value if value is None else tuple(value)
    raise PlanError(f"{name} is {shown(value)}; expected one value, or a list of them")
