"""Stores that refuse, are not there, are full or die."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from funcpipe.emulator.server import RunningServer, start_server
from funcpipe.store.open import open_store

from .harness import (
    WITHIN_S,
    Driver,
    Ended,
    arguments_of,
    assert_clear,
    assert_nothing_left,
    assert_recorded,
    files_in,
    processes_of,
    seconds_since_fault,
    small_disk,
)
from .jobs import line_marked, write_job

ONE = {"stages": 1, "micro_batch_size": 2}
TWO = {"stages": 2, "micro_batch_size": 2}
MEGABYTES = "nn.Linear(4, 1000), *[nn.Linear(1000, 1000) for _ in range({})], nn.Linear(1000, 3),"
WIDE = "nn.Linear(4, 4), Wide(), Narrow(), nn.Linear(8, 3),"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that is somebody else's: runs are given its address."""
    with start_server("juicefs", folder=tmp_path_factory.mktemp("server")) as running:
        yield running


def given(server: RunningServer, **changes: str) -> dict[str, Any]:
    """The options of a run on that server."""
    keys = {**server.credentials.to_environment(), **changes}
    return {"store": server.url, "endpoint": server.endpoint, "environment": keys}


@dataclass(frozen=True, kw_only=True)
class Refusal:
    error: str
    words: str
    options: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)


REFUSALS = {
    "wrong secret": Refusal(
        keys={"AWS_SECRET_ACCESS_KEY": "wrong"},
        error="StoreDenied",
        words=r"in bucket 'funcpipe' at http://127.0.0.1:\d+ .*check AWS_ACCESS_KEY_ID",
    ),
    "unknown key": Refusal(
        keys={"AWS_ACCESS_KEY_ID": "SOMEBODYELSE"},
        error="StoreDenied",
        words=r"check AWS_ACCESS_KEY_ID",
    ),
    "no keys": Refusal(
        keys={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""},
        error="StoreDenied",
        words=r"no credentials for the store at http://127.0.0.1:\d+: set AWS_ACCESS_KEY_ID",
    ),
    "no such bucket": Refusal(
        options={"store": "s3://nobodys"},
        error="BucketMissing",
        words=r"in bucket 'nobodys' at .*create the bucket, or correct its name",
    ),
    "nobody there": Refusal(
        options={"endpoint": "http://127.0.0.1:9"},
        error="StoreUnavailable",
        words=r"at http://127.0.0.1:9 .*check that the endpoint is right, reachable and up",
    ),
    "an endpoint that is none": Refusal(
        options={"endpoint": "127.0.0.1"},
        error="StoreError",
        words=r"not an endpoint: '127.0.0.1'; expected a URL such as",
    ),
    "a file": Refusal(
        options={"store": __file__, "endpoint": None},
        error="BucketMissing",
        words=r"it is not a directory",
    ),
}


@pytest.mark.server
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_refused(refusal: Refusal, server: RunningServer, driver: Driver, tmp_path: Path) -> None:
    began = time.time()

    ended = driver.train(
        tmp_path, write_job(tmp_path), **given(server, **refusal.keys) | refusal.options
    )

    assert ended.error["type"] == refusal.error, ended.text
    assert re.search(refusal.words, ended.text), ended.text
    assert "function_started" not in [event["kind"] for event in ended.events]
    assert ended.outcome["at"] - began < WITHIN_S
    assert server.credentials.secret_key not in ended.text
    assert_clear(ended)
    assert_nothing_left(tmp_path)
    assert assert_recorded(tmp_path, "failed")["error"] == ended.error


@pytest.mark.server
def test_a_failed_run_leaves_no_object_and_no_secret(
    server: RunningServer, driver: Driver, tmp_path: Path
) -> None:
    # Given: a store that goes on living, and user code that prints what it should not.
    secret = server.credentials.secret_key
    line = "print(dict(os.environ)); fault(); raise ValueError(os.environ['AWS_SECRET_ACCESS_KEY'])"
    job = write_job(tmp_path, watched=f"if nth('forward') == 3: {line}  # here")

    ended = driver.train(tmp_path, job, **ONE | given(server))

    assert ended.error["type"] == "UserCodeError"
    assert re.fullmatch(str(line_marked(job)), ended.error["where"])
    assert seconds_since_fault(tmp_path, ended) < WITHIN_S
    store = open_store(server.url, endpoint=server.endpoint, credentials=server.credentials)
    assert list(store.list("")) == []
    store.close()
    assert_nothing_left(tmp_path)
    assert_recorded(tmp_path, "failed")
    told = [path.read_text() for path in (tmp_path / "run").glob("*.json*")]
    assert len(told) == 4  # events, plan, platform, summary
    assert [text for text in told if secret in text] == []


