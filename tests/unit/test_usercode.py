"""User code: whose fault an exception is, and on which line."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from funcpipe.errors import (
    BundleError,
    JobImportError,
    LossError,
    OutOfMemory,
    UserCodeError,
    describe,
    revive,
)
from funcpipe.usercode import (
    BUNDLE_MARKER,
    explain,
    inside_function,
    is_installed,
    text_of,
    user_code,
    user_frame,
)

SOURCE = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.linear(x, torch.ones(3, 3))
def shapes():
    return Net()(torch.ones(2, 2))
def fail(error):
    raise error
def opens(name):
    return open(name)
def lacks(name):
    return __import__(name)
def back(function):
    return function()
"""


@pytest.fixture
def user(tmp_path: Path) -> ModuleType:
    (tmp_path / "net").mkdir()
    file = tmp_path / "net" / "mine.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def caught(call: Callable[..., Any], *args: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        call(*args)
    return raised.value


def test_an_exception_in_the_users_model_keeps_torchs_text_and_names_the_line(
    tmp_path: Path, user: ModuleType
) -> None:
    # when
    with (
        pytest.raises(UserCodeError) as error,
        user_code("the model's layer 3", roots=[tmp_path]),
    ):
        user.shapes()
    # then
    original = error.value.__cause__
    assert isinstance(original, RuntimeError)
    assert error.value.message == f"the model's layer 3 raised RuntimeError: {original}"
    assert error.value.where == (
        "net/mine.py:5 in forward: return torch.nn.functional.linear(x, torch.ones(3, 3))"
    )
    assert str(revive(describe(error.value))) == str(error.value)


def test_the_innermost_frame_below_the_roots_wins(tmp_path: Path, user: ModuleType) -> None:
    # given an error in this file, called back from the user's
    fails = lambda: 1 / 0  # noqa: E731
    exc = caught(user.back, fails)
    # then
    assert user_frame(exc, [tmp_path]) == "net/mine.py:15 in back: return function()"
    line = fails.__code__.co_firstlineno
    assert user_frame(exc, []) == (
        f"test_usercode.py:{line} in <lambda>: fails = lambda: 1 / 0  # noqa: E731"
    )


def test_frames_of_python_torch_and_funcpipe_are_not_the_users() -> None:
    exc = caught(torch.ones, "x")
    assert exc.__traceback__ is not None
    exc.__traceback__ = exc.__traceback__.tb_next
    assert user_frame(exc, []) is None
    for module in (torch, pytest, importlib.util):
        assert is_installed(str(module.__file__))
    assert is_installed(str(Path(user_code.__code__.co_filename)))
    assert not is_installed(__file__)


def test_an_installed_package_below_the_root_is_not_the_users(tmp_path: Path) -> None:
    assert is_installed(tmp_path / ".venv" / "lib" / "site-packages" / "thing.py")


@pytest.mark.parametrize("error", [LossError("no", step=3), BundleError("x"), OutOfMemory("y")])
def test_errors_of_funcpipe_pass_through(tmp_path: Path, user: ModuleType, error: Any) -> None:
    with pytest.raises(type(error)) as raised, user_code("the loss", roots=[tmp_path]):
        user.fail(error)
    assert raised.value is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit()])
def test_what_ends_a_process_passes_through(tmp_path: Path, user: ModuleType, error: Any) -> None:
    with pytest.raises(type(error)) as raised, user_code("the loss", roots=[tmp_path]):
        user.fail(error)
    assert raised.value is error


def test_leaving_python_is_an_error_as_any_other(tmp_path: Path, user: ModuleType) -> None:
    with pytest.raises(UserCodeError) as raised, user_code("the loss", roots=[tmp_path]):
        user.fail(SystemExit(2))
    assert raised.value.message == "the loss raised SystemExit: 2"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
    ids=["python", "device", "cpu"],
)
def test_running_out_of_memory_is_told_as_such(
    tmp_path: Path, user: ModuleType, error: Any
) -> None:
    with (
        pytest.raises(OutOfMemory, match="the model ran out of memory") as raised,
        user_code("the model", roots=[tmp_path]),
    ):
        user.fail(error)
    assert raised.value.where == "net/mine.py:9 in fail: raise error"


