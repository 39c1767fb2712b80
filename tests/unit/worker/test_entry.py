"""A function from its payload to its result: in its platform's seconds, and one after another."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from funcpipe.clock import Clock
from funcpipe.control import publish
from funcpipe.driver.options import RunOptions
from funcpipe.driver.prepare import prepare, upload
from funcpipe.errors import Stopped, WaitTimeout
from funcpipe.invocation import Invocation, RunSpec
from funcpipe.locate import load_job
from funcpipe.passes import Pass
from funcpipe.schedule.action import Lane, parse
from funcpipe.store.meter import GET, GET_MISSED, PUT, Metered, Usage
from funcpipe.store.open import StoreSpec, open_store
from funcpipe.store.shape import LinkSpec
from funcpipe.store.tally import Tally
from funcpipe.worker.context import Context
from funcpipe.worker.entry import FunctionWorker, main

JOB = """
import os, sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import funcpipe as fp
from helper import FACTOR
from parts.table import rows

HERE = os.getcwd()
IN_FUNCTION = Path(".funcpipe-bundle.json").exists()


def loss(output, target):
    if IN_FUNCTION:
        # What a warm process must not be left with.
        os.environ["LEFT_BY_A_JOB"] = "1"
        os.environ["HOME"] = "/nowhere"
        sys.path.insert(0, HERE + "/parts")
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.manual_seed(7)
        print("the factor is", FACTOR)
    return FACTOR * ((output - target) ** 2).mean()


job = fp.Job(
    model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
    loss=loss,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    train_data=lambda: TensorDataset(rows(), rows().sum(1, keepdim=True)),
    batch_size=4,
)
"""
TABLE = "import torch\n\n\ndef rows():\n    return torch.arange(24.0).reshape(8, 3) / 24\n"


class Manual(Clock):
    """A platform's clock over time that passes by sleeping only, whichever thread sleeps."""

    real_s = 0.0
    lock = threading.Lock()

    def now(self) -> float:
        return Manual.real_s / self.dilation

    def sleep(self, seconds: float) -> None:
        with Manual.lock:
            Manual.real_s += max(0.0, seconds * self.dilation)


@pytest.fixture(autouse=True)
def no_time_has_passed() -> None:
    Manual.real_s = 0.0


@dataclass
class Run:
    spec: RunSpec
    store: Metered

    def payload(self, **changes: Any) -> Any:
        place = {"stage": 0, "replica": 0, "token": "t", **changes}
        return json.loads(Invocation(spec=self.spec, **place).encode())

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(bytes(self.store.get(self.spec.keys.result(0, 0))))
        return found


Make = Callable[[str, float], Run]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A stored run of one function; its job's modules are named alike whatever its factor."""

    def made(name: str, factor: float) -> Run:
        folder = tmp_path / name
        (folder / "parts").mkdir(parents=True)
        (folder / "job.py").write_text(JOB)
        (folder / "helper.py").write_text(f"FACTOR = {factor}\n")
        (folder / "parts" / "table.py").write_text(TABLE)  # a package without a file
        before = list(sys.path)
        prepared = prepare(load_job(str(folder / "job.py")), RunOptions(stages=1))
        url = f"memory:{folder}"
        store = Metered(open_store(url))
        spec = upload(
            prepared,
            store,
            root="r",
            spec=StoreSpec(url=url),
            if_absent=True,
            report_every=1,
            note=pytest.fail,
        )
        sys.path[:] = before
        for module in ("job", "helper", "parts", "parts.table"):
            sys.modules.pop(module, None)
        return Run(spec, store)

    return made


def surroundings() -> list[Any]:
    """What a job of this file changes in its process."""
    return [
        os.getcwd(),
        dict(os.environ),
        list(sys.path),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_rng_state().tolist(),
        {name for name in sys.modules if name.partition(".")[0] in ("job", "helper", "parts")},
        {thread.name for thread in threading.enumerate()} & {lane.value for lane in Lane},
    ]


