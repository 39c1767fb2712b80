"""What goes wrong inside functions, where the driver's own look at the job has found nothing."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .harness import (
    WITHIN_S,
    Driver,
    arguments_of,
    assert_clear,
    assert_nothing_left,
    assert_recorded,
    files_in,
    line_marked,
    processes_of,
    seconds_since_fault,
    write_job,
)

TWO = {"stages": 2, "micro_batch_size": 2}
ONE = {"stages": 1, "micro_batch_size": 2}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong in a function; what is said about it: the error, its words, its place."""

    job: dict[str, str]
    error: str
    words: str
    place: dict[str, int]
    options: dict[str, Any] = field(default_factory=lambda: ONE)


FAULTS = {
    "forward, with a child and a thread of its own": Fault(
        job={
            "watched": "if self.out_features == 3 and nth('forward') == 6:\n"
            "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
            "    subprocess.Popen(['sleep', '600'])\n"
            "    fault()\n"
            "    raise ValueError('too warm')  # here"
        },
        options=TWO,
        error="UserCodeError",
        words=r"the model's forward or the loss raised ValueError: too warm\nin layer 4 \(4: ",
        place={"stage": 1, "replica": 0, "step": 2, "micro_batch": 1},
    ),
    "backward": Fault(
        job={"handed": "fault()\nraise ValueError('no way back')  # here"},
        options=TWO | {"schedule": "1f1b"},
        error="UserCodeError",
        words=r"the model's backward raised ValueError: no way back",
        place={"step": 0, "micro_batch": 0},
    ),
    "both replicas at once, in the optimiser": Fault(
        job={"stepped": "if nth('step') == 2:\n    fault()\n    raise ValueError('uphill')  # here"},
        options=ONE | {"replicas": 2},
        error="UserCodeError",
        words=r"the optimiser step raised ValueError: uphill",
        place={"stage": 0, "step": 1},
    ),
    "data": Fault(
        job={"loaded": "if nth('item') == 7:\n    fault()\n    raise OSError('torn')  # here"},
        error="UserCodeError",
        words=r"loading the data raised OSError: torn",
        place={"stage": 0, "replica": 0, "step": 0},
    ),
    "loss not a number": Fault(
        job={"lost": "if nth('loss') == 7:\n    fault()\n    return output.sum() * float('nan')"},
        options=TWO,
        error="LossError",
        words=r"job.loss\(output, target\) is nan",
        place={"stage": 1, "replica": 0, "step": 3, "micro_batch": 0},
    ),
    "python ended": Fault(
        job={"watched": "if nth('forward') == 3:\n    fault()\n    sys.exit(0)  # here"},
        error="UserCodeError",
        words=r"forward or the loss raised SystemExit: 0",
        place={"stage": 0, "replica": 0, "step": 0, "micro_batch": 1},
    ),
    "out of memory": Fault(
        job={"watched": "if nth('forward') == 3:\n    fault()\n    bytearray(1 << 60)  # here"},
        error="OutOfMemory",
        words=r"the model's forward or the loss ran out of memory",
        place={"stage": 0, "replica": 0, "step": 0, "micro_batch": 1},
    ),
    "process ended with a code": Fault(
        job={"watched": "if nth('forward') == 3:\n    fault()\n    print('bye', flush=True)\n    os._exit(3)"},
        error="FunctionLost",
        words=r"exit code 3(.|\n)*last words:\nbye$|bye",
        place={"stage": 0, "replica": 0},
    ),
    "process ended as if all were well": Fault(
        job={"watched": "if nth('forward') == 3:\n    fault()\n    os._exit(0)"},
        error="FunctionLost",
        words=r"ended without a result",
        place={"stage": 0, "replica": 0},
    ),
    "segmentation fault": Fault(
        job={"watched": "if nth('forward') == 3:\n    fault()\n    os.kill(os.getpid(), signal.SIGSEGV)  # here"},
        error="FunctionLost",
        words=r"crashed|SIGSEGV",
        place={"stage": 0, "replica": 0},
    ),
    "data of another length": Fault(
        job={"sized": "if IN_FUNCTION:\n    size = 12\n    fault()"},
        options=TWO,
        error="JobError",
        words=r"train_data has 12 samples here, but 16 where the run was started",
        place={"replica": 0},
    ),
    "a file that the bundle lacks": Fault(
        job={"sized": "if IN_FUNCTION:\n    fault()\nPath('size.txt').read_text()  # here"},
        error="BundleError",
        words=r"there is no file 'size.txt' in the job's bundle: .*include=\('size.txt',\)",
        place={"stage": 0, "replica": 0},
    ),
    "a module that the bundle lacks": Fault(
        job={"sized": "if IN_FUNCTION:\n    fault()\nimportlib.import_module('hel' + 'per')  # here"},
        error="BundleError",
        words=r"there is no module 'helper' in the job's bundle.*include=\('helper.py',\)",
        place={"stage": 0, "replica": 0},
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_ends_the_run(fault: Fault, driver: Driver, tmp_path: Path) -> None:
    job = write_job(tmp_path, **fault.job)
    (tmp_path / "home/size.txt").write_text("16")
    (tmp_path / "home/helper.py").write_text("size = 16\n")

    ended = driver.train(tmp_path, job, **fault.options)

    assert ended.error["type"] == fault.error, ended.text
    assert re.search(fault.words, ended.text), ended.text
    assert {name: ended.error.get(name) for name in fault.place} == fault.place
    if "# here" in job.read_text():
        assert re.fullmatch(line_marked(job), ended.error.get("where", "nowhere")), ended.text
    assert_clear(ended)
    assert seconds_since_fault(tmp_path, ended) < WITHIN_S
    assert_nothing_left(tmp_path)
    assert assert_recorded(tmp_path, "failed")["error"] == ended.error
