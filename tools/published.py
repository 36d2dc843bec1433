"""The published profiles as planning problems: which models, which pipelines.

Stage profiles of GPT-3 175B and Bloom 176B on A100-SXM 80 GB (tensor parallel 8, eight stages; artifact of Perseus, SOSP'24;
github.com/ml-energy/zeus, Apache-2.0), measured and stored at a tenth of their size. Energies count one GPU per stage.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import P2P_MODES, P2pMode, Schedule
from megatron_energy.planning.problem import Problem
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Profile
from megatron_energy.profiles.tables import build_tables

FILES = {"GPT-3": "gpt3-175b", "Bloom": "bloom"}
STAGES = 8
BLOCKING_W = 83.64  # A100-80G that waits in communication; Perseus (SOSP'24)
SCALE = 10.0

FACTS = f"A100-SXM 80 GB, {STAGES} stages, blocking power {BLOCKING_W} W"


def data_folder() -> Path:
    """The folder that MEGATRON_ENERGY_DATA names.

    Raises:
        UserError: it is not set.
    """
    folder = os.environ.get("MEGATRON_ENERGY_DATA")
    if not folder:
        raise UserError("set MEGATRON_ENERGY_DATA to the folder with the published profiles")
    return Path(folder)


@dataclass(frozen=True)
class Case:
    """One model on one pipeline: ``GPT-3 V2 M16`` has two model chunks per stage and 16 microbatches."""

    model: str
    chunks: int
    microbatches: int

    def __str__(self) -> str:
        return f"{self.model} V{self.chunks} M{self.microbatches}"

    @property
    def modes(self) -> tuple[P2pMode, ...]:
        """Communication modes that make a difference: none for plain 1F1B."""
        return P2P_MODES if self.chunks > 1 else ("ideal",)

    def schedule(self, p2p: P2pMode) -> Schedule:
        """Of one iteration."""
        return Schedule(STAGES, self.microbatches, self.chunks, p2p=p2p)

    def problem(self, folder: Path, p2p: P2pMode = "ideal", **settings: Any) -> Problem:
        """The planning problem; ``settings`` are those of Problem."""
        graph = build_graph(self.schedule(p2p))
        tables = build_tables(graph, profile_of(folder, self.model), self.chunks)
        return Problem(graph, tables, BLOCKING_W, **settings)


@cache
def profile_of(folder: Path, model: str) -> Profile:
    """Profile of a model at its real size."""
    return load_profile(folder / "perseus_sosp24" / "stage_profile" / f"{FILES[model]}+a100_sxm_bf16.csv", SCALE)


def cases(model: str, *sizes: tuple[int, int]) -> tuple[Case, ...]:
    """Cases of (chunks, microbatches)."""
    return tuple(Case(model, chunks, microbatches) for chunks, microbatches in sizes)


PLAIN = tuple(Case(model, 1, microbatches) for model in FILES for microbatches in (12, 24, 48, 96))
"""Plain 1F1B."""

BOUND_CASES = (
    *cases("GPT-3", (1, 12), (1, 16), (1, 24), (1, 48), (1, 96), (2, 16), (2, 32), (2, 48), (2, 96), (4, 16), (4, 32)),
    *cases("Bloom", (1, 12), (1, 24), (1, 48), (1, 96), (2, 16), (2, 32), (2, 48), (2, 96), (4, 16)),
)
"""Where a plan takes a second."""

SEARCH_CASES = (
    *cases("GPT-3", (1, 12), (1, 16), (1, 24), (1, 48), (2, 16), (2, 32), (2, 48), (4, 16)),
    *cases("Bloom", (1, 12), (2, 16)),
)
"""Where plans are searched for."""

LARGE_CASES = cases("GPT-3", (1, 96), (2, 96), (4, 32))
"""More of them, in which a search takes longer."""
