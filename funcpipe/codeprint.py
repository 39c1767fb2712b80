"""A digest of the user's code behind some objects: whether it still does the same.

It is made of what Python runs, so that comments, formatting and the place in a file change nothing,
and of all of the user's own functions, classes and constants that this reaches. What belongs to
installed packages is known by their versions instead.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

from funcpipe.usercode import is_installed

__all__ = ["code_digest"]

_DIGITS = 16
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def code_digest(objects: Iterable[Any]) -> str:
    """16 hex digits. objects: functions, classes, or instances, whose classes then count."""
    walk = _Walk()
    for one in objects:
        walk.add(one)
    return hashlib.sha256("\n".join(sorted(walk.seen.values())).encode()).hexdigest()[:_DIGITS]


class _Walk:
    """Follows references; what was seen is kept by identity with a text that stands for it."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self._kept: list[Any] = []  # or an identity could be given to another object

    def add(self, one: Any) -> None:
        if id(one) in self.seen:
            return
        if isinstance(one, staticmethod | classmethod | types.MethodType):
            self.add(one.__func__)
        elif isinstance(one, functools.partial):
            for part in (one.func, *one.args, *one.keywords.values()):
                self.add(part)
        elif isinstance(one, property):
            for part in filter(None, (one.fget, one.fset)):
                self.add(part)
        elif isinstance(one, types.FunctionType):
            self._function(one)
        elif isinstance(one, type):
            self._class(one)
        elif not isinstance(one, types.ModuleType | types.BuiltinFunctionType):
            self.add(type(one))

    def _note(self, one: Any, text: str) -> None:
        self.seen[id(one)] = text
        self._kept.append(one)

    def _class(self, one: type) -> None:
        if not _is_users(one):
            return
        plain = {k: _shown(v) for k, v in vars(one).items() if _is_plain(v) and k[:2] != "__"}
        self._note(one, f"class {one.__qualname__} {sorted(plain.items())}")
        for part in (*one.__bases__, *vars(one).values()):
            if isinstance(part, type | types.FunctionType | staticmethod | classmethod | property):
                self.add(part)

    def _function(self, one: types.FunctionType) -> None:
        one = inspect.unwrap(one)
        if id(one) in self.seen or not _is_users(one):
            return
        parts = [_shown(one.__defaults__) if _is_plain(one.__defaults__) else ""]
        self._note(one, "")
        names = list(_names_in(one.__code__))
        found = [(name, one.__globals__[name]) for name in names if name in one.__globals__]
        found += list(inspect.getclosurevars(one).nonlocals.items())
        for name, value in found:
            if _is_plain(value):
                parts.append(f"{name}={_shown(value)}")
            elif isinstance(value, types.ModuleType):
                for attribute in names:
                    self.add(vars(value).get(attribute))
            elif isinstance(value, type | types.FunctionType | functools.partial):
                self.add(value)
        self.seen[id(one)] = f"def {one.__qualname__} {_text_of(one.__code__)} {parts}"


def _is_users(one: Any) -> bool:
    """Whether it is defined in a file of the user's, or nowhere, as at a prompt."""
    if isinstance(one, types.FunctionType):
        return not is_installed(one.__code__.co_filename)
    try:
        return not is_installed(inspect.getfile(one))
    except (TypeError, OSError):
        return getattr(one, "__module__", "builtins") == "__main__"


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list | frozenset | set):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    return isinstance(value, _PLAIN)


def _shown(value: Any) -> str:
    """As `repr`, but a set reads the same in every process."""
    if isinstance(value, frozenset | set):
        return f"{{{sorted(map(_shown, value))}}}"
    if isinstance(value, tuple | list):
        return f"({[_shown(item) for item in value]})"
    return repr(value)


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _text_of(code: types.CodeType) -> str:
    constants = [
        _text_of(one) if isinstance(one, types.CodeType) else _shown(one) for one in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
