"""How many store requests one training step costs: closed formulas, held to by tests."""

from __future__ import annotations

from funcpipe.schedule.program import Shape

__all__ = ["DELETE_BATCH", "requests_per_evaluation", "requests_per_step"]

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
    transfers = 2 * num_micro_batches * (shape.num_stages - 1)
    puts = gets = transfers
    deletes = 0
    for stage, degree in enumerate(shape.degrees):
        synchronises = shape.synchronises(stage)
        if synchronises:
            puts += degree * (degree - 1) + degree
            gets += 2 * degree * (degree - 1)
        for replica in range(degree):
            mine = len(range(replica, num_micro_batches, degree))
            boundaries = (stage > 0) + (stage < shape.num_stages - 1)
            keys = mine * boundaries + (degree if synchronises else 0)
            deletes += -(-keys // DELETE_BATCH)
    if report:
        puts += shape.degrees[-1]
    return {"PUT": puts, "GET": gets, "DELETE": deletes, "LIST": 0}


def requests_per_evaluation(shape: Shape, *, num_micro_batches: int) -> dict[str, int]:
    """The same for one evaluation: forwards only, and a report of each last-stage replica."""
    transfers = num_micro_batches * (shape.num_stages - 1)
    deletes = 0
    for stage, degree in enumerate(shape.degrees):
        for replica in range(degree if stage > 0 else 0):
            mine = len(range(replica, num_micro_batches, degree))
            deletes += -(-mine // DELETE_BATCH)
    return {"PUT": transfers + shape.degrees[-1], "GET": transfers, "DELETE": deletes, "LIST": 0}
