"""Runs real 16-rank trainings and broken jobs on a virtual Slurm cluster of this host; prints a Markdown report.

    python tools/check_slurm.py [--system] [--parts clocks training requeue killed] [--out DIR]

Needs root; ``--system`` installs Slurm's packages; ``--out`` keeps what the trainings leave. All GPUs are emulated. Exit status 1 where
anything was not as promised.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_energy.observe.journal import Journal
from tests.slurm.bed import Bed, missing, running, wait_until
from tests.slurm.kills import WAYS, try_way, without_epilog

PARTS = ("clocks", "training", "requeue", "killed")
FIRST_PORT = 17400
EMULATED = "scripts/slurm/gpt_emulated.sh"
ITERATIONS = 34  # 1 + 3 of the baseline, 16 of the sweep, the rest under the plan
STOP_AFTER = 23  # a few iterations under the plan
TRAINING_S = 900.0

Losses = dict[int, tuple[str, str]]


class Report:
    """Prints what was found, and remembers what was wrong."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def fact(self, text: str) -> None:
        """One line of the report."""
        print(f"- {text}", flush=True)

    def check(self, text: str, right: bool) -> None:
        """One line that has to be true."""
        self.fact(text if right else f"WRONG: {text}")
        if not right:
            self.wrong.append(text)


def train(bed: Bed, folder: Path, name: str, script: str, *options: str, device: str = "emulated") -> tuple[int, Path]:
    """Submit a training under an energy plan; the number of the job, and its log. ``device``: see scripts/slurm/gpt_emulated.sh."""
    log = folder / f"{name}.log"
    variables = {"JOB": EMULATED, "RUN": str(folder / name), "ITERATIONS": str(ITERATIONS), "ENERGY_POLICY": "segments"}
    variables["ENERGY_DEVICE"] = device
    return bed.submit(f"--output={log}", *options, f"scripts/slurm/{script}", **variables), log


def losses(log: Path) -> Losses:
    """Iteration -> loss and gradient norm, as Megatron printed them; of an iteration that was repeated, the last."""
    pattern = r"iteration +(\d+)/.*(lm loss: \S+) .*(grad norm: \S+)"
    return {int(number): (loss, norm) for number, loss, norm in re.findall(pattern, log.read_text(errors="replace"))}


def has_reached(log: Path, iteration: int) -> bool:
    """Whether the log shows that iteration."""
    return log.exists() and bool(re.search(rf"iteration +{iteration}/", log.read_text(errors="replace")))


def gpus_by_node(tensorboard: Path) -> dict[str, list[int]]:
    """Node -> its GPUs, by the tags in TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tensorboard))
    events.Reload()
    found: dict[str, set[int]] = {}
    for tag in events.Tags()["scalars"]:
        if match := re.match(r"energy/gpu/([^/]+)/(\d+)/iteration-energy-j", tag):
            found.setdefault(match[1], set()).add(int(match[2]))
    return {node: sorted(gpus) for node, gpus in sorted(found.items())}


def check_training(bed: Bed, folder: Path, report: Report) -> None:
    """A task per GPU on four nodes and a torchrun per node on two: a plan, 16 GPUs in TensorBoard, the same losses."""
    print("\n## 16 ranks under an energy plan\n")
    runs: dict[str, Losses] = {}
    two_nodes = ("--nodes=2", "--gpus-per-node=8")
    for name, script, options in (("srun-4x4", "srun.sbatch", ()), ("torchrun-2x8", "torchrun.sbatch", two_nodes)):
        start_s = time.monotonic()
        job, log = train(bed, folder, name, script, *options)
        state = bed.wait(job, TRAINING_S)["JobState"]
        runs[name] = losses(log)
        report.check(f"`{script}` ({name[-3:]}): {state} after {time.monotonic() - start_s:.0f} s", state == "COMPLETED")
        summaries = Journal(folder / name / "energy").read()
        planned = [s for s in summaries if s.phase == "planned"]
        ranks = {len(s.gpus) for s in summaries}
        report.check(
            f"iterations of {ranks} GPUs recorded: {len(summaries)}, under the plan: {len(planned)}", ranks == {16} and len(planned) > 5
        )
        check_tensorboard(gpus_by_node(folder / name / "tensorboard"), *((4, 4) if name.endswith("4x4") else (2, 8)), report)
        said = re.search(r"megatron-energy: (plan made.*)", log.read_text(errors="replace"))
        report.check(said[1] if said else "no plan was made", said is not None)
    first, second = runs.values()
    report.check(f"losses and gradient norms of both, {len(first)} iterations: equal to the last digit printed", first == second != {})


def check_tensorboard(shown: dict[str, list[int]], nodes: int, gpus: int, report: Report) -> None:
    """Every GPU has its charts, under Slurm's name of its node."""
    named = all(re.fullmatch(r"n[1-4]", node) for node in shown)
    grouped = len(shown) == nodes and named and all(found == list(range(gpus)) for found in shown.values())
    report.check(f"GPUs in TensorBoard: {', '.join(f'{len(found)} of {node}' for node, found in shown.items())}", grouped)


