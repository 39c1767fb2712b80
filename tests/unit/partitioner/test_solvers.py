import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from funcpipe.errors import PlanError, SolverError
from funcpipe.partitioner import gurobi, mip, native, pulp_solver, solvers
from funcpipe.partitioner.backend import Deadline, Outcome, Problem, Status
from funcpipe.partitioner.cost import evaluate
from funcpipe.partitioner.mip import MOST_EXCLUDED, Answer, solve_all
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.program import Program
from funcpipe.partitioner.solvers import backend, solve
from tests.unit.partitioner.solver_problems import (
    BOTH,
    MIN_COST,
    MIN_TIME,
    hard_problem,
    over,
    problem,
)

MIPS = ("cbc", "highs", "gurobi")


@pytest.fixture
def no_first_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers have to find everything by themselves."""
    monkeypatch.setattr(mip, "first_rows", lambda *_: None)
    monkeypatch.setattr(mip, "rule_plans", lambda *_: ())


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Temporary files are made in an empty folder, which is empty again afterwards."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def best_of(given: Problem, goal: Goal) -> Outcome:
    return backend("search").solve(given, goal, deadline=Deadline())


# -- names -------------------------------------------------------------------------------------


def test_every_name_has_a_back_end_that_solves() -> None:
    given = problem(3)
    best = best_of(given, BOTH).value

    found = {name: solve(given, BOTH, solver=name) for name in solvers.SOLVERS}

    assert {round(one.value / best, 6) for one in found.values()} == {1.0}
    assert {one.status for one in found.values()} == {Status.OPTIMAL}
    assert found["auto"].solver == "search"
    assert all(found[name].solver == name for name in found if name != "auto")


def test_an_unknown_name_is_told_with_a_near_one() -> None:
    with pytest.raises(PlanError, match="unknown solver 'higs'; did you mean highs"):
        solve(problem(2), BOTH, solver="higs")


def test_choosing_a_solver_imports_no_other() -> None:
    script = (
        "import sys; from funcpipe.partitioner.solvers import backend; backend('exhaustive');"
        "backend('cbc'); print([m for m in ('pulp', 'highspy', 'gurobipy') if m in sys.modules])"
    )
    assert run_python(script) == "[]\n"


# -- what is missing ---------------------------------------------------------------------------


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(SolverError, match="pip install highspy"):
        solve(problem(2), BOTH, solver="highs")
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(SolverError, match="funcpipe-train\\[gurobi\\]"):
        backend("gurobi").solve(problem(2), BOTH, deadline=Deadline())
    monkeypatch.setitem(sys.modules, "pulp", None)
    monkeypatch.setattr(mip, "first_rows", lambda *_: None)
    monkeypatch.setattr(mip, "rule_plans", lambda *_: ())
    with pytest.raises(SolverError, match="pip install 'pulp<4'"):
        solve(problem(2), BOTH, solver="cbc")


def test_search_takes_over_where_gurobi_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)

    found = solve(problem(3), BOTH, solver="gurobi")

    assert found.status == Status.OPTIMAL
    assert found.solver == "search"
    assert "by search instead of gurobi" in found.notes[0]
    assert "install" in found.notes[0]


def test_search_takes_over_where_gurobi_has_no_licence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gurobipy")
    monkeypatch.setenv("GRB_LICENSE_FILE", "/does/not/exist.lic")
    real = gurobi._gurobipy()

    class Unlicensed:
        GurobiError = real.GurobiError

        @staticmethod
        def Env(empty: bool) -> object:  # noqa: N802
            raise real.GurobiError(10009, "No Gurobi license found")

    monkeypatch.setattr(gurobi, "_gurobipy", lambda: Unlicensed)

    found = solve(problem(3), BOTH, solver="gurobi")

    assert found.solver == "search"
    assert "No Gurobi license found" in found.notes[0]
    assert "GRB_LICENSE_FILE" in found.notes[0]


@pytest.mark.usefixtures("no_first_plan")
def test_what_a_small_licence_refuses_as_quadratic_is_solved_as_linear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("gurobipy")
    given = problem(8, tiers_mb=(1024, 2048, 3072, 4096, 6144, 8192))
    made: list[Program] = []
    real = gurobi._Runner._solve

    def small(runner: object, program: Program, limit_s: float) -> Answer | None:
        made.append(program)
        return None if program.is_quadratic else real(runner, program, limit_s)

    monkeypatch.setattr(gurobi._Runner, "_solve", small)

    found = backend("gurobi").solve(given, BOTH, deadline=Deadline())

    assert [program.is_quadratic for program in made] == [True, False]
    assert made[0].num_variables > 200
    assert found.status == Status.OPTIMAL
    assert found.value == pytest.approx(best_of(given, BOTH).value, rel=1e-6)


@pytest.mark.usefixtures("no_first_plan")
def test_gurobi_itself_solves_or_refuses_what_is_too_large() -> None:
    pytest.importorskip("gurobipy")
    given = hard_problem(20)

    found = solve(given, MIN_COST, solver="gurobi", deadline=Deadline(20))

    if found.solver != "gurobi":  # no licence of one's own
        assert found.solver == "search"
        assert "2,000 each" in found.notes[0]
    assert found.plan is not None


@pytest.mark.parametrize("solver", MIPS)
def test_1f1b_is_refused(solver: str) -> None:
    if solver == "gurobi":
        pytest.importorskip("gurobipy")
    for schedules in (("1f1b",), ("gpipe", "1f1b")):
        given = problem(3, schedules=schedules)
        # No other solver takes over: with gurobi too, that would be another answer
        with pytest.raises(SolverError, match=rf"{solver} plans .*gpipe only.* search, or exh"):
            solve(given, BOTH, solver=solver)


# -- judging -----------------------------------------------------------------------------------


class Liar:
    """Gives a plan whatever was asked for, and says that it is better than it is."""

    name = "liar"

    def solve(self, given: Problem, goal: Goal, **_: object) -> Outcome:
        free = replace(goal, max_time_s=math.inf, max_cost=math.inf)
        found = best_of(given, free)
        return replace(found, value=found.value / 2, bound=found.value / 3, solver=self.name)


def test_the_value_is_what_the_performance_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "backend", lambda _: Liar())
    given = problem(3)

    found = solve(given, MIN_TIME)

    assert found.value == evaluate(given.setting, found.plan).step_s
    assert found.gap == pytest.approx(2 / 3)


def test_a_plan_that_breaks_a_bound_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "backend", lambda _: Liar())
    with pytest.raises(SolverError, match="liar gave a plan that breaks what was asked for"):
        solve(problem(3), replace(MIN_TIME, max_time_s=0.1))


def answers(*given: object) -> mip.Run:
    """A solver that gives these answers one after the other, then nothing better."""
    waiting = list(given)

    def run(program: Program, *, limit_s: float) -> Answer:
        if not waiting:
            return Answer(finished=True)
        answer = waiting.pop(0)
        return answer(program) if callable(answer) else answer

    return run


def path_of(program: Program, num_rows: int) -> list[int]:
    """A path of so many rows, the most expensive memory first."""
    table, rows, layer = program.table, [], 0
    for number in range(num_rows):
        stop = table.num_layers if number == num_rows - 1 else layer + 1
        fitting = [r for r in range(len(table)) if (table.start[r], table.stop[r]) == (layer, stop)]
        rows.append(fitting[-1])
        layer = stop
    return rows


def called(run: mip.Run, given: Problem, goal: Goal, deadline: Deadline | None = None) -> Outcome:
    return solve_all(
        run, given, goal, solver="fake", deadline=deadline or Deadline(), incumbent=None
    )


@pytest.mark.usefixtures("no_first_plan")
def test_a_plan_over_a_bound_is_excluded_and_the_rest_solved_again() -> None:
    given = problem(3)
    fastest = best_of(given, MIN_TIME)
    goal = replace(MIN_COST, max_time_s=fastest.estimate.step_s)
    known: list[int] = []
    excluding = []

    def too_slow(program: Program) -> Answer:
        excluding.append(program.num_constraints)
        return Answer(rows=path_of(program, 1), finished=True, bound=0.1)

    def good(program: Program) -> Answer:
        excluding.append(program.num_constraints)
        table = program.table
        known[:] = next(
            rows for rows in every_path(program)
            if table.plan(rows).stages == fastest.plan.stages
        )  # fmt: skip
        value = fastest.estimate.dollars / program.unit
        return Answer(rows=known, finished=True, bound=value)

    found = called(answers(too_slow, too_slow, good), given, goal)

    assert excluding == [excluding[0], excluding[0] + 1, excluding[0] + 2]
    assert found.status == Status.OPTIMAL
    assert found.plan.stages == fastest.plan.stages


def every_path(program: Program, layer: int = 0) -> Iterator[list[int]]:
    table = program.table
    if layer == table.num_layers:
        yield []
    for row in range(len(table)):
        if table.start[row] == layer:
            yield from ([row, *rest] for rest in every_path(program, int(table.stop[row])))


@pytest.mark.usefixtures("no_first_plan")
def test_a_solver_that_never_keeps_a_bound_proves_nothing() -> None:
    goal = replace(MIN_COST, max_time_s=best_of(problem(3), MIN_TIME).estimate.step_s)
    times = []

    def too_slow(program: Program) -> Answer:
        times.append(program)
        return Answer(rows=path_of(program, 1), finished=True, bound=0.1)

    found = called(answers(*[too_slow] * 100), problem(3), goal, Deadline(100))

    assert len(times) == MOST_EXCLUDED + 1
    assert (found.status, found.plan) == (Status.TIMED_OUT, None)
    assert "over a bound" in found.notes[0]


@pytest.mark.usefixtures("no_first_plan")
def test_a_bound_far_below_the_value_is_no_proof() -> None:
    found = called(
        answers(lambda program: Answer(rows=path_of(program, 1), finished=True, bound=0.01)),
        problem(3),
        MIN_TIME,
    )

    assert found.status == Status.FEASIBLE
    assert 0 < found.bound < found.value


@pytest.mark.usefixtures("no_first_plan")
def test_time_is_shared_by_what_is_left_to_solve() -> None:
    now = [0.0]
    limits = []

    def run(program: Program, *, limit_s: float) -> Answer:
        limits.append(limit_s)
        now[0] += 2.0 if len(limits) == 1 else limit_s
        return Answer(finished=len(limits) == 1)

    given = problem(3, degrees=(1, 2, 4))
    found = called(run, given, MIN_TIME, Deadline(12.0, clock=lambda: now[0]))

    assert limits == pytest.approx([4.0, 5.0, 5.0])
    assert (found.status, found.plan) == (Status.TIMED_OUT, None)
    assert 0 < found.bound < math.inf


@pytest.mark.parametrize("solver", MIPS)
def test_no_time_at_all_leaves_the_incumbent(solver: str) -> None:
    given = problem(3)
    known = best_of(given, MIN_TIME).plan

    with_one = backend(solver).solve(given, MIN_COST, deadline=over(), incumbent=known)
    without = backend(solver).solve(given, MIN_COST, deadline=over())

    assert (with_one.status, with_one.plan) == (Status.FEASIBLE, known)
    assert with_one.bound <= with_one.value
    assert (without.status, without.plan) == (Status.TIMED_OUT, None)


# -- time limits, Ctrl-C, files, processes, output ---------------------------------------------


@pytest.mark.usefixtures("no_files", "no_first_plan")
@pytest.mark.parametrize("limit_s", [0.05, 0.4])
@pytest.mark.parametrize("solver", ["cbc", "highs"])
def test_a_time_limit_proves_nothing_that_is_not_so(solver: str, limit_s: float) -> None:
    given = hard_problem()
    best = best_of(given, BOTH).value
    for combination in given.combinations():
        given.table(combination)

    found = backend(solver).solve(given, BOTH, deadline=Deadline(limit_s))

    assert found.status in (Status.TIMED_OUT, Status.FEASIBLE, Status.OPTIMAL)
    assert found.bound <= best
    assert found.value >= best * (1 - 1e-9)


def sleeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CBC that never ends; the file where it leaves its process id."""
    import pulp

    left, fake = tmp_path / "pid", tmp_path / "cbc"
    fake.write_text(f"#!/bin/sh\necho $$ > {left}.part && mv {left}.part {left}\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", str(fake))
    return left


