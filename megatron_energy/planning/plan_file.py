"""Plans read from files."""

import os
from collections.abc import Mapping
from typing import Any

from megatron_energy.errors import UserError
from megatron_energy.planning.document import read_document
from megatron_energy.planning.plan import LAYOUT, SCHEMA, VERSION, Plan
from megatron_energy.planning.plan_sense import check_sense
from megatron_energy.planning.rank_ranges import ranks_of
from megatron_energy.planning.typed import build


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan.

    Raises:
        UserError: no such file, no plan, another version, or a damaged one.
    """
    make = f"make one with `megatron-energy plan --out {path}`"
    body = read_document(path, "plan", SCHEMA, VERSION, otherwise=make, again="make the plan again")
    try:
        return _parsed(body)
    except (ValueError, UserError) as error:
        raise UserError(f"{path} is damaged ({error}): make the plan again") from error


def _parsed(body: Mapping[str, Any]) -> Plan:
    plan = build(Plan, body)
    stages = sorted({u.stage for u in plan.units} if plan.by_rank else [u.stage for u in plan.units])
    if stages != list(range(plan.schedule.stages)) or not all(u.segments for u in plan.units):
        raise ValueError("units: not one list of segments per stage")
    for name in LAYOUT:
        if plan.layout.get(name, 0) < 1:
            raise ValueError(f"layout.{name}: must be there and at least 1")
    if plan.layout["pipeline"] != plan.schedule.stages:
        raise ValueError("layout.pipeline and schedule.stages differ")
    if plan.by_rank:
        _check_ranks(plan)
    if min(plan.clocks_mhz) <= 0:
        raise ValueError("units: a clock must be above zero")
    check_sense(plan)
    return plan


def _check_ranks(plan: Plan) -> None:
    try:
        ranks = sorted(rank for u in plan.units for rank in ranks_of(u.ranks, plan.gpus))
    except ValueError as error:
        raise ValueError(f"units: {error}") from None
    if len(ranks) != plan.gpus or ranks != list(range(plan.gpus)):
        raise ValueError("units: not one list of segments per rank")
