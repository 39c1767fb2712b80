"""How many store requests one training step costs: closed formulas, held to by tests."""

from __future__ import annotations

from collections import Counter

from funcpipe.schedule.program import Shape

__all__ = ["DELETE_BATCH", "requests_of_stage", "requests_per_evaluation", "requests_per_step"]

DELETE_BATCH = 1000


def requests_per_step(
    shape: Shape, *, num_micro_batches: int, report: bool = True
) -> dict[str, int]:
    """PUT, GET, DELETE and LIST requests of all workers together in one step.

    M micro-batches cross S - 1 boundaries both ways; a stage of n > 1 replicas that trains moves
    n(n-1) shares and n sums, each sum read n-1 times; each last-stage replica reports once.
    A worker deletes what it read alone, and its own sum of the step before, in one request
    (per 1,000 keys). Missed GETs come on top and are counted apart.
    """
    total = Counter[str]()
    for stage, degree in enumerate(shape.degrees):
        is_last = stage == shape.num_stages - 1
        total.update(
            requests_of_stage(
                degree,
                is_first=stage == 0,
                is_last=is_last,
                synchronises=shape.synchronises(stage),
                num_micro_batches=num_micro_batches,
                report=report and is_last,
            )
        )
    return {name: total[name] for name in ("PUT", "GET", "DELETE", "LIST")}


def requests_of_stage(
    degree: int,
    *,
    is_first: bool,
    is_last: bool,
    synchronises: bool,
    num_micro_batches: int,
    report: bool = False,
) -> dict[str, int]:
    """The part of one stage's replicas in `requests_per_step`."""
    boundaries = (not is_first) + (not is_last)
    puts = gets = boundaries * num_micro_batches
    if synchronises:
        puts += degree * (degree - 1) + degree
        gets += 2 * degree * (degree - 1)
    deletes = 0
    for replica in range(degree):
        mine = len(range(replica, num_micro_batches, degree))
        keys = mine * boundaries + (degree if synchronises else 0)
        deletes += -(-keys // DELETE_BATCH)
    return {"PUT": puts + (degree if report else 0), "GET": gets, "DELETE": deletes, "LIST": 0}


def requests_per_evaluation(shape: Shape, *, num_micro_batches: int) -> dict[str, int]:
    """The same for one evaluation: forwards only, and a report of each last-stage replica."""
    transfers = num_micro_batches * (shape.num_stages - 1)
    deletes = 0
    for stage, degree in enumerate(shape.degrees):
        for replica in range(degree if stage > 0 else 0):
            mine = len(range(replica, num_micro_batches, degree))
            deletes += -(-mine // DELETE_BATCH)
    return {"PUT": transfers + shape.degrees[-1], "GET": transfers, "DELETE": deletes, "LIST": 0}
