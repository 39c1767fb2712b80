"""The walls between the parts: who may import whom, and what no part may use at all."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "funcpipe"
MAX_LINES = {"funcpipe": 400, "examples": 400, "tests": 600}

# Who may import whom inside funcpipe. A part is a module or sub-package right below `funcpipe`;
# "part.module" allows that one module only. Everybody may import `errors`, and itself.
ARROWS: dict[str, str] = {
    "": "api job locate partitioner.plan partitioner.profile report",
    "__main__": "cli",
    "errors": "",
    "clock": "",
    "files": "",
    "keys": "",
    "schedule": "sync.plan",
    "control": "keys store",
    "invocation": "control keys partitioner.plan schedule store",
    "profiletask": "keys store",
    "profiles": "partitioner.platform partitioner.profile",
    "codeprint": "usercode",
    "passes": "job model.sampling schedule",
    "sameness": "job model wire",
    "partitioner": "schedule",
    "job": "",
    "usercode": "",
    "imports": "usercode",
    "include": "usercode",
    "locate": "imports job usercode",
    "bundle": "imports include job locate store.base usercode",
    "store": "clock keys",
    "wire": "store",
    "model": "job usercode",
    "sync": "keys schedule store wire",
    "worker": "bundle clock control invocation job keys model partitioner.plan passes profiletask "
    "sameness schedule store sync usercode wire",
    "functions": "worker",
    "planning": "partitioner",
    "calibration": "partitioner report schedule",
    "report": "files partitioner schedule",
    "deploy": "bundle driver.host keys partitioner store",
    "emulator": "clock driver.host keys partitioner store worker.context",
    "driver": "bundle calibration.observed clock codeprint control deploy emulator files "
    "invocation job keys locate model partitioner passes planning profiles profiletask report "
    "sameness schedule store sync usercode wire",
    "api": "bundle driver job locate model partitioner planning report store usercode",
    "cli": "api cli_calibrate cli_chosen cli_doctor cli_options cli_output cli_plan "
    "cli_plan_options cli_platforms cli_profile report",
    "cli_chosen": "driver.auto driver.profiling report",
    "cli_output": "",
    "cli_options": "partitioner.limits",
    "cli_plan": "cli_plan_file cli_plan_options partitioner planning report",
    "cli_calibrate": "calibration cli_plan_file report",
    "cli_plan_file": "files partitioner.limits",
    "cli_profile": "api cli_options cli_plan_file driver.profiling partitioner.limits report",
    "cli_plan_options": "cli_options partitioner.limits",
    "cli_platforms": "partitioner.curve partitioner.figures partitioner.limits "
    "partitioner.platform",
    "cli_doctor": "emulator.doctor",
}

SDKS = frozenset({"boto3", "botocore", "oss2", "fc2", "alibabacloud_fc20230330"})
SOLVERS = frozenset({"pulp", "gurobipy", "highspy"})
PICKLES = frozenset({"pickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"})
BARE_NAMES = frozenset({"partitioner", "functions", "deploy"})

# Modules that never import torch or an SDK, not even inside a function.
PURE = ("partitioner/*.py", "schedule/*.py", "sync/plan.py", "*/state.py", "*/machine.py")
PURE += (
    "errors.py",
    "keys.py",
    "profiles.py",
    "codeprint.py",
    "driver/attempts.py",
    "report/*.py",
    "store/*.py",
)
# Only these may import an SDK.
SDK_USERS = ("store/s3*.py", "store/oss*.py", "deploy/*.py", "emulator/server.py")
# What `import` of these brings must hold neither torch, nor an SDK, nor a solver.
LIGHT_PACKAGES = ("", ".partitioner", ".schedule", ".store", ".report", ".deploy", ".functions")
LIGHT_MODULES = (".job", ".locate", ".bundle", ".cli", ".api", ".sync.plan", ".emulator.server")
LIGHT_MODULES += (".planning", ".partitioner.planner", ".report.plan_text", ".report.front_text")
LIGHT_MODULES += (".calibration.folder",)


@dataclass(frozen=True)
class Import:
    """`names` of `module` (absolute); `lazy` if inside a function, `typing` if never executed."""

    module: str
    names: tuple[str, ...]
    line: int
    lazy: bool
    typing: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def sources() -> list[Path]:
    """The package's modules, as paths below `funcpipe/`, whose links are followed."""
    found = list(PACKAGE.glob("*.py"))
    for folder in PACKAGE.iterdir():
        if folder.is_dir():
            found += folder.rglob("*.py")
    return sorted(path.relative_to(PACKAGE) for path in found)


