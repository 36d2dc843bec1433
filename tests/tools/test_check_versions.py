"""What tools/check_versions.py calls wrong, on reports that are made up from the pipeline model and a plan."""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.pipeline.programs import program
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.session.planned import PlannedRun
from tests.megatron.collector import to_plain
from tests.session.simulated import with_requests
from tests.session.small_job import FACTS, make
from tests.tools.loading import load_tool

TOOL = load_tool("check_versions")
NUMERICS = {"losses": ["0x1p+2"], "grad_norms": ["0x1p+0"], "parameters": "5f0c"}
Report = dict[str, Any]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Report]]:
    """What the first configuration leaves of a training that does as it should; a report per rank."""
    folder = tmp_path_factory.mktemp("versions")
    for name in ("unhooked", "0", "0-energy"):
        (folder / name).mkdir()
    make(folder / "0-energy")
    plan = load_plan(folder / "0-energy" / "plan.json")
    reports = []
    for facts in FACTS.ranks:
        directive = PlannedRun(plan, FACTS.stage_of_rank).directive(facts.rank)
        steps = with_requests(program(plan.schedule, facts.stage, grad_sync=True, optimizer=True), directive)
        requests = [[*point, *astuple(request)] for point, found in directive.requests.items() for request in found]
        reports.append({**NUMERICS, "facts": asdict(facts), "program": [to_plain(s) for s in steps], "requests": requests})
    (folder / "0.out").write_text("")
    (folder / "0.err").write_text("megatron-energy: no plan: a reason\n")
    return folder, reports


def cell(folder: Path, reports: list[Report], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the table says about these reports."""
    monkeypatch.setattr(TOOL, "RANKS", len(reports))
    for rank, report in enumerate(reports):
        (folder / "unhooked" / f"0-{rank}.json").write_text(json.dumps(NUMERICS))
        (folder / "0" / f"0-{rank}.json").write_text(json.dumps(report))
    found: str = TOOL.cell(TOOL.Ran(folder, {"unhooked": 0, "0": 0}), 0)
    return found


def test_all_is_well(ran: tuple[Path, list[Report]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reports = ran
    requests = sum(len(report["requests"]) for report in reports)
    assert requests > 0
    # 2 stages x 2 chunks x 4 microbatches x 2 directions; 3 borders, each way sent and received; one send is not waited for
    assert cell(folder, reports, monkeypatch) == f"overlap, 32 / 48 / 47, {requests}"


def _swap_operations(report: Report) -> None:
    steps = report["program"]
    first, second = [i for i, step in enumerate(steps) if step[0] == "Compute"][:2]
    steps[first], steps[second] = steps[second], steps[first]


def _move_a_request(report: Report) -> None:
    place = next(i for i, step in enumerate(report["program"]) if step[0] == "ClockRequest")
    report["program"].append(report["program"].pop(place))


def _other_requests(report: Report) -> None:
    report["requests"][0][4] += 15  # MHz


CHANGES = [
    (lambda report: report.update(losses=["0x1.0000000000001p+2"]), "losses, gradient norms or parameters differ"),
    (_swap_operations, "rank 1 recorded another program than the model's"),
    (lambda report: report["program"].remove(["Optimizer"]), "rank 1 recorded another program than the model's"),
    (_move_a_request, "rank 1 requested clocks at other points than the plan's"),
    (_other_requests, "rank 1 was not told the plan's requests"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_what_differs(ran: tuple[Path, list[Report]], change: Callable[[Report], Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reports = ran[0], copy.deepcopy(ran[1])
    change(reports[1])
    assert cell(folder, reports, monkeypatch) == f"WRONG: {said}"


def test_another_mode_than_the_release_has(ran: tuple[Path, list[Report]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reports = ran[0], copy.deepcopy(ran[1])
    for report in reports:
        report["facts"].update(deallocate_outputs=True)
    assert cell(folder, reports, monkeypatch) == "WRONG: mode overlap instead of overlap-wait"
