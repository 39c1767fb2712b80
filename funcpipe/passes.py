"""The passes of a run: a pure function of the job, the plan and the sizes of its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from funcpipe.model.sampling import batch_ids, micro_batches, num_batches
from funcpipe.schedule.program import Program, Shape, evaluation_program, training_program

if TYPE_CHECKING:
    from funcpipe.job import Job

__all__ = ["Pass", "distinct_sizes", "passes", "program_of", "total_steps"]


@dataclass(frozen=True)
class Pass:
    """One training step, or one evaluation after `step` training steps.

    micro_batches: sample ids of each micro-batch, numbered globally.
    """

    index: int
    trains: bool
    step: int
    micro_batches: tuple[tuple[int, ...], ...]
    report: bool = True

    @property
    def num_samples(self) -> int:
        return sum(len(ids) for ids in self.micro_batches)


def total_steps(job: Job, *, num_train: int, steps: int | None = None) -> int:
    """Training steps of the run: all epochs, or at most `steps`."""
    whole = job.epochs * num_batches(num_train, job.batch_size)
    return whole if steps is None else min(steps, whole)


def passes(
    job: Job,
    *,
    num_train: int,
    num_eval: int,
    num_steps: int,
    micro_batch_size: int,
    report_every: int = 1,
) -> Iterator[Pass]:
    """Every pass in order. An evaluation follows the last step, and each `eval_every` epochs."""
    per_epoch = num_batches(num_train, job.batch_size)
    index = 0
    for step in range(num_steps):
        ids = batch_ids(
            seed=job.seed,
            num_samples=num_train,
            batch_size=job.batch_size,
            step=step,
            shuffle=job.shuffle,
        )
        last = step == num_steps - 1
        report = last or (step + 1) % report_every == 0
        yield Pass(index, True, step, _split(ids, micro_batch_size), report)
        index += 1
        epoch, rest = divmod(step + 1, per_epoch)
        due = job.eval_every is not None and rest == 0 and epoch % job.eval_every == 0
        if num_eval and (last or due):
            yield Pass(index, False, step, _split(range(num_eval), micro_batch_size))
            index += 1


def program_of(shape: Shape, one: Pass, *, stage: int, replica: int) -> Program:
    """What a worker does in a pass."""
    size = len(one.micro_batches)
    if one.trains:
        return training_program(
            shape, stage=stage, replica=replica, num_micro_batches=size, report=one.report
        )
    return evaluation_program(shape, stage=stage, replica=replica, num_micro_batches=size)


def distinct_sizes(job: Job, *, num_train: int, num_steps: int, micro_batch_size: int) -> list[int]:
    """The different numbers of micro-batches that training steps have, at most two."""
    per_epoch = num_batches(num_train, job.batch_size)
    last_batch = num_train - (per_epoch - 1) * job.batch_size
    sizes = {-(-min(job.batch_size, num_train) // micro_batch_size)}
    if num_steps >= per_epoch:
        sizes.add(-(-last_batch // micro_batch_size))
    return sorted(sizes)


def _split(ids: list[int] | range, micro_batch_size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(part) for part in micro_batches(list(ids), micro_batch_size))
