"""What a platform tells a function about its surroundings."""

from __future__ import annotations

import json
import os

import pytest

from funcpipe.clock import REAL, Clock
from funcpipe.store.shape import LinkSpec
from funcpipe.store.tally import Tally
from funcpipe.worker.context import Context


def test_it_survives_json() -> None:
    context = Context(
        clock=Clock(4.0),
        link=LinkSpec(up_bytes_per_s=7e7, latency_s=0.03),
        init_s=2.5,
        unseen_file_bytes=78_000_000,
        threads=2,
    )
    told = json.loads(json.dumps(context.to_dict()))
    assert set(told) == {"dilation", "link", "init_s", "unseen_file_bytes", "threads"}
    assert Context.from_dict(told, meter=None) == context


def test_a_platform_that_says_nothing_is_a_real_one() -> None:
    assert Context.from_dict({}, meter=None) == Context()
    assert Context().clock == REAL


def test_the_meter_s_descriptor_becomes_a_tally() -> None:
    descriptor = Tally.descriptor()
    context = Context.from_dict({}, meter=descriptor)
    reader = Tally.on(descriptor)
    os.close(descriptor)
    assert context.tally is not None
    context.tally.add_request("PUT", "act")
    assert reader.usage().total("PUT") == 1


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"speed": 1}, "no speed"),
        ({"dilation": 0}, "dilation"),
        ({"link": {"latency_s": -1.0}}, "latency_s"),
        ({"init_s": -1.0}, "init_s"),
        ({"unseen_file_bytes": -1}, "unseen_file_bytes"),
        ({"threads": 0}, "threads"),
    ],
)
def test_what_cannot_be_is_refused(data: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Context.from_dict(data, meter=None)
