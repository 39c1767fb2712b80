"""What `funcpipe plan` can be told, as data: each option under the name of its field."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, TypeVar

from funcpipe.cli_options import Figures, count, figure, number
from funcpipe.partitioner.limits import shown

__all__ = ["GROUPS", "OPTIONS", "flag_of"]

_Value = TypeVar("_Value")


def _number(text: str) -> float:
    """A number above 0."""
    return _at_least(text, "above 0", lambda value: value > 0)


def _factor(text: str) -> float:
    """A number from 0."""
    return _at_least(text, "from 0", lambda value: value >= 0)


def _at_least(text: str, expected: str, is_good: Callable[[float], bool]) -> float:
    try:
        value = number(text)
    except argparse.ArgumentTypeError:
        value = math.nan
    if not is_good(value):
        raise argparse.ArgumentTypeError(f"expected a number {expected}, found {shown(text)}")
    return value


def _several(one: Callable[[str], _Value]) -> Callable[[str], tuple[_Value, ...]]:
    """Values separated by commas."""

    def parse(text: str) -> tuple[_Value, ...]:
        return tuple(one(part.strip()) for part in text.split(","))

    return parse


# The fields of `PlanOptions` in funcpipe.planning: a test compares. `flag` where it is named
# otherwise.
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "what is best": {
        "objective": {"metavar": "GOAL", "help": "min-cost, min-time, weighted:ALPHA (ALPHA x "
                      "dollars / least dollars + (1 - ALPHA) x time / least time, ALPHA from 0 to "
                      "1) or raw:ALPHA, the same in dollars and seconds (default: min-cost)"},
        "max_time_s": {"flag": "--max-time", "type": _number, "metavar": "S", "help": "a step may "
                       "take no more than S seconds"},
        "max_cost": {"type": _number, "metavar": "D", "help": "a step may cost no more than D "
                     "dollars"},
    },
    "where it is to run": {
        "platform": {"metavar": "NAME|FILE", "help": "a name that `funcpipe platforms` lists, or a "
                     "file of your own (default: aws-lambda)"},
        "set": {"type": figure, "action": Figures, "metavar": "FIGURE=VALUE", "help": "change a "
                "figure of it, such as network.latency_s=0.05; may be given several times"},
        "batch_size": {"type": count, "metavar": "N", "help": "samples of a training step "
                       "(default: the profile's)"},
        "num_steps": {"flag": "--steps", "type": count, "metavar": "N", "help": "steps of the "
                      "whole run, over which the cost of its cold starts is spread (default: they "
                      "are left out)"},
    },
    "what may be chosen": {
        "micro_batch_sizes": {"type": _several(count), "metavar": "B[,B..]", "help": "samples of a "
                              "micro-batch (default: 1, 2, 4 ... and the batch)"},
        "degrees": {"type": _several(count), "metavar": "D[,D..]", "help": "replicas of a stage "
                    "(default: 1,2,4,8,16)"},
        "per_stage": {"action": "store_true", "help": "let each stage have a degree of its own; "
                      "degrees must then divide each other (default: one for all stages)"},
        "schedules": {"type": _several(str), "metavar": "NAME[,NAME]", "help": "gpipe, 1f1b or "
                      "both (default: both, or gpipe alone for cbc, highs, gurobi and --pareto, "
                      "which know no 1f1b)"},
        "depths": {"type": _several(count), "metavar": "N[,N..]", "help": "1f1b: micro-batches in "
                   "flight at the first stage for each stage of the plan (default: 1,2)"},
        "recompute": {"choices": ("never", "always", "choose"), "help": "compute activations again "
                      "in the backward instead of keeping them (default: never)"},
        "sync": {"type": _several(str), "metavar": "NAME[,NAME]", "help": "pipelined, three-phase "
                 "or both (default: pipelined)"},
        "tiers_mb": {"type": _several(count), "metavar": "MB[,MB..]", "help": "memory sizes "
                     "(default: the platform's memory.tiers_mb)"},
        "max_functions": {"type": count, "metavar": "N", "help": "functions at once (default: as "
                          "many as the platform runs)"},
        "min_stages": {"type": count, "metavar": "S", "help": "at least so many stages (default: "
                       "1)"},
        "max_stages": {"type": count, "metavar": "S", "help": "at most so many stages (default: "
                       "one for each layer)"},
    },
    "the search": {
        "solver": {"choices": ("auto", "search", "cbc", "highs", "gurobi", "exhaustive"),
                   "help": "what searches: auto takes our own search, which "
                   "proves what it finds; cbc, highs and gurobi solve a mixed-integer program; "
                   "exhaustive tries everything (default: auto)"},
        "time_limit_s": {"flag": "--time-limit", "type": _number, "metavar": "S", "help": "end the "
                         "search after S seconds with the best plan so far, and say how far from "
                         "the best it may be (default: 60)"},
        "merge": {"type": count, "metavar": "N", "help": "put neighbouring layers together until N "
                  "are left, so that a long model is planned faster; cuts inside of them are then "
                  "not considered"},
    },
    "profiles that others published": {
        "format": {"choices": ("auto", "funcpipe", "pipedream", "dnn-partitioning", "piper"),
                   "help": "whose profile the file holds (default: auto, by "
                   "what is in it)"},
        "samples": {"type": count, "metavar": "N", "help": "samples that it was measured with at "
                    "once"},
        "slowdown": {"type": _number, "metavar": "X", "help": "how many times slower one vCPU is "
                     "than what it was measured on"},
        "parallel": {"type": _factor, "metavar": "P", "help": "share of the work that more vCPUs "
                     "make faster, from 0 to 1"},
        "profile_vcpus": {"type": _several(_number), "metavar": "V[,V..]", "help": "vCPUs to write "
                          "times down for"},
        "optimizer_factor": {"type": _factor, "metavar": "X", "help": "bytes of optimiser state "
                             "for each byte of weights: 0 for SGD, 1 with momentum, 2 for Adam"},
    },
}  # fmt: skip
OPTIONS = tuple(name for group in GROUPS.values() for name in group)


def flag_of(name: str, settings: dict[str, Any]) -> str:
    """As it is typed: ``--max-time``."""
    return str(settings.get("flag", "--" + name.replace("_", "-")))
