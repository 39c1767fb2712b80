"""What goes wrong inside functions, where the driver's own look at the job has found nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from funcpipe.driver.export import export_model
from funcpipe.driver.host import Exit
from funcpipe.driver.options import RunOptions
from funcpipe.driver.prepare import prepare, upload
from funcpipe.emulator.host import LocalHost
from funcpipe.invocation import Invocation
from funcpipe.locate import load_job
from funcpipe.model.reference import reference
from funcpipe.partitioner.platform import load_platform
from funcpipe.store.open import StoreSpec

from .harness import (
    HANG_S,
    WITHIN_S,
    Driver,
    arguments_of,
    assert_clear,
    assert_nothing_left,
    assert_recorded,
    eventually,
    processes_of,
    seconds_since_fault,
)
from .jobs import line_marked, write_job

TWO = {"stages": 2, "micro_batch_size": 2}
ONE = {"stages": 1, "micro_batch_size": 2}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong in a function; what is said about it: the error, its words, its place."""

    job: dict[str, str]
    error: str
    words: str
    place: dict[str, int]
    where: str | None = None
    """The user's line, where it is not the one that is marked ``# here``."""
    options: dict[str, Any] = field(default_factory=lambda: ONE)


def once(what: str, number: int, *then: str, also: str = "True") -> str:
    """Lines that do `then` the `number`-th time that a function comes by."""
    return "\n    ".join([f"if {also} and nth({what!r}) == {number}:", "fault()", *then])


