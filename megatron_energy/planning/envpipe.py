"""EnvPipe (Choi et al., USENIX ATC 2023), as published, to compare with.

EnvPipe knows plain 1F1B only. It runs every stage at the clock f* at which that stage uses the least energy, except the *outer envelope*,
which stays at the highest clock: the last stage, and the first forward and the last backward of every stage. Then, once per training
iteration, it walks the critical path back from the first stage's last backward and speeds up operations on it, until the path lies in
the envelope:

- *balanced*: all operations of the path that run at its lowest clock, by one step (30 MHz on its V100 and RTX 3090);
- *greedy*: the last operation of the path below the highest clock, by three steps.

Its schedule brings further forwards into the warm-up where memory allows: :mod:`megatron_energy.planning.envpipe_warmup`.

Facts that follow from its rules and from the published code (casys-kaist/EnvPipe): the critical path that it finds is an estimate from
measured receive times (:class:`~megatron_energy.planning.envpipe_paths.MeasuredPath`), right only where the last stage is the bottleneck.
Perseus' published emulation of EnvPipe (ml-energy/zeus, branch kronos) takes the true longest path instead, one f* per operation kind,
balanced steps of 15 MHz and no further forwards: :data:`EMULATION`. Its loop does not end by itself where a path at the highest clock lies
outside the envelope; here it ends.

*It always ends.* Let L be the sum over operations of the clock columns below the highest. L is an integer, at most n x (F - 1) and at least
0. A step speeds up at least one operation by at least one column, however coarse the grid, so L falls by at least 1; where the path has no
operation left that could be faster, the loop ends. So there are at most n x (F - 1) steps. Finding a path ends as well: every move of
either walk leads to a vertex that the graph requires to end earlier.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from megatron_energy.errors import UserError
from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.candidates import evaluate_all
from megatron_energy.planning.envpipe_paths import LongestPath, MeasuredPath
from megatron_energy.planning.problem import Problem

GREEDY_STEPS = 3
"""Steps that the greedy method takes at once (published code, reconfiguration.py)."""


@dataclass(frozen=True)
class Settings:
    """How EnvPipe is run.

    Attributes:
        method: of speeding up.
        step_mhz: one step; where the profile's clocks are further apart, the next one.
        least: f* per stage from the energy of a whole iteration, waiting included, with all stages but the last at one clock (EnvPipe's own
            profiling), or per operation kind from that operation's energy alone (Perseus' emulation).
        path: the true longest path, or EnvPipe's estimate from receive times.
        receive_share: time of a receive that does not wait, as a share of the last stage's forward; used by the estimate where the graph
            has no transfer time. EnvPipe's published output shows about 0.6 ms beside operations of about 18 ms.

    Raises:
        UserError: a step that is not above zero.
    """

    method: Literal["balanced", "greedy"] = "balanced"
    step_mhz: int = 30
    least: Literal["iteration", "operation"] = "iteration"
    path: Literal["longest", "measured"] = "longest"
    receive_share: float = 1 / 30

    def __post_init__(self) -> None:
        if self.step_mhz < 1:
            raise UserError(f"EnvPipe's step must be at least 1 MHz, not {self.step_mhz}")


PUBLISHED = Settings()
"""EnvPipe's own choices, with the true critical path: what it aims at. Of several critical paths the envelope is taken."""

MEASURED = Settings(path="measured")
"""EnvPipe's own choices, with its estimate of the critical path: what its code does."""

EMULATION = Settings(step_mhz=15, least="operation")
"""As in Perseus' published emulation of EnvPipe."""


@dataclass(frozen=True)
class Outcome:
    """What EnvPipe ends with.

    Attributes:
        clocks: (n,) clock columns.
        steps: training iterations in which clocks were changed.
        ended: the critical path lies in the envelope, or nothing on it can be faster.
    """

    clocks: IntArray
    steps: int
    ended: Literal["envelope", "maximum"]


def envpipe(problem: Problem, settings: Settings = PUBLISHED) -> IntArray:
    """(n,) clock columns that EnvPipe ends with. It knows no deadline: whether it kept one is for :meth:`Problem.evaluate` to say.

    Raises:
        UserError: not plain 1F1B.
    """
    return reconfigure(problem, settings).clocks


def reconfigure(problem: Problem, settings: Settings) -> Outcome:
    """Run EnvPipe's loop until it ends.

    Raises:
        UserError: not plain 1F1B.
    """
    envelope = outer_envelope(problem)
    top = problem.baseline_column
    clocks = np.where(envelope, top, least_energy_columns(problem, settings.least)).astype(np.int64)
    finder = LongestPath(problem.graph, envelope) if settings.path == "longest" else MeasuredPath(problem, settings.receive_share)
    steps = 0
    while True:
        path = finder.find(problem.durations(clocks))
        if envelope[path].all():
            return Outcome(clocks, steps, "envelope")
        slower = path[~envelope[path] & (clocks[path] > top)]
        if not len(slower):
            return Outcome(clocks, steps, "maximum")
        if settings.method == "balanced":
            chosen, rise_mhz = slower[clocks[slower] == clocks[slower].max()], settings.step_mhz
        else:
            chosen, rise_mhz = slower[-1:], GREEDY_STEPS * settings.step_mhz
        clocks[chosen] = _raised(problem, clocks[chosen], rise_mhz)
        steps += 1


def outer_envelope(problem: Problem) -> npt.NDArray[np.bool_]:
    """(n,) whether EnvPipe keeps a vertex at the highest clock. What is no operation counts too: EnvPipe does not see it.

    Raises:
        UserError: not plain 1F1B.
    """
    graph = problem.graph
    last = max(unit.stage for unit in graph.units)
    microbatches = 1 + max((v.microbatch for v in graph.vertices), default=0)
    if any(v.chunk > 0 for v in graph.vertices):
        raise UserError("EnvPipe knows plain 1F1B only: plan without chunks, or choose another policy")
    ends = {("forward", 0), ("backward", microbatches - 1)}
    return np.array(
        [
            v.kind not in ("forward", "backward") or graph.units[v.unit].stage == last or (v.kind, v.microbatch) in ends
            for v in graph.vertices
        ]
    )


def least_energy_columns(problem: Problem, least: Literal["iteration", "operation"]) -> IntArray:
    """(n,) column of f* of every vertex, never above the baseline's clock; see :class:`Settings`."""
    top = problem.baseline_column
    energy_j = problem.tables.energy_j[:, top:]
    if least == "operation":
        return np.asarray(top + energy_j.argmin(axis=1), dtype=np.int64)
    unit_of = problem.graph.unit_of_vertex
    stage_of = np.array([unit.stage for unit in problem.graph.units])[unit_of]
    tried = np.arange(top, problem.tables.time_s.shape[1], dtype=np.int64)
    states = np.where(stage_of == stage_of.max(initial=0), top, tried[:, np.newaxis])
    iteration_s, _ = evaluate_all(problem, states)
    used_j = np.zeros((len(problem.graph.units), len(tried)))
    np.add.at(used_j, unit_of, problem.cost_j[:, top:])
    column = top + (used_j + problem.blocking_power_w * iteration_s).argmin(axis=1)
    return np.asarray(column[unit_of], dtype=np.int64)


def _raised(problem: Problem, columns: IntArray, rise_mhz: int) -> IntArray:
    """Columns of clocks at least ``rise_mhz`` higher, as little more as possible, or the highest."""
    clock_mhz = problem.tables.clock_mhz
    at_least = np.searchsorted(-clock_mhz, -(clock_mhz[columns] + rise_mhz), side="right") - 1
    return np.maximum(at_least, problem.baseline_column).astype(np.int64)