def check_requeue(bed: Bed, folder: Path, report: Report) -> None:
    """A job is told to make room under its plan, comes back with the same number, and goes on with the plan that it had."""
    print("\n## Requeue\n")
    job, log = train(bed, folder, "requeue", "requeue.sbatch")
    wait_until(lambda: has_reached(log, STOP_AFTER), f"iteration {STOP_AFTER}", TRAINING_S)
    plan = (folder / "requeue" / "energy" / "plan.json").read_bytes()
    bed.run("scancel", "--batch", "--signal=USR1", str(job))
    stopped_s = time.monotonic()
    wait_until(lambda: f"job {job} (start 2)" in log.read_text(errors="replace"), "the second start", TRAINING_S)
    report.fact(f"from SIGUSR1 to the second start, checkpoint included: {time.monotonic() - stopped_s:.0f} s")
    facts = bed.wait(job, TRAINING_S)
    report.check(
        f"job {job}: {facts['JobState']} after {facts['Restarts']} restart", (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1")
    )
    text = log.read_text(errors="replace").partition(f"job {job} (start 2)")[2]
    report.check("the second start runs the saved plan", f"megatron-energy: plan {folder}/requeue/energy/plan.json" in text)
    report.check("it makes no other plan", "plan made" not in text)
    report.check("the plan is the same, byte by byte", (folder / "requeue" / "energy" / "plan.json").read_bytes() == plan)
    phases = [summary.phase for summary in Journal(folder / "requeue" / "energy").read()]  # those of the first start were set aside
    report.check(f"iterations after the restart: {', '.join(phases)}", set(phases) == {"baseline", "planned"} and phases[-1] == "planned")
    compare_with_uninterrupted(folder, losses(log), report)


def compare_with_uninterrupted(folder: Path, resumed: Losses, report: Report) -> None:
    """The same losses as without the interruption; of the second iteration of a process Megatron prints the mean of its first two."""
    whole = folder / "srun-4x4.log"
    if not whole.exists():
        return
    expected = losses(whole)
    differing = [number for number in expected if expected[number][0] != resumed.get(number, ("", ""))[0]]
    norms = [norm for _, norm in expected.values()] == [norm for _, norm in resumed.values()]
    report.check(f"gradient norms of all {len(resumed)} iterations equal those of the run that was not interrupted", norms)
    report.check(f"losses too, but in {len(differing)} iteration(s) (the second of a process shows a mean)", len(differing) <= 1)


def check_clocks(bed: Bed, report: Report) -> None:
    """Jobs with lowered clocks on 16 GPUs end in bad ways."""
    print("\n## Clocks after a job that ended badly\n")
    print("Half of its 16 GPUs leased from clockd, half locked around it; on 4 nodes.\n")
    print("| how the job ended | all clocks as found after, s | job | Epilogs |\n| --- | ---: | --- | ---: |")
    for way in WAYS:
        outcome = try_way(bed, way, gpus=4)
        print(f"| {way} | {outcome.restored_s:.2f} | {outcome.state} | {outcome.epilogs} |", flush=True)
        if outcome.epilogs != 4:
            report.wrong.append(f"{way}: {outcome.epilogs} Epilogs")
    left, restored = without_epilog(bed, gpus=4)
    print()
    report.check(f"without an Epilog {left} GPUs stay locked (those that were locked around clockd)", left == 8)
    report.check("the next job's Prolog restores them before its first task", restored)


def rank_process(job: int, rank: int) -> int:
    """Process id of a rank."""
    wanted = {b"SLURM_JOB_ID=%d" % job, b"RANK=%d" % rank}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                return int(folder.name)
    raise AssertionError(f"rank {rank} of job {job} does not run")


def check_killed_training(bed: Bed, folder: Path, report: Report) -> None:
    """A training whose clocks are set through clockd loses a rank in the middle of its sweep."""
    print("\n## A training that loses a rank while its clocks are lowered\n")
    job, log = train(bed, folder, "killed", "srun.sbatch", device="nvml")
    try:
        wait_until(lambda: sum(map(len, bed.all_locked().values())) == 16, "lowered clocks on 16 GPUs", TRAINING_S)
    except AssertionError as error:
        report.check(f"{error}; its log ends: {log.read_text(errors='replace')[-500:]}", False)
        bed.run("scancel", str(job))
        return
    leased = sum((bed.state / node / "clockd.jsonl").read_text().count('"leased"') for node in bed.nodes)
    report.check(f"16 ranks hold {leased} leases of clockd, and have lowered the clocks of 16 GPUs", leased >= 16)
    start_s = time.monotonic()
    os.kill(rank_process(job, 5), signal.SIGKILL)
    wait_until(lambda: not bed.all_locked(), "clocks as found", 60)  # the other ranks get SIGTERM, and KillWait (5 s) later SIGKILL
    report.fact(f"kill -9 of rank 5: all clocks as found after {time.monotonic() - start_s:.2f} s")
    state = bed.wait(job, TRAINING_S)["JobState"]
    report.check(f"job {job}: {state}", state == "FAILED")


def check_gpu_freq(bed: Bed, folder: Path, report: Report) -> None:
    """A plan and Slurm's own clocks are not mixed."""
    print("\n## --gpu-freq\n")
    for how, options, command in (
        ("sbatch", ("--gpu-freq=medium",), "scripts/slurm/srun.sbatch"),
        ("srun", (), "srun --gpu-freq=medium python -m megatron_energy.run scripts/pretrain_gpt.py --energy-policy segments"),
    ):
        log = folder / f"gpu-freq-{how}.log"
        words = [command] if command.endswith(".sbatch") else ["--gpus-per-node=1", "--wrap", command]
        job = bed.submit(f"--output={log}", *options, *words, JOB=EMULATED, RUN=str(folder / "gpu-freq"))
        state = bed.wait(job, 120)["JobState"]
        said = [line for line in log.read_text().splitlines() if "--gpu-freq" in line and "would" in line]
        report.check(f"{how} --gpu-freq: {state}, {said}", state == "FAILED" and len(said) == 1)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", action="store_true", help="install missing system packages (apt-get)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to check; default: all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep logs and run directories here (default: nothing is kept)")
    options = parser.parse_args(arguments)
    reason = missing()
    if os.geteuid() != 0 or (reason is not None and not options.system):
        print(f"error: {reason}", file=sys.stderr)
        return 2
    report = Report()
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=False).stdout.strip() or "Slurm to be installed"
    print(f"# megatron-energy under Slurm, on one host with emulated GPUs ({version})\n")
    with (
        tempfile.TemporaryDirectory(prefix="runs-") as scratch,
        running(4, 8, FIRST_PORT, *(["--system"] if options.system else [])) as bed,
    ):
        folder = (options.out or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        report.fact(next(line for line in bed.said.splitlines() if "are up after" in line))
        if "clocks" in options.parts:
            check_clocks(bed, report)
            check_gpu_freq(bed, folder, report)
        if "training" in options.parts:
            check_training(bed, folder, report)
        if "requeue" in options.parts:
            check_requeue(bed, folder, report)
        if "killed" in options.parts:
            check_killed_training(bed, folder, report)
    for complaint in report.wrong:
        print(f"WRONG: {complaint}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
