"""The workers' timelines as a file of the run folder, with what is needed to understand them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from funcpipe.invocation import RunSpec

__all__ = ["timelines", "write_timelines"]

FORMAT = 1


def timelines(
    spec: RunSpec,
    results: Mapping[tuple[int, int], Mapping[str, Any]],
    *,
    batch_size: int,
    dilation: float = 1.0,
) -> dict[str, Any]:
    """JSON-ready. results: those that the functions left, by stage and replica. batch_size: of the
    job.

    `shape` and `run` give each worker's programs: `funcpipe.passes.passes`, `program_of`.
    Times are platform seconds, which take `dilation` real ones: `began_at` since a moment that all
    workers share; rows are those of `funcpipe.worker.timeline.Record`.
    """
    workers = [
        {
            "stage": stage,
            "replica": replica,
            "began_at": result["began_at"] / dilation,
            "rows": result["timeline"],
        }
        for (stage, replica), result in sorted(results.items())
    ]
    run = {
        "num_train": spec.num_train,
        "num_eval": spec.num_eval,
        "num_steps": spec.num_steps,
        "batch_size": batch_size,
        "micro_batch_size": spec.plan.micro_batch_size,
        "report_every": spec.report_every,
    }
    return {"format": FORMAT, "shape": asdict(spec.shape), "run": run, "workers": workers}


def write_timelines(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
