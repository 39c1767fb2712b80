"""What people call from Python; the command line calls the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from funcpipe.errors import JobError
from funcpipe.job import Job
from funcpipe.locate import LoadedJob, importing_job, load_job, located
from funcpipe.usercode import inside_function

if TYPE_CHECKING:
    from funcpipe.model.reference import Reference
    from funcpipe.report.summary import Summary

__all__ = ["reference", "train"]


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
    be a `Plan` or the path of one.

    Raises `FuncpipeError` for whatever ended the run; nothing of it is running by then.
    """
    if inside_function() or importing_job():
        raise JobError(
            "fp.train was called while the job file was being imported; put the call under "
            "if __name__ == '__main__': so that functions can import the job without training it"
        )
    from funcpipe.driver.options import RunOptions
    from funcpipe.driver.run import execute
    from funcpipe.partitioner.plan import Plan

    plan = options.get("plan")
    if isinstance(plan, str | os.PathLike):
        options["plan"] = Plan.load(Path(plan))
    chosen = RunOptions.of(options)
    return execute(_loaded(job), chosen, listener=on_event)


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
