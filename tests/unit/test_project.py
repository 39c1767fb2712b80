"""The project's own files: errors, versions, packaging, and commands that agree with each other."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import funcpipe
from funcpipe import errors

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def drawn_tree(text: str) -> dict[str, str | None]:
    """Class name -> parent's name, of the tree drawn in `text`."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in text.splitlines():
        found = re.fullmatch(r" {4}([│ ]*(?:[├└]── )?)([A-Z]\w+)\b.*", line)
        if found is None:
            continue
        depth = len(found[1]) // 4
        path[depth:] = [found[2]]
        parents[found[2]] = path[depth - 1] if depth else None
    return parents


def real_tree(root: type[errors.FuncpipeError]) -> dict[str, str | None]:
    parents: dict[str, str | None] = {root.__name__: None}
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for child in parent.__subclasses__():
            if child.__module__ == errors.__name__:
                parents[child.__name__] = parent.__name__
                waiting.append(child)
    return parents


def test_the_tree_of_errors_is_the_one_that_is_drawn() -> None:
    drawn = drawn_tree(errors.__doc__ or "")
    assert drawn == real_tree(errors.FuncpipeError)
    assert drawn["StoreDenied"] == "StoreError"
    assert len(drawn) > 20


def test_every_error_is_exported() -> None:
    assert real_tree(errors.FuncpipeError).keys() <= set(errors.__all__)
    assert all(hasattr(errors, name) for name in errors.__all__)


def test_errors_of_the_package_are_defined_in_one_place() -> None:
    names = set(errors.__all__)
    for path in (ROOT / "funcpipe").rglob("*.py"):
        if path.name == "errors.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
                assert not bases & names, f"{path}: {node.name}"


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert funcpipe.__version__ == version
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d[^\]]*)\]", changelog, re.M)
    upcoming = re.findall(r"^To be released as (\S+)\.$", changelog, re.M)
    assert "## [Unreleased]" in changelog
    assert version in [*released[:1], *upcoming]


def test_everything_that_the_package_needs_is_pinned() -> None:
    def name_of(requirement: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]).lower()

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [
        line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)
    ] == []
    project = PROJECT["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    needed = {name_of(requirement) for group in groups for requirement in group}
    assert needed - {project["name"]} <= {name_of(pin) for pin in pins}
    # PuLP 4 no longer carries a solver.
    assert "pulp>=3.3.2,<4" in project["dependencies"]


def test_the_licence_is_the_one_that_is_declared() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_ci_runs_the_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in script
    assert script.splitlines()[-1] == "make test"


@pytest.mark.parametrize(
    "target",
    [
        "install",
        "demo",
        "test",
        "lint",
        "style",
        "bench",
        "bench-step",
        "bench-emulator",
        "bench-plan",
        "pr",
        "clean",
    ],
)
def test_make_knows_its_targets(tmp_path: Path, target: str) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    done = subprocess.run(
        ["make", "--dry-run", target, f"VENV={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    # Given a copy, since building writes beside the sources
    copy = tmp_path / "project"
    ignored = shutil.ignore_patterns(".*", "tests", "runs", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    # When the wheel is built with the setuptools that is installed
    code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Then it holds what the links point to, once, under the package's own name
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    version = PROJECT["project"]["version"]
    assert tops == {"funcpipe", f"funcpipe_train-{version}.dist-info"}
    for part in ("partitioner", "functions", "deploy"):
        assert f"funcpipe/{part}/__init__.py" in names
    assert "funcpipe/py.typed" in names
    platforms = {path.name for path in (ROOT / "partitioner" / "platforms").iterdir()}
    assert "aws-lambda.json" in platforms
    assert {f"funcpipe/partitioner/platforms/{name}" for name in platforms} <= set(names)
    assert any(name.endswith("/LICENSE") for name in names)
    sources = {str(path.relative_to(ROOT)) for path in modules_of_the_package()}
    assert sources == {name for name in names if name.endswith(".py")}


def modules_of_the_package() -> list[Path]:
    package = ROOT / "funcpipe"
    folders = [path for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"]
    found = [*package.glob("*.py"), *(p for folder in folders for p in folder.rglob("*.py"))]
    return [path for path in found if "__pycache__" not in path.parts]
