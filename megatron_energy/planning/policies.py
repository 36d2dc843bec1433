"""Policies: ways to choose clocks. One function solves for any of them."""

import time
from dataclasses import dataclass

from megatron_energy.pipeline.graph import IntArray
from megatron_energy.planning.bound import Bound, bound
from megatron_energy.planning.descent import Descent
from megatron_energy.planning.problem import Problem
from megatron_energy.planning.sequences import Space


@dataclass(frozen=True)
class Solution:
    """Chosen clocks.

    Attributes:
        clocks: (n,) clock columns.
        bound: the least energy that any plan can use.
        limit_energy_j: least energy of any plan with so few switches, one GPU per unit, where it was proven.
    """

    clocks: IntArray
    bound: Bound
    limit_energy_j: float | None = None


def solve(problem: Problem, policy: str, *, max_switches: int = 8, effort: str = "default", lead_s: float = 0.0, seed: int = 0) -> Solution:
    """Choose clocks (stub until the policies land)."""
    least = bound(problem)
    space = Space(problem, max_switches, lead_s)
    descent = Descent(space, least.deadline_price_w, seed)
    descent.run(12, time.monotonic() + 15)
    return Solution(descent.best.state, least)
