"""The log of a run's events: what is in it, what never is, and what a torn end does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from funcpipe.errors import FuncpipeError
from funcpipe.report.events import EventLog, read_events
from funcpipe.report.plain import jsonable

STEP = {"kind": "step", "t": 1.5, "step": 1, "total": 4, "loss": 2.3}
NOTE = {"kind": "note", "t": 2.0, "text": "store is slow", "level": "warning"}


def test_events_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    with EventLog(path) as log:
        assert log.append(STEP)
        assert log.append(NOTE)
    assert read_events(path) == [STEP, NOTE]


def test_an_event_is_in_the_file_before_the_log_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(STEP)
        assert read_events(path) == [STEP]


def test_closing_twice_and_appending_afterwards_raise_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append(STEP)
    log.close()
    log.close()
    assert log.append(NOTE) is False
    assert read_events(path) == [STEP]


@pytest.mark.parametrize("event", [{"kind": "stepp", "t": 0.0}, {"kind": "step"}, {"t": 1.0}])
def test_an_event_that_is_none_is_refused(tmp_path: Path, event: dict[str, object]) -> None:
    with EventLog(tmp_path / "events.jsonl") as log, pytest.raises(ValueError, match="kind"):
        log.append(event)
    assert (tmp_path / "events.jsonl").read_bytes() == b""


def test_a_torn_last_line_is_passed_over_and_dropped_when_the_log_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(STEP)
        log.append(NOTE)
    whole = path.read_bytes()
    end_of_first = whole.index(b"\n") + 1
    for cut in range(end_of_first + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert read_events(path) == [STEP]
        with EventLog(path) as log:
            log.append(NOTE)
        assert read_events(path) == [STEP, NOTE]


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(json.dumps(STEP).encode())
    assert read_events(path) == [STEP]
    with EventLog(path) as log:
        log.append(NOTE)
    assert read_events(path) == [STEP, NOTE]


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f'{json.dumps(STEP)}\n{{"kind": "no\n{json.dumps(NOTE)}\n')
    with pytest.raises(FuncpipeError, match="line 2"):
        read_events(path)


def test_a_missing_log_is_an_error_that_names_the_path(tmp_path: Path) -> None:
    with pytest.raises(FuncpipeError, match=r"nothing\.jsonl"):
        read_events(tmp_path / "nothing.jsonl")


def test_credentials_never_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path, secrets=["AKIDEXAMPLE", "s3cr3t/key", ""]) as log:
        log.append(
            {
                "kind": "note",
                "t": 0.0,
                "text": 'refused: key AKIDEXAMPLE, secret "s3cr3t/key"',
                "store": "s3://AKID:word@host/bucket",
                "nested": [{"secret_key": "other"}, {"credentials": {"a": "hidden"}}],
            }
        )
    text = path.read_text()
    for secret in ("AKIDEXAMPLE", "s3cr3t", "AKID:word", "other", "hidden"):
        assert secret not in text
    assert read_events(path)[0]["text"] == 'refused: key ***, secret "***"'


def test_a_number_under_a_secret_looking_name_stays() -> None:
    assert jsonable({"password_accuracy": 0.5}) == {"password_accuracy": 0.5}


def test_what_json_lacks_becomes_none(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append({**STEP, "loss": float("nan")})
    assert read_events(tmp_path / "events.jsonl")[0]["loss"] is None


def test_an_object_that_is_not_plain_data_is_refused() -> None:
    with pytest.raises(TypeError, match="Path"):
        jsonable({"path": Path("x")})