def assert_gone(pid_file: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def interrupt_when_there(path: Path) -> threading.Thread:
    def wait() -> None:
        for _ in range(3000):
            if path.exists():
                break
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.usefixtures("no_files")
def test_cbc_is_killed_by_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = sleeper(tmp_path, monkeypatch)
    monkeypatch.setattr(pulp_solver, "GRACE_S", 0.2)

    found = backend("cbc").solve(hard_problem(), BOTH, deadline=Deadline(2.0))

    assert found.status == Status.FEASIBLE
    assert_gone(left)


@pytest.mark.usefixtures("no_files")
def test_cbc_is_killed_by_ctrl_c_and_the_best_plan_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = sleeper(tmp_path, monkeypatch)
    thread = interrupt_when_there(left)

    found = backend("cbc").solve(hard_problem(), BOTH, deadline=Deadline())

    thread.join()
    assert found.status == Status.FEASIBLE
    assert found.notes == ("stopped by Ctrl-C",)
    assert_gone(left)


@pytest.mark.usefixtures("no_files", "no_first_plan")
def test_ctrl_c_without_a_plan_is_raised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = sleeper(tmp_path, monkeypatch)
    thread = interrupt_when_there(left)

    with pytest.raises(KeyboardInterrupt):
        backend("cbc").solve(hard_problem(), BOTH, deadline=Deadline())

    thread.join()
    assert_gone(left)


@pytest.mark.parametrize("solver", ["highs", "gurobi"])
def test_ctrl_c_stops_a_library(solver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"highs": pulp_solver, "gurobi": gurobi}[solver]
    real = native.stoppable

    def interrupted(work: object, stop: object) -> bool:
        def both() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            work()

        return real(both, stop)

    monkeypatch.setattr(module, "stoppable", interrupted)

    found = backend(solver).solve(hard_problem(15), BOTH, deadline=Deadline())

    assert found.plan is not None
    assert "stopped by Ctrl-C" in found.notes
    assert "solver" not in {thread.name for thread in threading.enumerate()}


def test_an_interrupted_library_call_has_ended_on_return() -> None:
    ended = threading.Event()
    stop = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60)
        ended.set()

    assert native.stoppable(work, stop.set)
    assert ended.is_set()


