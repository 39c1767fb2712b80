"""The back-ends `cbc` and `highs`: the program, solved through PuLP.

CBC comes with PuLP and runs as a process of its own; HiGHS is the package highspy, a library in
this process. (The name of this file is not `pulp` so that no import can mean the wrong one.)
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from funcpipe.errors import SolverError
from funcpipe.partitioner.backend import Deadline, Outcome, Problem
from funcpipe.partitioner.mip import Answer, solve_all
from funcpipe.partitioner.native import quiet, stoppable
from funcpipe.partitioner.objective import Goal
from funcpipe.partitioner.plan import Plan
from funcpipe.partitioner.program import Program

__all__ = ["Cbc", "Highs"]

TOLERANCE = 1e-9

# How long CBC may still write its answer when its own time limit is over.
GRACE_S = 5.0

_LOWER_BOUND = re.compile(r"^Lower bound:\s*(\S+)", re.MULTILINE)


class Cbc:
    """`Backend`: CBC, in a child process that never outlives the call."""

    name = "cbc"

    def solve(
        self, problem: Problem, goal: Goal, *, deadline: Deadline, incumbent: Plan | None = None
    ) -> Outcome:
        return solve_all(
            run_cbc, problem, goal, solver=self.name, deadline=deadline, incumbent=incumbent
        )


class Highs:
    """`Backend`: HiGHS; SolverError without the package highspy."""

    name = "highs"

    def solve(
        self, problem: Problem, goal: Goal, *, deadline: Deadline, incumbent: Plan | None = None
    ) -> Outcome:
        try:
            import highspy  # noqa: F401
        except ImportError as error:
            raise SolverError(
                "the solver highs needs the package highspy; install it (pip install highspy) or "
                "choose the solver search"
            ) from error
        return solve_all(
            run_highs, problem, goal, solver=self.name, deadline=deadline, incumbent=incumbent
        )


# -- CBC ---------------------------------------------------------------------------------------


def run_cbc(program: Program, *, limit_s: float) -> Answer:
    """`mip.Run`. Its files lie in a folder of their own, which is removed in any case."""
    pulp = _pulp()
    made, variables = _problem(pulp, program)
    with tempfile.TemporaryDirectory(prefix="funcpipe-cbc-") as folder:
        model, solution = Path(folder, "model.mps"), Path(folder, "solution")
        ordered, names, constraints, _ = made.writeMPS(str(model), rename=1)
        process = _CbcProcess(_command(pulp, program, limit_s), folder)
        if stoppable(lambda: process.run(limit_s), process.stop.set):
            return Answer(finished=False, stopped=True)
        if process.killed:
            return Answer(finished=False)
        log = Path(folder, "log").read_text(encoding="utf-8", errors="replace")
        if not solution.exists():
            raise SolverError(f"cbc ended without an answer; the end of its log: {log[-300:]!r}")
        reader = pulp.COIN_CMD(path="cbc", msg=False)
        first = solution.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        values = reader.readsol_MPS(str(solution), made, ordered, names, constraints)[1]
    chosen = [values[one.name] for one in variables]
    return _cbc_answer(program, first, chosen, log, in_time=process.seconds < limit_s)


def _command(pulp: Any, program: Program, limit_s: float) -> list[str]:
    command = [pulp.PULP_CBC_CMD.pulp_cbc_path, "model.mps"]
    if limit_s < math.inf:
        command += ["-sec", f"{max(limit_s, 0.01):.3f}", "-timeMode", "elapsed"]
    if program.cutoff < math.inf:
        command += ["-cutoff", repr(program.cutoff)]
    command += ["-primalT", repr(TOLERANCE), "-integerT", repr(TOLERANCE)]
    # It has called programs infeasible that were not, and worse answers optimal.
    command += ["-preprocess", "off"]
    command += ["-ratio", "0", "-allow", "1e-9", "-increment", "1e-9"]
    return [*command, "-solve", "-printingOptions", "all", "-solution", "solution"]


class _CbcProcess:
    """stop: when set, the process is killed. killed: whether it was. seconds: that it took."""

    def __init__(self, command: list[str], folder: str) -> None:
        self._command, self._folder = command, folder
        self.stop = threading.Event()
        self.killed = False
        self.seconds = 0.0

    def run(self, limit_s: float) -> None:
        """Until it has ended, by itself or not."""
        began_s = time.monotonic()
        with open(Path(self._folder, "log"), "wb") as log:
            try:
                process = subprocess.Popen(
                    self._command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise SolverError(
                    f"cbc cannot be started: {error.strerror}. PuLP brings it along for common "
                    "machines; choose the solver search or highs here"
                ) from error
            try:
                while process.poll() is None and not self.killed:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.1)
                    self.seconds = time.monotonic() - began_s
                    self.killed = self.stop.is_set() or self.seconds > limit_s + GRACE_S
            finally:
                process.kill()
                process.wait()


def _cbc_answer(
    program: Program, first: str, values: list[float], log: str, *, in_time: bool
) -> Answer:
    """first: the first line of CBC's solution, such as ``Optimal - objective value 0.98``.

    in_time: whether it ended before its limit; it calls some programs infeasible when it is over.
    """
    kind, _, rest = first.partition(" ")
    if kind == "Infeasible" or first.startswith("Integer infeasible"):
        return Answer(finished=in_time)
    number = rest.rpartition(" ")[2]
    found = _LOWER_BOUND.search(log)
    if kind == "Optimal":
        rows = program.path(values)
        if rows is None:
            raise SolverError("cbc gave an answer that is no plan; choose the solver search")
        return Answer(rows=rows, finished=True, bound=float(found[1] if found else number))
    bound = float(found[1]) if found else -math.inf
    rows = None if "no integer solution" in first else program.path(values)
    return Answer(rows=rows, finished=False, bound=bound)


# -- HiGHS -------------------------------------------------------------------------------------


def run_highs(program: Program, *, limit_s: float) -> Answer:
    """`mip.Run`. It works in a thread, so that Ctrl-C reaches this one, which then stops it."""
    pulp = _pulp()
    made, variables = _problem(pulp, program)
    options: dict[str, Any] = {
        "mip_feasibility_tolerance": TOLERANCE,
        "primal_feasibility_tolerance": TOLERANCE,
        "dual_feasibility_tolerance": TOLERANCE,
    }
    if program.cutoff < math.inf:
        options["objective_bound"] = program.cutoff
    solver = _stoppable(pulp)(
        msg=False,
        gapRel=0.0,
        gapAbs=TOLERANCE,
        timeLimit=None if limit_s == math.inf else max(limit_s, 0.01),
        **options,
    )
    with quiet():
        solver.actualSolve(made)
    model = made.solverModel
    status, info = model.getModelStatus(), model.getInfo()
    kind = status.name.removeprefix("k")
    bound = float(info.mip_dual_bound)
    feasible = info.primal_solution_status == 2
    rows = program.path([one.varValue for one in variables]) if feasible else None
    if kind == "Optimal" and feasible:
        if rows is None:
            raise SolverError("highs gave an answer that is no plan; choose the solver search")
        return Answer(rows=rows, finished=True, bound=bound, stopped=solver.stopped)
    if kind in ("Infeasible", "UnboundedOrInfeasible", "ObjectiveBound", "Optimal"):
        return Answer(rows=rows, finished=True, bound=bound, stopped=solver.stopped)
    if kind in ("TimeLimit", "Interrupt"):
        return Answer(rows=rows, finished=False, bound=bound, stopped=solver.stopped)
    raise SolverError(f"highs ended with the status {kind}; choose the solver search")


def _stoppable(pulp: Any) -> Any:
    class Stoppable(pulp.HiGHS):  # type: ignore[misc]
        stopped = False

        def callSolver(self, lp: Any) -> None:  # noqa: N802
            lp.solverModel.HandleUserInterrupt = True
            self.stopped = stoppable(lp.solverModel.run, lp.solverModel.cancelSolve)

    return Stoppable


# -- PuLP --------------------------------------------------------------------------------------


def _pulp() -> Any:
    try:
        import pulp
    except ImportError as error:
        raise SolverError(
            "the solvers cbc and highs need the package pulp; install it (pip install 'pulp<4') or "
            "choose the solver search"
        ) from error
    return pulp


def _problem(pulp: Any, program: Program) -> tuple[Any, list[Any]]:
    """The program as PuLP's, and its variables in the program's order."""
    made = pulp.LpProblem("funcpipe", pulp.LpMinimize)
    width = len(str(program.num_variables))
    variables = [
        made.add_variable(
            f"x{number:0{width}}",
            float(low),
            None if high == math.inf else float(high),
            pulp.LpInteger if whole else pulp.LpContinuous,
        )
        for number, (low, high, whole) in enumerate(
            zip(program.lower, program.upper, program.whole, strict=True)
        )
    ]
    made.setObjective(
        pulp.LpAffineExpression(
            {variables[i]: float(program.objective[i]) for i in program.objective.nonzero()[0]}
        )
    )
    rows = zip(program.by_row(), program.row_lower, program.row_upper, strict=True)
    for (columns, values), least, most in rows:
        terms = {variables[i]: float(v) for i, v in zip(columns, values, strict=True)}
        if least == most:
            _constrain(pulp, made, terms, pulp.LpConstraintEQ, least)
            continue
        if least > -math.inf:
            _constrain(pulp, made, terms, pulp.LpConstraintGE, least)
        if most < math.inf:
            _constrain(pulp, made, terms, pulp.LpConstraintLE, most)
    return made, variables


def _constrain(pulp: Any, made: Any, terms: dict[Any, float], sense: int, bound: float) -> None:
    expression = pulp.LpAffineExpression(terms)
    made.addConstraint(pulp.LpConstraint(expression, sense=sense, rhs=float(bound)))
