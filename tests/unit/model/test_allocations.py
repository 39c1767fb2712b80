from __future__ import annotations

import torch

from funcpipe.model.allocations import Phase, phases_of, traced


def test_phases_have_their_peaks_and_ends() -> None:
    told = [("", 1, 10), ("a", 0, 0), ("", 2, 5), ("", 1, -10), ("b", 0, 0), ("", 3, 1)]
    assert list(phases_of(told)) == [
        Phase(name="a", peak=15, end=5),
        Phase(name="b", peak=6, end=6),
    ]


def test_what_was_there_before_is_not_freed() -> None:
    assert list(phases_of([("a", 0, 0), ("", 9, -100), ("", 1, 3)])) == [
        Phase(name="a", peak=3, end=3)
    ]


def test_every_allocation_of_torch_is_seen() -> None:
    before = torch.zeros(1000)
    with traced() as trace:
        trace.mark("one")
        made = before + 1
        del before
        trace.mark("two")
        made = made * 2 + 1
    assert [phase.name for phase in trace.phases] == ["one", "two"]
    # beside the tensors there are a few bytes of the numbers that they are computed with
    assert [phase.peak // 100 for phase in trace.phases] == [40, 120]
    assert [phase.end for phase in trace.phases] == [made.nbytes, made.nbytes]
