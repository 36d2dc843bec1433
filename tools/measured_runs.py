"""190 measured runs of plain 1F1B pipelines on four A100 GPUs, and what the replay makes of them.

Data: measured_plans_a100.jsonl.gz, condensed from the artifact of Perseus (SOSP'24; github.com/ml-energy/zeus, Apache-2.0). Per run and
rank: the clock requested for every instruction, the mean time of every forward and backward, time and energy of an iteration.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import FloatArray, Graph, IntArray
from megatron_energy.pipeline.replay import makespans
from megatron_energy.pipeline.schedule import Schedule

FILE = "perseus_sosp24/measured_plans_a100.jsonl.gz"
MODELS = ("bert-huge-uncased", "bloom-3b", "gpt3-xl", "t5-3b", "wide-resnet101_8")
STAGES = 4
HIGHEST_MHZ = 1410
CAPS_MHZ = range(1050, HIGHEST_MHZ + 1, 15)
BLOCKING_W = 83.64  # A100-80G that waits in communication; Perseus (SOSP'24)

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Runs:
    """All runs of one model: R of them, n operations each.

    Attributes:
        model: its name.
        graph: of one iteration.
        time_s: (R, n) measured mean time of every operation.
        clock_mhz: (R, n) requested for it.
        iteration_s: (R,) measured, the slowest rank's.
        energy_j: (R, 4) measured, per rank.
    """

    model: str
    graph: Graph
    time_s: FloatArray
    clock_mhz: IntArray
    iteration_s: FloatArray
    energy_j: FloatArray

    @cached_property
    def at_maximum(self) -> BoolArray:
        """(R,) runs at the highest clock throughout."""
        return np.asarray((self.clock_mhz == HIGHEST_MHZ).all(axis=1))

    def replayed_s(self, time_s: FloatArray) -> FloatArray:
        """(R,) iteration times of (R, n) operation times."""
        return makespans(self.graph, time_s.T)

    def ratio(self, values: FloatArray) -> FloatArray:
        """(R,) values against their mean at the highest clock."""
        return np.asarray(values / values[self.at_maximum].mean(), dtype=np.float64)

    def members(self, stage: int, kind: str) -> IntArray:
        """Operations of one direction on one stage, by microbatch."""
        return np.array([v for v in self.graph.chains[stage].tolist() if self.graph.vertices[v].kind == kind], dtype=np.int64)


def load_runs(folder: Path) -> list[Runs]:
    """All runs, one set per model; ``folder`` is that of $MEGATRON_ENERGY_DATA."""
    rows: dict[str, list[Any]] = defaultdict(list)
    with gzip.open(folder / FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            rows[row["model"]].append(row)
    return [_runs(model, found) for model, found in sorted(rows.items())]


def _runs(model: str, rows: Sequence[Any]) -> Runs:
    microbatches = int(rows[0]["microbatches"])
    graph = build_graph(Schedule(STAGES, microbatches, p2p="ideal"))
    place = {(v.unit, v.kind, v.microbatch): i for i, v in enumerate(graph.vertices)}
    time_s, clock_mhz = np.zeros((len(rows), len(place))), np.zeros((len(rows), len(place)), dtype=np.int64)
    for run, row in enumerate(rows):
        for stage, rank in enumerate(row["ranks"]):
            entries = dict(zip(("forward", "backward"), instruction_places(stage, microbatches), strict=True))
            for kind, at in entries.items():
                vertices = [place[stage, kind, m] for m in range(microbatches)]
                time_s[run, vertices] = rank[f"{kind}_seconds"]
                clock_mhz[run, vertices] = np.array(rank["mhz"])[at]
    iteration_s = np.array([max(rank["iteration_seconds"] for rank in row["ranks"]) for row in rows])
    energy_j = np.array([[rank["iteration_joules"] for rank in row["ranks"]] for row in rows])
    return Runs(model, graph, time_s, clock_mhz, iteration_s, energy_j)


def instruction_places(stage: int, microbatches: int) -> tuple[IntArray, IntArray]:
    """Where forwards and backwards stand in a rank's list of clocks, which has entries for loading and transfers, too.

    Found by comparing plans whose forwards and backwards differ in their clocks with the times measured under them.
    """
    each, m = np.arange(microbatches), microbatches
    if stage == STAGES - 1:
        return 4 * each + 2, 4 * each + 3
    warmup = STAGES - 1 - stage
    forward = 4 * each + (-2, -1, 0)[stage]
    forward[: warmup + 1] = 2 * np.arange(warmup + 1) + 2
    backward = 4 * each + (12, 9, 6)[stage]
    last = {0: (4 * m - 2, 4 * m, 4 * m + 3), 1: (4 * m, 4 * m + 4), 2: (4 * m + 2,)}[stage]
    backward[m - len(last) :] = last
    return forward, backward


@dataclass(frozen=True)
class Prediction:
    """What curves fitted on some of the runs say about all: (R,) times in s, (R,) energies in J of the four GPUs.

    ``fixed_s``: part of an iteration that is neither forward nor backward, as the runs fitted on have it.
    """

    iteration_s: FloatArray
    energy_j: FloatArray
    fixed_s: float


def predict(runs: Runs, fitted: BoolArray) -> Prediction:
    """Fit time and power of forward and backward on the runs ``fitted`` (R,), and replay all runs with them.

    Time of an operation: ``a + b / min(f, cap)``, as a power limit holds the clock at ``cap``. The first and last microbatch have curves
    of their own. Power of a rank: a constant, and for either direction a part that goes with the cube of the clock; when it waits,
    the blocking power. All by non-negative least squares on relative errors.
    """
    time_s, in_force = np.zeros_like(runs.time_s), runs.clock_mhz / HIGHEST_MHZ
    for stage in range(STAGES):
        for kind in ("forward", "backward"):
            members = runs.members(stage, kind)
            for part in (members[:1], members[1:-1], members[-1:]):
                time_s[:, part], in_force[:, part] = _fit_times(runs.time_s[:, part], runs.clock_mhz[:, part], fitted)
    replayed_s = runs.replayed_s(time_s)
    fixed_s = float(np.median((runs.iteration_s - replayed_s)[fitted]))
    iteration_s = replayed_s + fixed_s
    energy_j = sum(_fit_energy(runs, stage, time_s, in_force, iteration_s, fitted) for stage in range(STAGES))
    return Prediction(iteration_s, np.asarray(energy_j, dtype=np.float64), fixed_s)


def _fit_times(time_s: FloatArray, clock_mhz: IntArray, fitted: BoolArray) -> tuple[FloatArray, FloatArray]:
    """((R, k) times, (R, k) clocks in force relative to the highest) of the best curve."""
    known_s = time_s[fitted].ravel()
    best = (np.inf, np.zeros_like(time_s), np.zeros_like(time_s))
    for cap_mhz in CAPS_MHZ:
        in_force = np.minimum(clock_mhz, cap_mhz) / HIGHEST_MHZ
        basis = np.stack([np.ones(len(known_s)), 1 / in_force[fitted].ravel()], axis=1)
        (fixed, scaling), error = nnls(basis / known_s[:, np.newaxis], np.ones(len(known_s)))
        if error < best[0]:
            best = (error, fixed + scaling / in_force, in_force)
    return best[1], best[2]


def _fit_energy(runs: Runs, stage: int, time_s: FloatArray, in_force: FloatArray, iteration_s: FloatArray, fitted: BoolArray) -> FloatArray:
    """(R,) joules of one rank."""
    forward, backward = runs.members(stage, "forward"), runs.members(stage, "backward")
    busy_s = time_s[:, [*forward, *backward]].sum(axis=1)
    waiting_j = BLOCKING_W * (iteration_s - busy_s)
    dynamic = time_s * in_force**3
    basis = np.stack([busy_s, dynamic[:, forward].sum(axis=1), dynamic[:, backward].sum(axis=1)], axis=1)
    known_j = (runs.energy_j[:, stage] - waiting_j)[fitted]
    powers_w, _ = nnls(basis[fitted] / known_j[:, np.newaxis], np.ones(len(known_j)))
    return np.asarray(basis @ powers_w + waiting_j, dtype=np.float64)


def every_third(runs: Runs) -> BoolArray:
    """(R,) a third of the runs, spread evenly over their iteration times."""
    chosen = np.zeros(len(runs.iteration_s), dtype=np.bool_)
    chosen[np.argsort(runs.iteration_s, kind="stable")[::3]] = True
    return chosen
