"""From what the user names to a loaded `Job`, and from a `Job` to the file that made it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from funcpipe.errors import BundleError, FuncpipeError, JobError, JobImportError
from funcpipe.imports import archive_path, base_of, loaded_local_modules
from funcpipe.job import Job
from funcpipe.usercode import explain, is_installed, user_frame

__all__ = ["LoadedJob", "import_job", "importing_job", "load_job", "located"]

DEFAULT_ATTRIBUTE = "job"

_importing: ContextVar[bool] = ContextVar("funcpipe_importing_job", default=False)
# What importing each job brought into sys.modules, by the job's root and module name, and the
# state of those files then.
_brought: dict[tuple[Path, str], dict[str, Path]] = {}
_stamps: dict[Path, tuple[int, int] | None] = {}


@dataclass(frozen=True, kw_only=True)
class LoadedJob:
    """A job and where it comes from.

    `module` is importable by that name with the folder `root` on `sys.path`, and its `attribute`
    is the job. `modules` are the user's own modules that importing it has loaded, by name.
    """

    job: Job
    ref: str
    file: Path
    root: Path
    module: str
    attribute: str
    modules: Mapping[str, Path]


def importing_job() -> bool:
    """Whether a job's module is being imported, so that starting a run now is a mistake."""
    return _importing.get()


def load_job(ref: str | os.PathLike[str]) -> LoadedJob:
    """The job that `ref` names, imported.

    ``path/job.py`` or ``path/job.py:attribute`` is imported from its own folder, under its stem's
    name; ``package.module`` or ``package.module:attribute`` as ``python -m`` would find it, from
    the working directory first. The attribute is ``job`` unless given. The folder stays first on
    `sys.path`. Modules that another job brought in from elsewhere are dropped from `sys.modules`,
    and so are the job's own if one of their files has changed since.

    Raises `JobError` for what cannot be found and `JobImportError`, with the user's own line, for
    what does not import.
    """
    text = os.fspath(ref)
    target, _, attribute = text.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if not target:
        raise JobError(f"{text!r} names no job; expected path/to/job.py or package.module")
    if target.endswith(".py") or os.sep in target or os.path.isdir(target):
        root, name = _split_path(target)
    else:
        root, name = _find_module(target)
    module = _import(root, name)
    file = Path(os.path.abspath(str(module.__file__)))
    return LoadedJob(
        job=_job_in(module, attribute, Path(target).name if os.sep in target else target),
        ref=text,
        file=file,
        root=root,
        module=name,
        attribute=attribute,
        modules=_loaded_beside(root, name) | {name: file},
    )


def located(job: Job) -> LoadedJob:
    """The file and the attribute that hold `job`, a job that was made in Python.

    Raises `JobError` if it was made in a notebook or at a prompt, or is not a variable of its
    module: functions import the file anew and must find the job in it.
    """
    if not isinstance(job, Job):
        raise JobError(f"expected a funcpipe.Job, found {type(job).__name__}")
    if job.origin.file is None:
        raise JobError(
            "this Job was made in a notebook, at a prompt or in a string, where functions cannot "
            "import it from: write it into a file, such as job.py, and pass 'job.py' or import it"
        )
    held = next(_holders(job), None)
    if held is None:
        raise JobError(
            f"this Job, made in {job.origin.file.name}, is not a variable of its module, so "
            "functions cannot find it: write `job = fp.Job(...)` at the top level of the file"
        )
    holder, attribute = held
    file = Path(os.path.abspath(str(holder.__file__)))
    name = _importable_name(holder, file)
    root = base_of(name, file)
    return LoadedJob(
        job=job,
        ref=f"{file}:{attribute}",
        file=file,
        root=root,
        module=name,
        attribute=attribute,
        modules=_loaded_beside(root, name) | {name: file},
    )