def test_what_a_library_call_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        native.stoppable(lambda: 1 // 0, lambda: None)


@pytest.mark.usefixtures("no_files")
def test_cbc_that_does_not_start_or_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pulp

    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", str(tmp_path / "none"))
    with pytest.raises(SolverError, match="cbc cannot be started: No such file"):
        backend("cbc").solve(hard_problem(), BOTH, deadline=Deadline())
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho broken library\n")
    silent.chmod(0o755)
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", str(silent))
    with pytest.raises(SolverError, match=r"without an answer.*broken library"):
        backend("cbc").solve(hard_problem(), BOTH, deadline=Deadline())


def run_python(script: str, *, stderr: bytes = b"") -> str:
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert ran.stderr == stderr
    return ran.stdout.decode()


@pytest.mark.parametrize("solver", MIPS)
def test_nothing_is_printed_and_what_others_print_is_kept(solver: str) -> None:
    script = f"""
import os
from funcpipe.partitioner import mip
from funcpipe.partitioner.backend import Deadline
from funcpipe.partitioner.solvers import backend
from tests.unit.partitioner.solver_problems import BOTH, problem
mip.first_rows = lambda *_: None
mip.rule_plans = lambda *_: ()
print("before", end=" ")
print(backend({solver!r}).solve(problem(4), BOTH, deadline=Deadline(60)).status)
os.write(1, b"")
print("behind")
"""
    assert run_python(script) == "before optimal\nbehind\n"


def test_quiet_loses_what_c_code_prints_and_nothing_else() -> None:
    script = """
import ctypes, os
from funcpipe.partitioner.native import quiet
libc = ctypes.CDLL(None)
print("kept", end="")
with quiet():
    os.write(1, b"lost"); os.write(2, b"lost"); libc.puts(b"lost in a buffer")
try:
    with quiet():
        raise ValueError
except ValueError:
    print(" too")
libc.puts(b"kept as well"); libc.fflush(None)
"""
    assert run_python(script) == "kept too\nkept as well\n"


def test_quiet_needs_no_open_streams() -> None:
    script = """
import os, sys
from funcpipe.partitioner.native import quiet
os.close(1)
with quiet():
    os.write(2, b"lost")
os.write(2, b"fine")
sys.stdout = None
"""
    assert run_python(script, stderr=b"fine") == ""


def test_no_descriptor_is_left_open() -> None:
    def descriptors() -> set[str]:
        with suppress(FileNotFoundError):
            return set(os.listdir("/proc/self/fd"))
        pytest.skip("no /proc")

    solve(problem(3), BOTH, solver="highs")
    before = descriptors()
    for solver in ("cbc", "highs", "gurobi"):
        solve(problem(3), BOTH, solver=solver)
    assert len(descriptors()) == len(before)