def part_of(path: Path) -> str:
    """The part that a module below `funcpipe/` belongs to; "" for the package's own __init__."""
    name = path.parts[0].removesuffix(".py")
    return "" if name == "__init__" else name


def imports_of(tree: ast.AST, package: str) -> Iterator[Import]:
    """Every import in the module `tree`, which lies in the package of that absolute name."""

    def visit(node: ast.AST, lazy: bool, typing: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno, lazy, typing)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level])
            module = node.module or ""
            if node.level:
                module = f"{base}.{module}".rstrip(".")
            names = tuple(alias.name for alias in node.names)
            yield Import(module, names, node.lineno, lazy, typing)
        inner_lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from visit(child, inner_lazy, True)
            for child in node.orelse:
                yield from visit(child, inner_lazy, typing)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner_lazy, typing)

    yield from visit(tree, False, False)


def parse(path: Path, source: str | None = None) -> tuple[ast.Module, str]:
    """The syntax tree of a module below `funcpipe/`, and the name of the package it lies in."""
    text = (PACKAGE / path).read_text(encoding="utf-8") if source is None else source
    return ast.parse(text), ".".join(("funcpipe", *path.parent.parts))


def targets_of(one: Import) -> list[str]:
    """Dotted names below funcpipe that an import reaches: "store.base.Data", "errors"."""
    if one.top != "funcpipe":
        return []
    below = one.module.partition(".")[2]
    return [".".join(filter(None, (below, name))) for name in one.names or ("",)]


def arrow_faults(path: Path, source: str | None = None) -> list[str]:
    """Imports of other parts that no arrow allows."""
    part = part_of(path)
    if part not in ARROWS:
        return [f"{path}: {part!r} is a part without arrows"]
    allowed = {*ARROWS[part].split(), "errors", part, "__version__"}

    def is_allowed(target: str) -> bool:
        names = target.split(".")
        return any(".".join(names[:count]) in allowed for count in range(len(names) + 1))

    return [
        f"{path}:{one.line}: {part or '__init__'} imports {target}"
        for one in imports_of(*parse(path, source))
        for target in targets_of(one)
        if not is_allowed(target)
    ]


def outside_faults(path: Path, source: str | None = None) -> list[str]:
    """Imports from outside of funcpipe that the module may not make."""

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(path.match(pattern) for pattern in patterns)

    faults = []
    for one in imports_of(*parse(path, source)):
        place = f"{path}:{one.line}: imports {one.module}"
        if one.top in BARE_NAMES:
            faults.append(f"{place} by its bare name")
        if one.top in PICKLES:
            faults.append(f"{place}, which runs code that it reads")
        if one.top in SDKS and not (matches(SDK_USERS) or one.typing):
            faults.append(f"{place} outside of {SDK_USERS}")
        if one.top == "torch" and matches(PURE) and not one.typing:
            faults.append(f"{place} in a pure module")
        if one.top in SOLVERS and not (part_of(path) == "partitioner" and one.lazy):
            faults.append(f"{place}, a solver, other than lazily in the partitioner")
    return faults


def call_faults(path: Path, source: str | None = None) -> list[str]:
    """Calls that run code or commands from outside, and handlers that hide everything."""
    forbidden = {"eval", "exec", "torch.load", "os.system", "os.popen", "subprocess.getoutput"}
    faults = []
    for node in ast.walk(parse(path, source)[0]):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.removeprefix("builtins.") in forbidden:
                faults.append(f"{path}:{node.lineno}: calls {name}")
            for keyword in node.keywords:
                if keyword.arg in {"shell", "allow_pickle"} and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    faults.append(f"{path}:{node.lineno}: {name}({keyword.arg}=...)")
        if isinstance(node, ast.ImportFrom) and node.module in {"torch", "os", "subprocess"}:
            names = {f"{node.module}.{alias.name}" for alias in node.names} & forbidden
            faults += [f"{path}:{node.lineno}: imports {name}" for name in sorted(names)]
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            faults.append(f"{path}:{node.lineno}: bare except")
    return faults


