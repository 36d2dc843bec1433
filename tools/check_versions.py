"""megatron-core, version by version: real runs of 4 ranks on the CPU, hooked and unhooked; prints a Markdown table.

    python tools/check_versions.py [--versions 0.14.0 0.19.2] [--cores FOLDER] [--write docs/versions.md]

Every version is installed into a folder of its own in FOLDER (default: megatron-cores in the Python environment), or found there: a folder
of any other name that holds a ``megatron`` package can be named too. Exit status 1 where anything differs. About 30 s per version.

In every configuration the same training runs without us and under an energy policy that learns and plans in the run itself (the GPUs are
emulated). Losses, gradient norms and parameters have to be equal to the bit; the last iteration's operations, posts and waits have to be
those of the pipeline model in the communication mode that the run has recognised; and the clock requests in it have to be those of
the plan that it made, each at its transition point.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evaluation_page import Table, replace_section, section
from mistakes import told

from megatron_energy.errors import UserError
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.plan import Plan
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.records.steps import ClockRequest, Compute, GradSyncStart, Post, Program, Wait
from megatron_energy.session.directive import Directive, TransitionPoint
from megatron_energy.session.facts import JobFacts, RankFacts
from megatron_energy.session.planned import PlannedRun
from tests.megatron.collector import from_plain
from tests.pipeline.releases import mode_in
from tests.session.launched import EMULATED
from tests.session.simulated import with_requests

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.16.1", "0.17.1", "0.18.2", "0.19.2")
PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--ignore-requires-python")
RANKS = 4
SHORT = ["--energy-baseline-iterations", "1", "--energy-sweep-clocks", "2"]
STEPS = ["--steps", str(1 + 1 + 2 * 2 + 2)]  # the first one, the baseline, two at every clock, and two under the plan
SLOWER = ["--energy-slowdown", "0.1"]  # where nothing waits, there is nothing to save without
PIPELINE_4 = ["--pipeline", "4", "--microbatches", "8"]
CONFIGURATIONS = {
    "interleaved, PP4 x 2 chunks": [*PIPELINE_4, "--virtual", "2", "--overlap"],
    "the same without p2p overlap": [*PIPELINE_4, "--virtual", "2"],
    "plain 1F1B, PP4": PIPELINE_4,
    "no pipeline, DP4": ["--microbatches", "3"],
    "MoE, EP2 PP2": ["--pipeline", "2", "--experts", "4"],
    "sequence parallel, TP2 PP2": ["--tensor", "2", "--pipeline", "2", "--sequence-parallel"],
}
NUMERICS = ("losses", "grad_norms", "parameters")
SECTION = "versions"


def install(version: str, folder: Path) -> None:
    """Put a version of megatron-core alone into a folder: from a wheel, or built where there is none for this Python."""
    wanted = [*PIP, "--target", str(folder), f"megatron-core=={version}"]
    done = subprocess.run([sys.executable, "-m", "pip", *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"megatron-core {version} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    # megatron is a namespace package: without this file, parts that this version lacks would come from the other one.
    (folder / "megatron" / "__init__.py").write_text(f'"""megatron-core {version} alone."""\n')


@dataclass(frozen=True)
class Ran:
    """What the trainings of one version left.

    Attributes:
        folder: its files.
        statuses: exit status by launch: ``unhooked`` or the index of a configuration.
    """

    folder: Path
    statuses: dict[str, int]

    def reports(self, launch: str, case: str) -> list[dict[str, Any]]:
        """What every rank wrote."""
        return [json.loads((self.folder / launch / f"{case}-{rank}.json").read_text()) for rank in range(RANKS)]

    def said(self, launch: str) -> str:
        """The last line of a launch that failed, or why it had no plan."""
        lines = [line for kind in ("out", "err") for line in (self.folder / f"{launch}.{kind}").read_text().splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith(("megatron-energy: ", "error: "))]
        return (ours or lines or ["nothing was said"])[-1].strip()


def train(core: Path, folder: Path) -> Ran:
    """All configurations with the megatron-core in ``core``, in one process that does the imports."""
    launches = {"unhooked": _launch(folder, "unhooked", {str(n): words for n, words in enumerate(CONFIGURATIONS.values())}, [])}
    for number, words in enumerate(CONFIGURATIONS.values()):
        energy = ["--energy-policy", "segments", *EMULATED, *SHORT, "--energy-dir", str(folder / f"{number}-energy")]
        energy += [] if "--pipeline" in words else SLOWER
        launches[str(number)] = _launch(folder, str(number), {str(number): words}, energy)
    (folder / "launches.json").write_text(json.dumps(launches))
    path = os.pathsep.join([str(core.resolve()), str(ROOT)])
    inherited = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, "-m", "tests.session.several_launches", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={**inherited, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{core}: {done.stderr.strip().splitlines()[-1]}")
    return Ran(folder, json.loads((folder / "statuses.json").read_text()))


def _launch(folder: Path, name: str, cases: dict[str, list[str]], energy: list[str]) -> list[str]:
    (folder / name).mkdir()
    file = folder / name / "cases.json"
    file.write_text(json.dumps({case: [*words, *STEPS] for case, words in cases.items()}))
    script = [str(ROOT / "tools" / "versions_gpt.py"), "--cases", str(file), "--out", str(folder / name)]
    return ["--nproc", str(RANKS), *script, *energy]


def cell(ran: Ran, number: int) -> str:
    """What became of one configuration."""
    launch = str(number)
    try:
        unhooked = ran.reports("unhooked", launch)
    except OSError:
        return f"does not run without us: {ran.said('unhooked')}"
    if ran.statuses[launch]:
        return f"WRONG: exit status {ran.statuses[launch]}: {ran.said(launch)}"
    hooked = ran.reports(launch, launch)
    numerics = [[report[name] for name in NUMERICS] for reports in (unhooked, hooked) for report in reports]
    if numerics[:RANKS] != numerics[RANKS:]:
        return "WRONG: losses, gradient norms or parameters differ"
    plan = ran.folder / f"{launch}-energy" / "plan.json"
    return _against_plan(hooked, load_plan(plan)) if plan.exists() else f"WRONG: no plan: {ran.said(launch)}"


def _against_plan(hooked: Sequence[dict[str, Any]], plan: Plan) -> str:
    """The last iteration of every rank against the pipeline model and the plan."""
    job = JobFacts(tuple(RankFacts(**report["facts"]) for report in hooked))
    wrong = _wrong_mode(job.any, plan.schedule)
    planned, counts, requested = PlannedRun(plan, job.stage_of_rank), Counter[str](), 0
    for rank, report in enumerate(hooked):
        recorded: Program = [step for step in map(from_plain, report["program"]) if not isinstance(step, GradSyncStart)]
        directive = planned.directive(rank)
        model = program(plan.schedule, job.ranks[rank].stage, grad_sync=True, optimizer=True)
        wrong = wrong or _wrong_program(rank, recorded, model, directive)
        if _by_point(report["requests"]) != directive.requests:
            wrong = wrong or f"rank {rank} was not told the plan's requests"
        counts.update(type(step).__name__ for step in recorded if isinstance(step, Compute | Post | Wait))
        requested += sum(isinstance(step, ClockRequest) for step in recorded)
    if wrong:
        return f"WRONG: {wrong}"
    mode = f"{plan.schedule.p2p}, " if plan.schedule.interleaved else ""
    return f"{mode}{counts['Compute']} / {counts['Post']} / {counts['Wait']}, {requested}"


def _wrong_mode(facts: RankFacts, schedule: Schedule) -> str:
    """Only an interleaved schedule shows the mode; elsewhere all do the same."""
    expected = mode_in(facts.core_version, overlap=facts.overlap_p2p, deallocate=facts.deallocate_outputs)
    return f"mode {schedule.p2p} instead of {expected}" if schedule.interleaved and schedule.p2p != expected else ""


def _wrong_program(rank: int, recorded: Program, model: Program, directive: Directive) -> str:
    if [step for step in recorded if not isinstance(step, ClockRequest)] != model:
        return f"rank {rank} recorded another program than the model's"
    if recorded != with_requests(model, directive):
        return f"rank {rank} requested clocks at other points than the plan's"
    return ""


def _by_point(requests: Sequence[Sequence[Any]]) -> dict[TransitionPoint, tuple[ClockRequest, ...]]:
    found: dict[TransitionPoint, tuple[ClockRequest, ...]] = {}
    for kind, chunk, microbatch, edge, *request in requests:
        point = (kind, chunk, microbatch, edge)
        found[point] = (*found.get(point, ()), ClockRequest(*request))
    return found


def check(version: str, cores: Path) -> dict[str, str]:
    """One row of the table."""
    core = cores / version
    if not (core / "megatron").is_dir():
        install(version, core)
    with tempfile.TemporaryDirectory(prefix="megatron-versions-") as folder:
        ran = train(core, Path(folder))
        return {name: cell(ran, number) for number, name in enumerate(CONFIGURATIONS)}


def _order(key: tuple[str, ...]) -> tuple[list[int], str]:
    """Versions by number."""
    return [int(part) for part in key[0].split(".") if part.isdigit()], key[0]


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", nargs="+", default=VERSIONS, help="of megatron-core, or names of folders in --cores")
    parser.add_argument("--cores", type=Path, default=Path(sys.prefix) / "megatron-cores", help="folder of the versions")
    parser.add_argument("--write", type=Path, help="page whose table is brought up to date")
    args = parser.parse_args()
    table = Table(["megatron-core"], list(CONFIGURATIONS))
    if args.write is not None:
        table.read(section(args.write, SECTION).splitlines())
    for version in args.versions:
        table.put((version,), check(version, args.cores))
    table.sort(sorted(table.cells, key=_order))
    text = "\n".join(table.lines()) + "\n"
    print(text)
    if args.write is not None:
        replace_section(args.write, SECTION, text)
    return int(any("WRONG" in table.cells[(version,)][name] for version in args.versions for name in CONFIGURATIONS))


if __name__ == "__main__":
    sys.exit(told(main))
