"""From a run's folder to a calibrated profile: reads what the run left, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from funcpipe.calibration.compare import compare
from funcpipe.calibration.correct import calibrated
from funcpipe.calibration.observed import Held, Observed, observe
from funcpipe.errors import FuncpipeError, PlatformError, ProfileError, ScheduleError
from funcpipe.partitioner.importers import load_profile
from funcpipe.partitioner.jsonfile import read_json
from funcpipe.partitioner.limits import is_number, shown
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.platform import PlatformSpec
from funcpipe.partitioner.profile import ModelProfile
from funcpipe.partitioner.setting import Setting
from funcpipe.report.beside import SECONDS, Beside, number_of
from funcpipe.report.summary import Summary, read_summary
from funcpipe.schedule.action import parse

__all__ = ["Calibration", "calibrate_run"]


TIMELINE_FORMAT = 1
_COLUMNS = 8


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """before, after: the model's figures beside the run's, with the profile that there was and with
    the new one, `profile`; before them, of a step, what the plan's file says.
    """

    run_id: str
    platform: str
    observed: Observed
    before: tuple[Beside, ...]
    after: tuple[Beside, ...]
    profile: ModelProfile

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "run": self.run_id,
            "platform": self.platform,
            "observed": self.observed.to_dict(),
            "before": [row.to_dict() for row in self.before],
            "after": [row.to_dict() for row in self.after],
            "profile": self.profile.to_dict(),
        }


def calibrate_run(folder: Path, *, profile: Path | None = None) -> Calibration:
    """profile: what the plan was made with, None for the one in the folder.

    `FuncpipeError` where the folder lacks something, or the run shows nothing of steps.
    """
    summary = read_summary(folder / "summary.json")
    if summary.status != "done":
        raise FuncpipeError(
            f"the run in {folder} is {summary.status}: only one that came to its end shows how "
            "long its steps took"
        )
    plan = Plan.load(folder / "plan.json")
    platform = _platform(folder / "platform.json")
    if not platform.limited:
        raise FuncpipeError(
            f"the run in {folder} was on no platform (--emulate none): what this machine takes "
            "says nothing of functions; train with a platform emulated"
        )
    known = load_profile(_profile_of(folder, profile))
    timeline = _timeline(folder / "timeline.json", plan)
    observed = observe(timeline, _held(summary), plan, platform)
    if observed is None:
        raise FuncpipeError(
            f"the run in {folder} has no step that followed another whole one directly, so that "
            "nothing is known of how long a step takes; train for more --steps"
        )
    run = timeline["run"]
    batch = min(run["batch_size"], run["num_train"])
    setting = Setting(profile=known, platform=platform, batch_size=batch)
    before = compare(observed, setting, plan)
    changed = calibrated(known, observed, plan, setting, run=summary.run_id)
    after = compare(observed, Setting(profile=changed, platform=platform, batch_size=batch), plan)
    predicted = number_of((plan.predicted or {}).get("step_s"))
    if predicted is not None:
        told = Beside(
            name="step, as the plan says", unit=SECONDS,
            predicted=predicted, measured=observed.step_s,
        )  # fmt: skip
        before.insert(0, told)
    return Calibration(
        run_id=summary.run_id,
        platform=platform.name,
        observed=observed,
        before=tuple(before),
        after=tuple(after),
        profile=changed,
    )


def _held(summary: Summary) -> list[Held]:
    return [
        Held(
            stage=one.stage,
            peak_bytes=one.peak_bytes,
            base_bytes=one.base_bytes,
            data_bytes=one.data_bytes,
        )
        for one in summary.functions
    ]


def _profile_of(folder: Path, chosen: Path | None) -> Path:
    if chosen is not None:
        return chosen
    own = folder / "profile.json"
    if not own.is_file():
        raise ProfileError(
            f"{folder} has no profile.json, for the run was not told of one; name the profile that "
            "its plan was made with: --profile FILE"
        )
    return own


def _platform(path: Path) -> PlatformSpec:
    try:
        return PlatformSpec.from_dict(read_json(path))
    except PlatformError as error:
        raise PlatformError(f"{path}: {error.message}") from error


def _check_rows(rows: list[Any]) -> None:
    """TypeError, or what reading an action raises, for anything that no worker writes."""
    for row in rows:
        if not isinstance(row, list) or len(row) < _COLUMNS or not isinstance(row[1], str):
            raise TypeError(f"a row is {shown(row)}")
        numbers = [row[0], *row[2:]]
        if not all(is_number(number) for number in numbers):
            raise TypeError(f"a row has {shown(numbers)} for numbers")
        parse(row[1])


def _timeline(path: Path, plan: Plan) -> Mapping[str, Any]:
    """Checked for whether it belongs to the plan, and can be reckoned with."""
    try:
        data = read_json(path)
    except PlatformError as error:
        raise FuncpipeError(f"{path}: {error.message}") from error
    try:
        run = data["run"]  # type: ignore[index]
        numbers = [run[name] for name in ("num_train", "num_steps", "batch_size")]
        places = {(one["stage"], one["replica"]) for one in data["workers"]}  # type: ignore[index]
        whole = all(isinstance(number, int) and number > 0 for number in numbers)
        if data["format"] != TIMELINE_FORMAT:  # type: ignore[index]
            raise TypeError(f"its format is {shown(data['format'])}")  # type: ignore[index]
        for one in data["workers"]:  # type: ignore[index]
            if not is_number(one["began_at"]) or not isinstance(one["rows"], list):
                raise TypeError("a function's rows are no list, or began at no time")
            _check_rows(one["rows"])
    except (TypeError, KeyError, ValueError, ScheduleError) as error:
        raise FuncpipeError(
            f"{path} is no timeline that tells of batches ({type(error).__name__}: {error}); "
            "expected what this version of funcpipe writes; train again"
        ) from error
    expected = {(s, r) for s, degree in enumerate(plan.degrees) for r in range(degree)}
    if places != expected or not whole or not isinstance(data, Mapping):
        raise FuncpipeError(
            f"{path} tells of {len(places)} functions, and plan.json beside it of "
            f"{len(expected)}: they are not of one run"
        )
    return data