def import_job(root: Path, name: str, attribute: str) -> Job:
    """The job in `attribute` of module `name`, found in the folder `root` (an unpacked bundle)."""
    if _file_in(root, name) is None:
        raise BundleError(f"the job's bundle has no module {name!r}")
    return _job_in(_import(root, name), attribute, name)


# -- finding ---------------------------------------------------------------------------------


def _split_path(target: str) -> tuple[Path, str]:
    path = Path(os.path.abspath(target))
    if path.is_dir():
        inside = sorted(path.glob("*.py"))
        hint = _names_hint("job.py", [file.name for file in inside])
        raise JobError(f"{target} is a folder; expected a job file in it{hint}")
    if path.suffix != ".py":
        hint = f"; did you mean {target}.py?" if path.with_name(f"{path.name}.py").is_file() else ""
        raise JobError(f"{target} is not a Python file (its name does not end in .py){hint}")
    if not path.is_file():
        if not path.parent.is_dir():
            raise JobError(f"there is no file {target}: the folder {path.parent} does not exist")
        names = [file.name for file in path.parent.glob("*.py")]
        raise JobError(f"there is no file {target}{_names_hint(path.name, names)}")
    if "." in path.stem or path.stem in {"__init__", "__main__"}:
        raise JobError(
            f"{target} cannot be imported under the name {path.stem!r}; rename it, to job.py for "
            "example"
        )
    return path.parent, path.stem


def _find_module(target: str) -> tuple[Path, str]:
    here = Path.cwd()
    if _file_in(here, target) is not None:
        return here, target
    try:
        spec = importlib.util.find_spec(target)
    except ModuleNotFoundError:
        spec = None
    except Exception as exc:
        raise _import_error(exc, target, here) from exc
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        hint = f"; did you mean {target}.py?" if Path(f"{target}.py").is_file() else ""
        raise JobError(
            f"there is no module {target!r}, neither in {here} nor installed{hint} "
            "(a job is named as path/to/job.py or package.module, with :attribute if it is not "
            "called job)"
        )
    return base_of(target, Path(os.path.abspath(spec.origin))), target


def _file_in(root: Path, name: str) -> Path | None:
    stem = root.joinpath(*name.split("."))
    candidates = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
    return next((file for file in candidates if file.is_file()), None)


def _names_hint(wanted: str, names: list[str]) -> str:
    close = difflib.get_close_matches(wanted, names, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(sorted(names)[:10])}" if names else ""


def _holders(job: Job) -> Iterator[tuple[ModuleType, str]]:
    """Modules with a file that hold the job as a variable; the one that made it first."""
    first = [sys.modules.get(job.origin.module), sys.modules.get("__main__")]
    for module in (*first, *list(sys.modules.values())):
        if module is not None and isinstance(getattr(module, "__file__", None), str):
            for attribute, value in list(vars(module).items()):
                if value is job:
                    yield module, attribute


def _loaded_beside(root: Path, name: str) -> dict[str, Path]:
    """What importing the job has brought or, if others imported it, what is loaded below `root`."""
    known = _brought.get((root, name))
    if known is not None:
        return dict(known)
    below = f"{root}{os.sep}"
    return loaded_local_modules(
        [
            other
            for other, module in list(sys.modules.items())
            if str(getattr(module, "__file__", None)).startswith(below)
        ]
    )


def _importable_name(module: ModuleType, file: Path) -> str:
    name = module.__name__
    if name == "__main__":
        name = module.__spec__.name if module.__spec__ is not None else file.stem
    return name if archive_path(name, file) is not None else file.stem


# -- importing -------------------------------------------------------------------------------