def test_one_process_runs_one_bundle_after_another_as_if_it_were_new(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two bundles whose modules have equal names
    runs = [make("one", 1.0), make("two", 2.0), make("again", 1.0)]
    before = surroundings()
    # when one process runs one after the other, and the first once more
    factors, weights = [], []
    for run in runs:
        assert main(run.payload(), Context(init_s=0.0)) == 0
        factors.append({line for line in capsys.readouterr().out.splitlines() if "factor" in line})
        weights.append(run.result()["weights"])
        # then nothing of it is left
        assert surroundings() == before
    # and each has run its own code, to the bit
    assert factors == [{"the factor is 1.0"}, {"the factor is 2.0"}, {"the factor is 1.0"}]
    assert weights[0] == weights[2]
    assert weights[0] != weights[1]


def test_a_result_is_in_the_platform_s_seconds(make: Make) -> None:
    # given a network of which every second can be told, and time that passes nowhere else
    run = make("job", 1.0)
    link = LinkSpec(up_bytes_per_s=1e5, down_bytes_per_s=2e5, latency_s=0.25)
    tally = Tally()
    # when a function runs four times as slow as on the platform
    clock = Manual(4.0)
    assert main(run.payload(), Context(clock=clock, link=link, init_s=3.0, tally=tally)) == 0
    # then it started within the time that its lease and its downloads take
    result = run.result()
    used = Usage.from_dict(result["usage"])
    built = {kind: used.requests[GET, kind] for kind in ("bundle", "model")}
    lease_s = 0.25 + used.bytes_up["lease"] / 1e5
    down = used.bytes_down["bundle"] + used.bytes_down["model"]
    downloads_s = 0.25 * sum(built.values()) + down / 2e5
    assert built["bundle"] == 1
    assert result["start_s"] == pytest.approx(3.0 + lease_s + downloads_s)
    # and reports, the only transfers of a lone stage, took theirs
    reports = used.requests[PUT, "report"]
    reports_s = 0.25 * reports + used.bytes_up["report"] / 1e5
    assert reports == 2
    assert result["transfer_s"] == pytest.approx(reports_s)
    assert result["waiting_s"] == 0.0
    # and the whole took as long in real time as its requests, times four
    counted = tally.usage()
    requests = sum(counted.requests.values())
    up, down = sum(counted.bytes_up.values()), sum(counted.bytes_down.values())
    assert Manual.real_s == pytest.approx(4 * (0.25 * requests + up / 1e5 + down / 2e5))
    # and the tally holds what the function told of itself, and its result's own put
    assert counted - used == Usage(
        requests={(PUT, "result"): 1}, bytes_up={"result": len(json.dumps(result))}
    )


def test_threads_and_unseen_files_are_as_the_platform_says(make: Make) -> None:
    run, other = make("job", 1.0), make("other", 1.0)
    before = torch.get_num_threads()
    unseen = 1 << 40
    assert main(run.payload(), Context(threads=before + 1, unseen_file_bytes=unseen)) == 0
    assert main(other.payload()) == 0
    result, plain = run.result(), other.result()
    assert result["threads"] == before + 1
    assert plain["threads"] == torch.get_num_threads() == before
    assert result["peak_bytes"] >= result["base_bytes"] >= unseen > plain["peak_bytes"]
    assert 0 <= result["data_bytes"] < unseen
    # without a word from the platform, a function started when its process did
    assert plain["start_s"] > 0


def test_a_duplicate_leaves_and_the_process_stays_usable(make: Make) -> None:
    run, other = make("job", 1.0), make("other", 1.0)
    run.store.put(run.spec.keys.lease(0, 0, 0), b"somebody else")
    before = surroundings()
    assert main(run.payload()) == 0
    assert surroundings() == before
    assert main(other.payload()) == 0


def test_a_failure_is_stored_and_told_by_the_code(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make("job", 1.0)
    run.store.delete([run.spec.run.manifest()])
    assert main(run.payload()) == 1
    assert json.loads(bytes(run.store.get(run.spec.keys.fault())))["type"] == "ObjectMissing"
    assert "ObjectMissing" in capsys.readouterr().err


class Arriving:
    """A store in which an object appears at a moment of real time."""

    def __init__(self, inner: Any, appears_s: float) -> None:
        self.inner = inner
        self.appears_s = appears_s

    def get(self, key: str, **options: Any) -> Any:
        if key == "due" and Manual.real_s < self.appears_s:
            return self.inner.get("absent", **options)
        return self.inner.get(key, **options)


def fetch(run: Run, dilation: float, appears_s: float) -> tuple[Any, Usage]:
    """Wait for an object that comes after `appears_s` of the platform's seconds."""
    Manual.real_s = 0.0
    run.store.put("due", b"here")
    store = Metered(Arriving(run.store, appears_s * dilation))  # type: ignore[arg-type]
    invocation = Invocation.from_dict(run.payload())
    context = Context(clock=Manual(dilation), init_s=0.0)
    worker = FunctionWorker(invocation, store, Path("unused"), context)
    one = Pass(0, True, 0, ((0,),))
    return worker._fetch("due", one, parse("1RECV_F0")), store.counts()


def test_dilation_makes_no_looks_in_vain(make: Make) -> None:
    # given a message that comes after 20 s of the platform, however long these are
    run = make("job", 1.0)
    arrival, usage = fetch(run, 1.0, 20.0)
    slow, slow_usage = fetch(run, 16.0, 20.0)
    # then as many looks, for it and for the control object, find nothing
    assert slow_usage == usage
    assert usage.requests[GET_MISSED, "control"] == 19  # the 20th would come with the message
    assert slow.misses == arrival.misses
    assert slow.waited_s == pytest.approx(arrival.waited_s)
    assert Manual.real_s == pytest.approx(16 * arrival.waited_s)


def test_deadlines_and_stops_are_the_platform_s(make: Make) -> None:
    run = make("job", 1.0)
    with pytest.raises(WaitTimeout):
        fetch(run, 16.0, 2 * run.spec.wait_s)
    assert Manual.real_s == pytest.approx(16.0 * run.spec.wait_s)
    publish(run.store, run.spec.run, run.spec.control.next(state="stop", reason="enough"))
    with pytest.raises(Stopped, match="enough"):
        fetch(run, 16.0, 20.0)
    assert 16.0 <= Manual.real_s <= 16.0 * 1.06