def test_a_real_allocation_that_fails_is_out_of_memory(tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory), user_code("the model", roots=[tmp_path]):
        torch.empty(2**55, dtype=torch.uint8)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("text"), "ValueError: text"),
        (ValueError(), "ValueError"),
        (KeyError("x"), "KeyError: 'x'"),
        (StopIteration(3), "StopIteration: 3"),
        (Unprintable(), "Unprintable: <exception str() failed>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_exception_has_a_text(
    tmp_path: Path, user: ModuleType, error: Exception, text: str
) -> None:
    assert text_of(error).endswith(text)
    with pytest.raises(UserCodeError) as raised, user_code("the data", roots=[tmp_path]):
        user.fail(error)
    assert raised.value.message.endswith(text)
    assert raised.value.message.startswith("the data raised ")


@pytest.fixture(params=["marker", "environment"])
def in_function(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.param == "marker":
        (tmp_path / BUNDLE_MARKER).write_text("{}")
    else:
        monkeypatch.setenv("FUNCPIPE_FUNCTION", "1")


@pytest.mark.usefixtures("in_function")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("data/x.csv", "include=('data/x.csv',)"),
        ("{root}/data/x.csv", "include=('data/x.csv',)"),
        ("/somewhere/else/data/x.csv", "include=('data/x.csv',)"),
        ("../x.csv", "move it into the job's folder"),
    ],
)
def test_in_a_function_a_missing_file_of_the_job_tells_what_to_include(
    tmp_path: Path, user: ModuleType, name: str, expected: str
) -> None:
    # given
    exc = caught(user.opens, name.format(root=tmp_path))
    # when
    error = explain(exc, "train_data", roots=[tmp_path], origin=Path("/somewhere/else"))
    # then
    assert type(error) is BundleError
    assert error.message.startswith("train_data failed: there is no file")
    assert expected in error.message
    assert error.where == "net/mine.py:11 in opens: return open(name)"


@pytest.mark.usefixtures("in_function")
def test_in_a_function_other_missing_files_are_the_users_error(
    tmp_path: Path, user: ModuleType
) -> None:
    exc = caught(user.opens, "/no/such/file")
    error = explain(exc, "train_data", roots=[tmp_path], kind=JobImportError)
    assert type(error) is JobImportError


@pytest.mark.usefixtures("in_function")
def test_in_a_function_a_missing_file_without_a_name_points_to_include(tmp_path: Path) -> None:
    exc = FileNotFoundError("table.csv not found.")  # as numpy raises it
    error = explain(exc, "train_data", roots=[tmp_path], kind=JobImportError)
    assert type(error) is BundleError
    assert "table.csv not found" in error.message
    assert "include=" in error.message


@pytest.mark.usefixtures("in_function")
def test_in_a_function_a_missing_module_tells_what_to_include_or_install(
    tmp_path: Path, user: ModuleType
) -> None:
    # when
    with pytest.raises(BundleError) as raised, user_code("the model", roots=[tmp_path]):
        user.lacks("no_such.part")
    # then
    for text in ("no module 'no_such'", "include=('no_such.py',)", "install it on the platform"):
        assert text in raised.value.message


def test_outside_a_function_nothing_is_said_of_bundles(tmp_path: Path, user: ModuleType) -> None:
    for exc in (caught(user.opens, "x.csv"), caught(user.lacks, "no_such")):
        assert type(explain(exc, "train_data", roots=[tmp_path])) is UserCodeError


def test_a_process_knows_that_it_is_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUNCPIPE_FUNCTION", raising=False)
    assert not inside_function()
    monkeypatch.setenv("FUNCPIPE_FUNCTION", "1")
    assert inside_function()
