"""Environment variables of functions: few, and the same for all of them."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from funcpipe.emulator.credentials import Credentials
from funcpipe.emulator.guarded import base_environment
from funcpipe.errors import PlatformError

__all__ = ["for_functions", "for_template", "paths_in", "with_threads"]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def for_functions(
    folder: Path, environment: Mapping[str, str], credentials: Credentials | None
) -> dict[str, str]:
    """What all functions see. `folder` is where what they import can be linked."""
    variables = {
        **base_environment(),
        # A machine of a cloud would otherwise offer its own credentials, after a long wait.
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONHASHSEED": "0",  # all functions see a set in one order
        # A thread that spins until the others are ready uses up what it may compute later.
        "OMP_WAIT_POLICY": "PASSIVE",
        **environment,
        **(credentials.to_environment() if credentials else {}),
    }
    python_path = [_library(folder), variables.get("PYTHONPATH")]
    return {**variables, "PYTHONPATH": os.pathsep.join(path for path in python_path if path)}


def for_template(variables: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Of the process that functions are forked from: one thread, and its files in `folder`."""
    return {**with_threads(variables, 1), "TMPDIR": str(folder)}


def with_threads(variables: Mapping[str, str], threads: int) -> dict[str, str]:
    return {**variables, **dict.fromkeys(_THREADS, str(threads))}


def paths_in(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Files and folders that the variables name."""
    named = [path for text in variables.values() for path in (text, *text.split(os.pathsep))]
    return tuple({path: None for path in named if os.path.isabs(path) and os.path.exists(path)})


def _library(folder: Path) -> str | None:
    """A folder from which this very funcpipe, and nothing beside it, can be imported."""
    package = Path(__file__).resolve().parents[1]
    if str(package.parent) in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        return None
    library = folder / "library"
    try:
        library.mkdir()
        (library / package.name).symlink_to(package)
    except OSError as error:
        raise PlatformError(f"cannot prepare {folder}: {error}") from error
    return str(library)
