"""Leaving a process as it was found: platforms run one function after the other in it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from funcpipe.model import rng
from funcpipe.worker.memory import forget_peak
from funcpipe.worker.runner import join_lanes

__all__ = ["clean_process"]

_used = threading.Event()


@contextmanager
def clean_process(folder: Path) -> Iterator[None]:
    """Run a function whose bundle is unpacked below `folder`, in a process that may be warm.

    Before it, what an earlier one has left is waited for and collected, and its peak of memory
    forgotten. After it, modules from `folder` are no longer loaded, and import paths, working
    folder, environment variables, generators of random numbers and torch's global settings are
    as before. What else user code may have changed (installed modules, signals) stays.
    """
    if _used.is_set():
        join_lanes()
        gc.collect()
        forget_peak()
    _used.set()
    path, variables, here = list(sys.path), dict(os.environ), os.getcwd()
    settings = _TorchSettings()
    with rng.preserved():
        try:
            yield
        finally:
            os.chdir(here)
            _restore_variables(variables)
            sys.path[:] = path
            _forget_modules(folder)
            settings.restore()


class _TorchSettings:
    """Those of the whole process that change what a model computes."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        self._dtype = torch.get_default_dtype()
        self._deterministic = torch.are_deterministic_algorithms_enabled()
        self._warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self._precision = torch.get_float32_matmul_precision()

    def restore(self) -> None:
        torch.set_num_threads(self._threads)
        torch.set_default_dtype(self._dtype)
        torch.use_deterministic_algorithms(self._deterministic, warn_only=self._warn_only)
        torch.set_float32_matmul_precision(self._precision)


def _restore_variables(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)


def _forget_modules(folder: Path) -> None:
    below = f"{os.path.abspath(folder)}{os.sep}"
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None), *_folders(module)]
        if any(isinstance(place, str) and place.startswith(below) for place in places):
            sys.modules.pop(name, None)
    for place in [place for place in sys.path_importer_cache if place.startswith(below)]:
        sys.path_importer_cache.pop(place, None)


def _folders(module: object) -> list[object]:
    """Where a package has its modules, also one without a file."""
    try:
        return list(getattr(module, "__path__", ()))
    except TypeError:
        return []