def assert_full(ended: Ended, folder: Path, words: str) -> None:
    assert ended.error["type"] == "StoreFull", ended.text
    assert re.search(words, ended.text), ended.text
    assert_clear(ended)
    assert_nothing_left(folder)
    assert_recorded(folder, "failed")


def test_a_directory_without_space_for_the_model(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, layers=MEGABYTES.format(2))

    with small_disk(tmp_path / "store", mebibytes=4):
        ended = driver.train(tmp_path, job, **ONE)

        assert_full(ended, tmp_path, r"No space left on device.*free some space")


def test_a_directory_without_space_for_what_functions_say(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, layers=WIDE)

    with small_disk(tmp_path / "store", mebibytes=12):
        ended = driver.train(tmp_path, job, **TWO)

        assert_full(ended, tmp_path, r"No space left on device.*free some space")
        assert (ended.error["stage"], ended.error["step"]) == (0, 1)
        assert seconds_since_fault(tmp_path, ended) < WITHIN_S


@pytest.mark.server
def test_a_server_without_space_for_the_model(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, layers=MEGABYTES.format(25))
    began = time.time()

    with small_disk(tmp_path / "tmp", mebibytes=64):
        ended = driver.train(tmp_path, job, **ONE | {"store": "seaweedfs"})

        assert_full(ended, tmp_path, r"no space left for the seaweedfs server: \d+ MB free at /")
    # From its beginning: the server's start is in it.
    assert ended.outcome["at"] - began < 2 * WITHIN_S


@pytest.mark.server
@pytest.mark.parametrize("kind", ["seaweedfs", "juicefs"])
def test_a_server_without_space_for_activations(kind: str, driver: Driver, tmp_path: Path) -> None:
    # Two micro-batches of 16 MB each are in flight, and as much comes back.
    job = write_job(tmp_path, layers=WIDE)

    with small_disk(tmp_path / "tmp", mebibytes=48):
        ended = driver.train(tmp_path, job, **TWO | {"store": kind})

        assert_full(ended, tmp_path, rf"no space left for the {kind} server: \d+ MB free at /")
        assert seconds_since_fault(tmp_path, ended) < WITHIN_S


def test_a_run_folder_without_space_for_the_model(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, layers=MEGABYTES.format(1), epochs=1, stepped="fault()")

    with small_disk(tmp_path / "run", mebibytes=1):
        ended = driver.train(tmp_path, job, **ONE)

        assert ended.error["type"] == "FuncpipeError"
        assert re.search(r"cannot write the trained model to .*/run/model.safetensors", ended.text)
        assert "No space left on device" in ended.text
        assert_clear(ended)
        assert_nothing_left(tmp_path)
        assert_recorded(tmp_path, "failed")


@pytest.mark.server
def test_the_runs_own_server_is_killed(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, epochs=1000)

    def kill(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == 2:
            (victim,) = [one for one in processes_of(tmp_path) if "mini" in arguments_of(one)]
            (tmp_path / "fault").write_text(repr(time.time()))
            os.kill(victim, signal.SIGKILL)

    ended = driver.train(tmp_path, job, seen=kill, **ONE | {"store": "seaweedfs"})

    assert ended.error["type"] == "StoreUnavailable"
    assert "the seaweedfs server ended by itself (code -9)" in ended.text
    assert_clear(ended)
    assert seconds_since_fault(tmp_path, ended) < WITHIN_S
    assert_nothing_left(tmp_path)
    assert_recorded(tmp_path, "failed")


@pytest.mark.server
def test_somebody_elses_server_is_killed(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, epochs=1000)
    home = tmp_path / "server"
    with start_server("juicefs", folder=home) as server:

        def kill(event: dict[str, Any]) -> None:
            if event["kind"] == "step" and event["step"] == 2:
                (tmp_path / "fault").write_text(repr(time.time()))
                server.stop()

        ended = driver.train(tmp_path, job, seen=kill, **ONE | given(server))

    assert ended.error["type"] == "StoreUnavailable"
    assert "check that the endpoint is right, reachable and up" in ended.text
    assert_clear(ended)
    assert seconds_since_fault(tmp_path, ended) < WITHIN_S
    assert_nothing_left(tmp_path)
    notes = [event["text"] for event in ended.events if event["kind"] == "note"]
    assert "objects may be left under runs/" in notes[-1]
    assert files_in(home) == []