def _import(root: Path, name: str) -> ModuleType:
    """Module `name` from the folder `root`, which goes first on `sys.path`."""
    _refuse_hiding(root, name)
    _drop_other_jobs(root, name)
    _drop_if_elsewhere(root, name)
    path_before = list(sys.path)
    sys.path[:] = [str(root), *(entry for entry in sys.path if entry != str(root))]
    importlib.invalidate_caches()
    names_before = set(sys.modules)
    token = _importing.set(True)
    folder = os.getcwd()
    try:
        with _explained(name, root):
            module = importlib.import_module(name)
    except FuncpipeError:
        sys.path[:] = path_before
        raise
    finally:
        _importing.reset(token)
        os.chdir(folder)  # relative paths on the command line are the caller's
    if name not in names_before:
        fresh = loaded_local_modules(set(sys.modules) - names_before)
        _brought[root, name] = fresh
        _stamps.update((file, _stamp(file)) for file in fresh.values())
    return module


@contextmanager
def _explained(name: str, root: Path) -> Iterator[None]:
    try:
        yield
    except FuncpipeError as error:
        raise error.at(where=user_frame(error, [root])) from error.__cause__
    except SystemExit as exc:
        raise JobImportError(
            f"{name} ended Python (sys.exit) while it was imported; put what a script does under "
            'if __name__ == "__main__":',
            where=user_frame(exc, [root]),
        ) from exc
    except Exception as exc:
        raise _import_error(exc, name, root) from exc


def _import_error(exc: Exception, name: str, root: Path) -> FuncpipeError:
    error = explain(exc, f"importing {name}", roots=[root], kind=JobImportError)
    if type(error) is JobImportError and isinstance(exc, ModuleNotFoundError):
        error.message += (
            "; install it, or put the file that defines it beside the job or on PYTHONPATH"
        )
    return error


def _refuse_hiding(root: Path, name: str) -> None:
    """A job named as an installed module would take that module's place for everyone."""
    top = name.partition(".")[0]
    file = _file_in(root, top)
    loaded = getattr(sys.modules.get(top), "__file__", None)
    installed = loaded is not None and is_installed(loaded)
    if file is None or (installed and os.path.abspath(str(loaded)) == str(file)):
        return
    if installed or top in sys.stdlib_module_names or top == "funcpipe":
        raise JobError(
            f"{file} has the name of the module {top!r}, which it would hide from every other "
            "import; rename it, to job.py for example"
        )


def _drop_other_jobs(root: Path, name: str) -> None:
    """Forget what jobs of other folders brought in (names may be the same), and what is stale."""
    for key, modules in list(_brought.items()):
        stale = key == (root, name) and any(
            _stamp(file) != _stamps.get(file) for file in modules.values()
        )
        if key[0] == root and not stale:
            continue
        for other, file in modules.items():
            loaded = getattr(sys.modules.get(other), "__file__", None)
            if loaded is not None and os.path.abspath(loaded) == str(file):
                del sys.modules[other]
        del _brought[key]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _drop_if_elsewhere(root: Path, name: str) -> None:
    """Forget the top-level package of `name` if it, or part of it, was loaded from elsewhere."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        part = ".".join(parts[:count])
        expected = _file_in(root, part)
        loaded = getattr(sys.modules.get(part), "__file__", None)
        if expected is None or loaded is None or os.path.abspath(loaded) == str(expected):
            continue
        for other in list(sys.modules):
            if other == parts[0] or other.startswith(f"{parts[0]}."):
                del sys.modules[other]


def _job_in(module: ModuleType, attribute: str, shown: str) -> Job:
    value = vars(module).get(attribute)
    if isinstance(value, Job):
        return value
    jobs = sorted(name for name, item in vars(module).items() if isinstance(item, Job))
    found = f"has the jobs {', '.join(jobs)}" if jobs else "has no Job at its top level"
    if attribute not in vars(module):
        raise JobError(
            f"{shown} has no {attribute!r}; it {found}"
            + (f": name one, as {shown}:{jobs[0]}" if jobs else ": write job = fp.Job(...)")
        )
    raise JobError(
        f"{attribute!r} in {shown} is {type(value).__name__}, not a funcpipe.Job; the file {found}"
    )