FAULTS = {
    "forward, with a child and a thread of its own": Fault(
        job={
            "watched": once(
                "forward",
                6,
                "threading.Thread(target=time.sleep, args=(600,)).start()",
                "subprocess.Popen(['sleep', '600'])",
                "raise ValueError('too warm')  # here",
                also="self.out_features == 3",
            )
        },
        options=TWO,
        error="UserCodeError",
        words=r"the model's forward or the loss raised ValueError: too warm\nin layer 4 \(4: ",
        place={"stage": 1, "replica": 0, "step": 3, "micro_batch": 1},
    ),
    "backward": Fault(
        job={"handed": "fault()\nraise ValueError('no way back')  # here"},
        options=TWO | {"schedule": "1f1b"},
        error="UserCodeError",
        words=r"the model's backward raised ValueError: no way back",
        place={"stage": 1, "replica": 0, "step": 1, "micro_batch": 0},
    ),
    "both replicas at once, in the optimiser": Fault(
        job={"stepped": once("step", 2, "raise ValueError('uphill')  # here")},
        options=ONE | {"replicas": 2},
        error="UserCodeError",
        words=r"the optimiser step raised ValueError: uphill",
        place={"stage": 0, "step": 2},
    ),
    "data": Fault(
        job={"loaded": once("item", 7, "raise OSError('torn')  # here")},
        error="UserCodeError",
        words=r"loading the data raised OSError: torn",
        place={"stage": 0, "replica": 0, "step": 1},
    ),
    "loss not a number": Fault(
        job={"lost": once("loss", 7, "return output.sum() * float('nan')")},
        options=TWO,
        error="LossError",
        words=r"job.loss\(output, target\) is nan",
        place={"stage": 1, "replica": 0, "step": 4, "micro_batch": 0},
        where=r"job.py:\d+ in loss: def loss\(output, target\):",
    ),
    "python ended": Fault(
        job={"watched": once("forward", 3, "sys.exit(0)  # here")},
        error="UserCodeError",
        words=r"forward or the loss raised SystemExit: 0",
        place={"stage": 0, "replica": 0, "step": 1, "micro_batch": 1},
    ),
    "out of memory": Fault(
        job={"watched": once("forward", 3, "bytearray(1 << 60)  # here")},
        error="OutOfMemory",
        words=r"the model's forward or the loss ran out of memory",
        place={"stage": 0, "replica": 0, "step": 1, "micro_batch": 1},
    ),
    "process ended with a code": Fault(
        job={"watched": once("forward", 5, "print('bye', flush=True)", "os._exit(3)")},
        error="FunctionLost",
        words=r"crashed \(exit code 3\) without saying why, after \d of 12 .*words:\nbye \[stage",
        place={"stage": 0, "replica": 0},
    ),
    "crash": Fault(
        job={
            "watched": once(
                "forward", 3, "print('bye', flush=True)", "import ctypes", "ctypes.string_at(0)"
            )
        },
        error="FunctionLost",
        words=r"crashed by SIGSEGV (.|\n)*words:\nbye \[stage 0, replica 0\]\n"
        r"  at job.py:\d+ in forward$",
        place={"stage": 0, "replica": 0},
    ),
    "data of another length": Fault(
        job={"sized": "if IN_FUNCTION:\n    size = 12\n    fault()"},
        error="JobError",
        words=r"train_data has 12 samples here, but 16 where the run was started",
        place={"stage": 0, "replica": 0},
    ),
    "a file that the bundle lacks": Fault(
        job={"sized": "if IN_FUNCTION:\n    fault()\nPath('size.txt').read_text()  # here"},
        error="BundleError",
        words=r"there is no file 'size.txt' in the job's bundle: .*include=\('size.txt',\)",
        place={"stage": 0, "replica": 0},
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_ends_the_run(fault: Fault, driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, **fault.job)
    (tmp_path / "home/size.txt").write_text("16")

    ended = driver.train(tmp_path, job, **fault.options)

    assert ended.error["type"] == fault.error, ended.text
    assert re.search(fault.words, ended.text), ended.text
    assert {name: ended.error.get(name) for name in fault.place} == fault.place
    if where := fault.where or line_marked(job):
        assert re.fullmatch(where, ended.error.get("where", "")), ended.text
    assert_clear(ended)
    assert seconds_since_fault(tmp_path, ended) < WITHIN_S
    assert_nothing_left(tmp_path)
    assert assert_recorded(tmp_path, "failed")["error"] == ended.error


def test_one_that_is_killed_from_outside(driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, epochs=1000)

    def kill(event: dict[str, Any]) -> None:
        if event["kind"] == "step" and event["step"] == 2:
            (victim,) = functions_of(tmp_path, "stage0-replica0")
            (tmp_path / "fault").write_text(repr(time.time()))
            os.kill(victim, signal.SIGKILL)

    ended = driver.train(tmp_path, job, seen=kill, **TWO)

    assert ended.error["type"] == "FunctionLost"
    assert re.search(
        r"the function was killed by SIGKILL, perhaps because the machine ran out of memory, "
        r"without saying why, after \d+ of 4000 steps \[stage 0, replica 0\]$",
        ended.text,
    ), ended.text
    assert_clear(ended)
    assert seconds_since_fault(tmp_path, ended) < WITHIN_S
    assert_nothing_left(tmp_path)
    assert_recorded(tmp_path, "failed")


@pytest.mark.parametrize("if_absent", [True, False], ids=["conditional", "settled"])
def test_one_that_is_started_twice_runs_once(if_absent: bool, tmp_path: Path) -> None:
    # Given: a run of one function, on a store that does or does not honour conditional writes.
    loaded = load_job(str(write_job(tmp_path)))
    prepared = prepare(loaded, RunOptions(stages=1, micro_batch_size=2, steps=4))
    place = StoreSpec(url=str(tmp_path / "store"))
    store = place.open()
    spec = upload(
        prepared,
        store,
        root="runs/r",
        spec=place,
        if_absent=if_absent,
        report_every=1,
        note=pytest.fail,
    )
    delivered = Invocation(spec=spec, stage=0, replica=0, token="t").encode()

    # When: the platform delivers the invocation twice.
    with LocalHost(
        platform=load_platform("none"), log_folder=tmp_path / "logs", work_folder=tmp_path / "tmp"
    ) as host:
        ids = [host.start(delivered, name=name) for name in ("one", "other")]
        ends: list[Exit] = []
        assert eventually(lambda: len(ends.__iadd__(host.exits())) == 2, within_s=HANG_S)

    # Then: one has done the work, right, and the other nothing.
    assert {one.id for one in ends} == set(ids)
    assert [(one.code, one.reason, one.log_tail) for one in ends] == [(0, "done", "")] * 2
    lease = bytes(store.get(spec.keys.lease(0, 0, 0))).decode()
    assert lease.startswith("t ")
    result = json.loads(bytes(store.get(spec.keys.result(0, 0))))
    assert result["usage"]["requests"]["PUT report"] == 4
    assert len(list(store.list(f"{spec.keys.root}/report/"))) == 4
    expected = reference(loaded.job, 2, steps=4).state_dict
    path = export_model(store, spec.run, num_layers=5, path=tmp_path / "model.safetensors")
    trained = load_file(path)
    assert set(trained) == set(expected)
    assert all(torch.equal(trained[name], expected[name]) for name in expected)
    assert processes_of(tmp_path) == []


def functions_of(folder: Path, name: str) -> list[int]:
    return [
        pid
        for pid in processes_of(folder)
        if "funcpipe.emulator.template" in arguments_of(pid)
        and f"/{name}." in os.readlink(f"/proc/{pid}/cwd")
    ]