@pytest.mark.parametrize("check", [arrow_faults, outside_faults, call_faults])
def test_the_package_keeps_the_rules(check: object) -> None:
    assert callable(check)
    modules = sources()
    assert Path("store/base.py") in modules
    assert Path("partitioner/__init__.py") in modules
    assert [fault for path in modules for fault in check(path)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("schedule/passes.py", "from funcpipe.store import open_store"),
        ("schedule/passes.py", "import funcpipe.store.base"),
        ("model/stage.py", "from ..wire import encode"),
        ("worker/runner.py", "from funcpipe import cli"),
        ("worker/runner.py", "def f():\n    from funcpipe.partitioner import search"),
        ("worker/runner.py", "from funcpipe.partitioner.pulp import solve"),
        ("emulator/host.py", "from funcpipe.driver.loop import run"),
        ("errors.py", "import funcpipe.keys"),
        ("driver/loop.py", "from funcpipe import train"),
        ("cli.py", "from funcpipe.driver import loop"),
        ("unheard_of.py", ""),
    ],
)
def test_an_import_against_the_arrows_is_found(path: str, source: str) -> None:
    assert len(arrow_faults(Path(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("worker/runner.py", "from funcpipe.partitioner.plan import Plan"),
        ("worker/runner.py", "from funcpipe.partitioner import plan"),
        ("worker/runner.py", "from .state import State\nfrom .. import wire\nimport json"),
        ("emulator/host.py", "from funcpipe.driver.host import Exit"),
        ("store/s3.py", "from funcpipe.errors import StoreError\nfrom . import base"),
        ("store/s3.py", "from funcpipe import __version__"),
    ],
)
def test_an_import_along_the_arrows_is_let_through(path: str, source: str) -> None:
    assert arrow_faults(Path(path), source) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("driver/loop.py", "import partitioner"),
        ("driver/loop.py", "from deploy.aws import invoke"),
        ("wire.py", "import pickle"),
        ("wire.py", "from pickle import loads"),
        ("worker/runner.py", "import boto3"),
        ("partitioner/cost.py", "def f():\n    import torch"),
        ("sync/plan.py", "from torch import nn"),
        ("worker/state.py", "import torch.nn as nn"),
        ("partitioner/pulp.py", "import pulp"),
        ("driver/loop.py", "def f():\n    import gurobipy"),
    ],
)
def test_an_import_from_outside_that_is_forbidden_is_found(path: str, source: str) -> None:
    assert len(outside_faults(Path(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("partitioner/pulp.py", "def solve():\n    import pulp"),
        ("store/s3.py", "def open():\n    import boto3"),
        ("job.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("partitioner/x.py", "import typing\nif typing.TYPE_CHECKING:\n    import torch"),
    ],
)
def test_an_import_from_outside_that_is_allowed_is_let_through(path: str, source: str) -> None:
    assert outside_faults(Path(path), source) == []


@pytest.mark.parametrize(
    "source",
    [
        "eval('1')",
        "import builtins\nbuiltins.exec('1')",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "import os\nos.system('ls')",
        "import numpy\nnumpy.load('x', allow_pickle=flag)",
        "try:\n    f()\nexcept:\n    pass",
    ],
)
def test_a_forbidden_call_is_found(source: str) -> None:
    assert len(call_faults(Path("x.py"), source)) == 1


@pytest.mark.parametrize("source", ["model.eval()", "run(shell=False)", "re.compile('x')"])
def test_a_harmless_call_is_let_through(source: str) -> None:
    assert call_faults(Path("x.py"), source) == []


def exists(module: str) -> bool:
    path = PACKAGE.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


@pytest.mark.parametrize(
    "module", [*LIGHT_PACKAGES, *(name for name in LIGHT_MODULES if exists(name[1:]))]
)
def test_the_import_is_light(module: str) -> None:
    heavy = sorted({"torch", "sklearn", *SDKS, *SOLVERS})
    code = (
        f"import sys, funcpipe{module}\n"
        f"found = [name for name in {heavy} if name in sys.modules]\n"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", sorted(BARE_NAMES))
def test_the_folders_at_the_top_are_linked_into_the_package(name: str) -> None:
    link = PACKAGE / name
    assert link.is_symlink()
    assert link.readlink() == Path("..") / name
    assert (ROOT / name / "__init__.py").is_file()


@pytest.mark.parametrize("folder", sorted(MAX_LINES))
def test_files_stay_short(folder: str) -> None:
    files = {ROOT / folder / path for path in (ROOT / folder).rglob("*.py")}
    if folder == "funcpipe":
        files = {PACKAGE / path for path in sources()}
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(lengths) >= 2
    assert {path: n for path, n in lengths.items() if n > MAX_LINES[folder]} == {}
