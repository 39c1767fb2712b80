"""The user's own modules: which are loaded, and which ones a source file may import.

A module is *local* when it belongs neither to Python nor to an installed package (a folder
``site-packages``) nor to funcpipe: the user's scripts, the packages beside them, editable installs.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path, PurePosixPath

from funcpipe.usercode import is_installed

__all__ = ["archive_path", "base_of", "loaded_local_modules", "reachable"]

_SUFFIXES = (".py", *EXTENSION_SUFFIXES)


def loaded_local_modules(names: Iterable[str] | None = None) -> dict[str, Path]:
    """Name and file of the local modules in `sys.modules`, or of those among `names`.

    ``__main__`` is left out, and so is a module whose file has not its name (nothing could import
    it by that name elsewhere).
    """
    found = {}
    for name in list(sys.modules) if names is None else names:
        file = getattr(sys.modules.get(name), "__file__", None)
        if name == "__main__" or not isinstance(file, str) or name.partition(".")[0] == "funcpipe":
            continue
        path = Path(os.path.abspath(file))
        if not is_installed(path) and path.is_file() and archive_path(name, path) is not None:
            found[name] = path
    return found


def archive_path(name: str, file: Path) -> str | None:
    """Where module `name` must lie below a folder on `sys.path`: ``a/b.py``, ``a/__init__.py``.

    None if the file's own place does not end so.
    """
    stem = PurePosixPath(*name.split("."))
    for suffix in _SUFFIXES:
        for candidate in (f"{stem}{suffix}", f"{stem}/__init__{suffix}"):
            if PurePosixPath(file).parts[-candidate.count("/") - 1 :] == tuple(
                candidate.split("/")
            ):
                return candidate
    return None


def base_of(name: str, file: Path) -> Path:
    """The folder on `sys.path` below which module `name` lies."""
    relative = archive_path(name, file)
    if relative is None:
        raise ValueError(f"{file} is not the file of a module {name}")
    return file.parents[relative.count("/")]


def reachable(
    starts: Mapping[str, Path], *, root: Path, known: Mapping[str, Path]
) -> dict[str, Path]:
    """The local modules that the modules `starts` import, directly or not, and `starts`.

    Found in the sources, so that imports inside functions count too. Top-level names are looked
    up in `root` first, then in `known`, then as Python would. Nothing is imported. A job that is
    itself part of an installed package brings the modules of that package, and no other.
    """
    own = frozenset(name.partition(".")[0] for name in starts)
    finder = _Finder(root=root, known=known, own=own)
    found: dict[str, Path] = {}
    waiting = dict(starts)
    while waiting:
        name, file = waiting.popitem()
        if name in found:
            continue
        found[name] = file
        for imported in _imported_names(name, file):
            # Importing a.b.c imports a and a.b as well.
            parts = imported.split(".")
            for count in range(1, len(parts) + 1):
                candidate = ".".join(parts[:count])
                place = finder.find(candidate)
                if place is None:
                    break
                if place.file is not None and candidate not in found:
                    waiting[candidate] = place.file
    return found


def _imported_names(name: str, file: Path) -> Iterator[str]:
    if file.suffix != ".py":
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError):
        return  # It cannot be imported, so it imports nothing.
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    if package:
        yield package
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from_names(node, package)
        elif isinstance(node, ast.Call):
            yield from _called_name(node)


def _from_names(node: ast.ImportFrom, package: str) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        parents = package.split(".")
        if node.level > len(parents):
            return
        above = ".".join(parents[: len(parents) - node.level + 1])
        base = f"{above}.{base}".strip(".")
    if base:
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _called_name(node: ast.Call) -> Iterator[str]:
    """The module of ``importlib.import_module("a.b")`` and ``__import__("a.b")``."""
    function = node.func
    called = getattr(function, "attr", getattr(function, "id", None))
    if called in {"import_module", "__import__"} and node.args:
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            name = first.value
            if name and not name.startswith("."):
                yield name


@dataclass(frozen=True)
class _Place:
    file: Path | None  # None: a namespace package
    folders: tuple[Path, ...] = ()  # where its submodules are


@dataclass
class _Finder:
    root: Path
    known: Mapping[str, Path]
    own: frozenset[str]  # top-level names that count as local even if they are installed
    cache: dict[str, _Place | None] = field(default_factory=dict)

    def find(self, name: str) -> _Place | None:
        """Where local module `name` is; None if there is none or it is not local."""
        if name not in self.cache:
            parent = name.rpartition(".")[0]
            if parent:
                above = self.find(parent)
                folders = above.folders if above else ()
                self.cache[name] = _look(folders, name.rpartition(".")[2])
            else:
                self.cache[name] = self._top(name)
        return self.cache[name]

    def _top(self, name: str) -> _Place | None:
        if name == "funcpipe" or name in sys.stdlib_module_names:
            return None
        beside = _look((self.root,), name)
        if beside and beside.file:
            return beside if name in self.own or not is_installed(beside.file) else None
        if name in self.known:
            return _place_of(self.known[name])
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            spec = None
        if spec is None or spec.origin in {"built-in", "frozen"}:
            return beside
        if spec.origin is not None:
            file = Path(os.path.abspath(spec.origin))
            return _place_of(file) if file.is_file() and not is_installed(file) else None
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        own = [folder for folder in folders if not is_installed(folder)]
        if beside:
            own = [*beside.folders, *(folder for folder in own if folder not in beside.folders)]
        return _Place(None, tuple(own)) if own else None


def _place_of(file: Path) -> _Place:
    is_package = file.name.partition(".")[0] == "__init__"
    return _Place(file, (file.parent,) if is_package else ())


def _look(folders: Iterable[Path], name: str) -> _Place | None:
    """A module `name` in `folders`, found as Python finds it: packages before files."""
    namespace = []
    for folder in folders:
        package = folder / name
        for suffix in _SUFFIXES:
            if (package / f"__init__{suffix}").is_file():
                return _place_of(package / f"__init__{suffix}")
        for suffix in _SUFFIXES:
            if (folder / f"{name}{suffix}").is_file():
                return _Place(folder / f"{name}{suffix}")
        if package.is_dir():
            namespace.append(package)
    return _Place(None, tuple(namespace)) if namespace else None
