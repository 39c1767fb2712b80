"""What `funcpipe train` can be told, as data: each option under the name of its field."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from funcpipe.partitioner.limits import MOST_COUNT, read_count, read_number, shown

__all__ = ["GROUPS", "OPTIONS", "Figures", "count", "figure", "number"]

_MOST_DIGITS = 18  # of a seed


def count(text: str) -> int:
    """A whole number from 1."""
    try:
        return read_count(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 to {MOST_COUNT:,}, found {shown(text)}"
        ) from None


def number(text: str) -> float:
    try:
        return read_number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, found {shown(text)}") from None


def _whole(text: str) -> int:
    """A whole number of either sign."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at most {_MOST_DIGITS} digits, found {shown(text)}"
        )
    return int(text)


def _file(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected the name of a file, found an empty one")
    return Path(text)


def figure(text: str) -> tuple[str, str]:
    """A figure's path and what it is set to."""
    path, equals, value = text.partition("=")
    if not (path and equals and value):
        raise argparse.ArgumentTypeError(
            f"expected FIGURE=VALUE such as network.latency_s=0.05, found {shown(text)}"
        )
    return path, value


class Figures(argparse.Action):
    """Collects ``FIGURE=VALUE`` into a mapping."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), values[0]: values[1]})


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(count(part.strip()) for part in text.split(","))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"expected a whole number from 1 to {MOST_COUNT:,}, or one per stage such as 2,1; "
            f"found {shown(text)}"
        ) from None


def _stage_numbers(text: str) -> str | tuple[int, ...]:
    if text in ("none", "all", "choose"):
        return text
    try:
        return tuple(read_count(part.strip(), least=0) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            "expected none, all, choose, or numbers of stages from 0 such as 0,2; found "
            f"{shown(text)}"
        ) from None


# The fields of `RunOptions` in funcpipe.driver.options, each under its own name: a test compares.
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "the plan": {
        "stages": {"type": count, "metavar": "S", "help": "cut the model into S stages, balanced "
                   "by their arithmetic (default: 2, or 1 for a model of one layer, if another of "
                   "these options is given)"},
        "replicas": {"type": _counts, "metavar": "D[,D..]", "help": "functions per stage: one "
                     "number for all stages, or one for each (default: 1)"},
        "micro_batch_size": {"type": count, "metavar": "B", "help": "samples of a micro-batch "
                             "(default: a quarter of the job's batch, rounded up)"},
        "schedule": {"choices": ("gpipe", "1f1b"), "help": "order of forwards and backwards: all "
                     "forwards first, or taking turns, which keeps fewer activations in memory "
                     "(default: gpipe)"},
        "in_flight": {"type": count, "metavar": "N", "help": "1f1b: micro-batches between forward "
                      "and backward at the first stage (default: the number of stages)"},
        "sync": {"choices": ("pipelined", "three-phase"), "help": "how replicas of a stage add up "
                 "their gradients (default: pipelined)"},
        "recompute": {"type": _stage_numbers, "metavar": "none|all|S[,S..]|choose", "help":
                      "stages, counted from 0, that compute activations again in the backward "
                      "instead of keeping them: less memory, one more forward; choose leaves it to "
                      "the planner (default: none)"},
        "memory_mb": {"type": _counts, "metavar": "MB[,MB..]", "help": "memory of each function: "
                      "one number for all stages, or one each; its share of a CPU grows with it "
                      "(default: the platform's, such as 1769)"},
        "plan": {"type": _file, "metavar": "plan.json", "help": "run exactly this plan, instead of "
                 "the options above; every run writes its own into its folder"},
    },
    "where it runs": {
        "platform": {"metavar": "NAME", "help": "what runs the functions; so far `local`, an "
                     "emulated platform on this machine (default: local)"},
        "store": {"metavar": "STORE", "help": "where they exchange objects: auto (minio if there "
                  "is one on PATH or in FUNCPIPE_MINIO, else seaweedfs), minio, seaweedfs or "
                  "juicefs, each started here and gone after the run; a directory; or "
                  "s3://bucket/prefix (default: auto)"},
        "endpoint": {"metavar": "URL", "help": "with s3://: the server, such as "
                     "http://127.0.0.1:9000; without it Amazon's. Credentials come from AWS_* "
                     "variables"},
        "region": {"metavar": "R", "help": "with s3://: the bucket's region"},
        "threads": {"type": count, "metavar": "N", "help": "threads of the numerical libraries "
                    "in each function; results have the same bits only for the same number "
                    "(default: what the platform gives a function of its memory)"},
    },
    "the emulated platform": {
        "emulate": {"metavar": "NAME|FILE", "help": "what `local` emulates: a name that `funcpipe "
                    "platforms` lists, a file of your own, or none: no limits, no prices "
                    "(default: aws-lambda)"},
        "set": {"type": figure, "action": Figures, "metavar": "FIGURE=VALUE", "help": "change a "
                "figure of it, such as network.latency_s=0.05; may be given several times"},
        "dilation": {"type": number, "metavar": "X", "help": "emulate X times slower than real "
                     "time; seconds are then the platform's (default: as this machine needs)"},
        "emulate_seed": {"type": _whole, "metavar": "N", "help": "decides which invocations the "
                         "platform delivers twice, if any (default: 0)"},
    },
    "the run": {
        "run_dir": {"type": Path, "metavar": "DIR", "help": "folder for what the run leaves, new "
                    "or empty (default: runs/ID)"},
        "steps": {"type": count, "metavar": "N", "help": "stop after N training steps (default: "
                  "all epochs of the job)"},
        "report_every": {"type": count, "metavar": "N", "help": "tell of the loss every N steps, "
                         "which saves requests (default: 1)"},
    },
}  # fmt: skip
OPTIONS = tuple(name for group in GROUPS.values() for name in group)
