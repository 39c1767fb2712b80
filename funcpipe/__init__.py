"""Train PyTorch models on serverless functions, and plan how.

The public names are imported when they are first used, so that ``import funcpipe`` is quick and
loads neither torch nor a cloud's SDK.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from funcpipe.api import evaluate, pareto, plan, profile, reference, train
    from funcpipe.errors import FuncpipeError
    from funcpipe.job import Job
    from funcpipe.partitioner.plan import Plan
    from funcpipe.partitioner.profile import LayerProfile, ModelProfile

__version__ = "0.1.0"

# Each public name and the module that defines it; the imports above tell type checkers the same.
_EXPORTS = {
    "FuncpipeError": "funcpipe.errors",
    "Job": "funcpipe.job",
    "LayerProfile": "funcpipe.partitioner.profile",
    "ModelProfile": "funcpipe.partitioner.profile",
    "Plan": "funcpipe.partitioner.plan",
    "evaluate": "funcpipe.api",
    "pareto": "funcpipe.api",
    "plan": "funcpipe.api",
    "profile": "funcpipe.api",
    "reference": "funcpipe.api",
    "train": "funcpipe.api",
}

__all__ = [
    "FuncpipeError",
    "Job",
    "LayerProfile",
    "ModelProfile",
    "Plan",
    "__version__",
    "evaluate",
    "pareto",
    "plan",
    "profile",
    "reference",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
