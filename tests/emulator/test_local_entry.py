"""The entry point of functions on this machine, forked: frames, status, warm reuse, ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from funcpipe.emulator.forks import Isolation, Template

from .forking import Forked, make_template
from .helpers import eventually

NAMESPACES = Isolation(pid_ns=True, user_ns=os.geteuid() != 0)


@pytest.fixture(scope="module", params=[Isolation(), NAMESPACES], ids=["plain", "namespaces"])
def template(request: pytest.FixtureRequest) -> Iterator[Template]:
    made = make_template(request.param, entry="fake_function")
    yield made
    made.close()


def test_one_process_serves_one_frame_after_another(template: Template, tmp_path: Path) -> None:
    # Given
    counters = os.memfd_create("meter")
    function = Forked(template, tmp_path / "one", None, meter=counters)
    assert function.wait_for_status() == {"ready": True}

    # When
    for value in ("first", "second"):
        function.send({"do": "context", "value": value}, {"dilation": 2})
        assert function.wait_for_status() == {"done": 0}
    function.send({"do": "exit", "code": 5}, {})

    # Then
    first, second = function.end(5)
    assert first == [first[0], "first", {"dilation": 2}, 4]
    assert second == [first[0], "second", {"dilation": 2}, 4]
    os.close(counters)


def test_what_was_printed_is_there_when_it_says_that_it_is_done(
    template: Template, tmp_path: Path
) -> None:
    function = Forked(template, tmp_path / "one", None)
    assert function.wait_for_status() == {"ready": True}

    function.send({"do": "exit", "code": 0, "text": "x" * 1000 + "end"}, {})

    assert function.wait_for_status() == {"done": 0}
    assert function.read_now().endswith(b"end\n")
    function.hang_up()
    function.end(-signal.SIGKILL)


@pytest.mark.parametrize("at_work", [False, True])
def test_the_end_of_the_pipe_ends_it_idle_or_at_work(
    template: Template, tmp_path: Path, at_work: bool
) -> None:
    function = Forked(template, tmp_path / "one", None)
    assert function.wait_for_status() == {"ready": True}
    if at_work:
        mark = tmp_path / "mark"
        function.send({"do": "spawn", "mark": str(mark), "deaf": True}, {})
        assert eventually(mark.exists)

    function.hang_up()

    function.end(-signal.SIGKILL)


def test_asked_to_end_while_idle_it_does(template: Template, tmp_path: Path) -> None:
    function = Forked(template, tmp_path / "one", None)
    assert function.wait_for_status() == {"ready": True}

    template.signal(function.pid, signal.SIGTERM)

    function.end(128 + signal.SIGTERM)


def test_user_code_finds_neither_pipes_nor_their_names(template: Template, tmp_path: Path) -> None:
    target = tmp_path / "seen"
    function = Forked(template, tmp_path / "one", None)
    function.send({"do": "show", "to": str(target)}, {})
    assert function.wait_for_status() == {"ready": True}
    assert function.wait_for_status() == {"done": 0}

    seen = json.loads(target.read_text())

    assert [name for name in seen["environment"] if name.startswith("FUNCPIPE_")] == [
        "FUNCPIPE_FUNCTION"
    ]
    assert (seen["stdin"], seen["session"]) == ("", True)
    function.hang_up()
    function.end(-signal.SIGKILL)
