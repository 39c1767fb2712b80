"""Running the user's code: whose fault an exception is, and on which of the user's own lines."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from funcpipe.errors import BundleError, FuncpipeError, LossError, OutOfMemory, UserCodeError

__all__ = [
    "BUNDLE_MARKER",
    "defined_at",
    "explain",
    "inside_function",
    "is_installed",
    "text_of",
    "user_code",
    "user_frame",
]

#: The file that every unpacked bundle has in its folder: it tells a function from the user's tree.
BUNDLE_MARKER = ".funcpipe-bundle.json"

_PACKAGE = Path(__file__).resolve().parent
_OWN = tuple(
    str(folder.resolve())
    for folder in (_PACKAGE, *(_PACKAGE / name for name in ("partitioner", "functions", "deploy")))
)
_SITE_FOLDERS = {"site-packages", "dist-packages"}
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})


def inside_function() -> bool:
    """Whether this process is a function of a run (then nothing may start another run)."""
    return os.environ.get("FUNCPIPE_FUNCTION") == "1"


def is_installed(file: str | os.PathLike[str]) -> bool:
    """Whether a source file belongs to Python, to an installed package or to funcpipe itself."""
    path = os.path.abspath(file)
    # Links are followed only if need be: that takes a system call per folder.
    return _looks_installed(path) or _looks_installed(os.path.realpath(path))


def _looks_installed(path: str) -> bool:
    if not _SITE_FOLDERS.isdisjoint(path.split(os.sep)):
        return True
    return any(_lies_under(path, folder) for folder in (*_OWN, *_STANDARD))


def user_frame(exc: BaseException, roots: Sequence[Path]) -> str | None:
    """The user's own line in the traceback: ``job.py:12 in forward: return self.fc(x)``.

    That is the innermost frame in a file under `roots` or, if there is none, the innermost one
    outside funcpipe, installed packages and the standard library; None if there is none either.
    For a syntax error it is the line that does not parse.
    """
    if isinstance(exc, SyntaxError) and exc.filename and not is_installed(exc.filename):
        source = (exc.text or "").strip()
        return f"{_shown(exc.filename, roots)}:{exc.lineno}: {source}"
    frames = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith("<") and not is_installed(frame.filename)
    ]
    own = [frame for frame in frames if _root_of(frame.filename, roots) is not None]
    for frame in reversed(own or frames):
        source = f": {frame.line}" if frame.line else ""
        return f"{_shown(frame.filename, roots)}:{frame.lineno} in {frame.name}{source}"
    return None


def text_of(exc: BaseException) -> str:
    """``ValueError: its text``, as Python would print it, without a traceback."""
    if isinstance(exc, SyntaxError):
        return f"{type(exc).__name__}: {exc.msg}"
    return "".join(traceback.format_exception_only(exc)).strip()


def defined_at(function: object, roots: Sequence[Path]) -> str | None:
    """Where the user has defined `function`: ``job.py:30 in loss: def loss(output, target):``."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or is_installed(code.co_filename):
        return None
    file, line = code.co_filename, code.co_firstlineno
    source = linecache.getline(file, line).strip()
    return f"{_shown(file, roots)}:{line} in {code.co_name}{f': {source}' if source else ''}"


@contextmanager
def user_code(
    what: str,
    *,
    roots: Sequence[Path],
    origin: Path | None = None,
    loss: object = None,
) -> Iterator[None]:
    """Run the user's code in the ``with`` block; `what` names it, as in "the loss".

    Any `Exception` becomes what `explain` makes of it, chained, and so does ``sys.exit()``, which
    would end a thread without a word; `FuncpipeError`s pass through. What is wrong with the value
    that the job's `loss` returned is told with the place where that is defined.
    """
    try:
        yield
    except LossError as error:
        error.at(where=defined_at(loss, roots))
        raise
    except FuncpipeError:
        raise
    except (Exception, SystemExit) as exc:
        raise explain(exc, what, roots=roots, origin=origin) from exc


def explain(
    exc: BaseException,
    what: str,
    *,
    roots: Sequence[Path],
    origin: Path | None = None,
    kind: type[FuncpipeError] = UserCodeError,
) -> FuncpipeError:
    """The error that tells the user about `exc`, which `what` raised, with the user's own line.

    * Out of memory is `OutOfMemory`.
    * In a function (`inside_function`, or a root that is an unpacked bundle), a missing module,
      or a missing file whose path is relative, in the bundle or in the job's original folder
      `origin`, is a `BundleError` that says what to include.
    * Anything else is `kind`, with the original text.
    """
    where = user_frame(exc, roots)
    if _is_out_of_memory(exc):
        return OutOfMemory(f"{what} ran out of memory ({text_of(exc)})", where=where)
    if inside_function() or any((root / BUNDLE_MARKER).is_file() for root in roots):
        lack = None
        if isinstance(exc, ModuleNotFoundError) and exc.name:
            lack = _lacking_module(exc.name)
        elif isinstance(exc, FileNotFoundError):
            lack = _lacking_file(exc, [*roots, *([origin] if origin else [])])
        if lack:
            return BundleError(f"{what} failed: {lack}", where=where)
    return kind(f"{what} raised {text_of(exc)}", where=where)


def _is_out_of_memory(exc: BaseException) -> bool:
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return True
    # torch has no class of its own for a failed allocation on the CPU.
    return type(exc) is RuntimeError and "DefaultCPUAllocator: can't allocate" in str(exc)


def _lacking_module(name: str) -> str:
    path = name.replace(".", "/")
    return (
        f"there is no module {name!r} in the job's bundle or in the function's environment. If it "
        f"is your own, add it to the job: include=({path + '.py'!r},), or include=({path!r},) for "
        "a folder; if it is a package, install it on the platform"
    )


def _lacking_file(exc: FileNotFoundError, roots: Sequence[Path]) -> str | None:
    if not isinstance(exc.filename, str | bytes):
        # Libraries raise it with a text alone.
        return (
            f"{exc}. Functions see only the files of the bundle: if it lies beside the job file, "
            "add it to the job: include=('its name',)"
        )
    name = os.fsdecode(exc.filename)
    if os.path.isabs(name):
        root = _root_of(name, roots)
        if root is None:
            return None
        name = os.path.relpath(os.path.realpath(name), os.path.realpath(root))
    name = os.path.normpath(name)
    advice = (
        "functions see only the files of the bundle, so move it into the job's folder and add it "
        "to the job's include"
        if name.startswith("..")
        else f"if it lies beside the job file, add it to the job: include=({name!r},)"
    )
    return f"there is no file {name!r} in the job's bundle: {advice}"


def _lies_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _root_of(file: str, roots: Sequence[Path]) -> Path | None:
    real = os.path.realpath(file)
    return next((root for root in roots if _lies_under(real, os.path.realpath(root))), None)


def _shown(file: str, roots: Sequence[Path]) -> str:
    root = _root_of(file, roots)
    if root is None:
        return os.path.basename(file)
    return os.path.relpath(os.path.realpath(file), os.path.realpath(root))
