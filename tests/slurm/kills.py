"""A job that has lowered clocks on all its GPUs ends in a bad way: are they back, and how soon?"""

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.bed import Bed, wait_until

HOLDER = Path(__file__).with_name("hold_clocks.py")
START_S = 60.0
END_S = 60.0

WAYS = ("scancel", "kill -9 of a task", "kill -9 of slurmstepd", "kill -9 of slurmd", "kill -9 of slurmd and slurmstepd")


@dataclass(frozen=True)
class Task:
    """A task of the job, and the slurmstepd that started it."""

    node: str
    pid: int
    step_pid: int


@dataclass(frozen=True)
class Outcome:
    """What a way to end a job led to.

    Attributes:
        way: one of :data:`WAYS`.
        restored_s: from the event until every GPU of the job was as found.
        state: the job's last state.
        epilogs: nodes on which the Epilog ran.
    """

    way: str
    restored_s: float
    state: str
    epilogs: int


def start_holders(bed: Bed, gpus: int) -> tuple[int, list[Task]]:
    """A job with a task on every one of ``gpus`` GPUs per node, all of them with lowered clocks."""
    folder = Path(bed.folder) / f"holders-{len(list(bed.folder.iterdir()))}"
    folder.mkdir()
    size = [f"--nodes={len(bed.nodes)}", f"--ntasks-per-node={gpus}", f"--gpus-per-node={gpus}"]
    command = f"srun --kill-on-bad-exit=1 {sys.executable} {HOLDER} {folder}"
    job = bed.submit(*size, f"--output={folder}/log", "--no-requeue", "--wrap", command)
    count = len(bed.nodes) * gpus
    wait_until(lambda: len(list(folder.glob("*.ready"))) == count, f"{count} tasks hold a GPU", START_S)
    words = [path.read_text().split() for path in sorted(folder.glob("*.ready"))]
    assert all(len(locked) == gpus for locked in bed.all_locked().values()) and len(bed.all_locked()) == len(bed.nodes)
    return job, [Task(node, int(pid), int(step_pid)) for node, pid, step_pid in words]


def end(bed: Bed, job: int, tasks: list[Task], way: str) -> None:
    """Let the job end that way, on its second node.

    A lost slurmstepd or slurmd does not end a job whose tasks run on: the job is cancelled then, as its time limit would. A slurmd that was
    killed comes back only after the rest of the job has ended.
    """
    node = bed.nodes[1]
    victim = next(task for task in tasks if task.node == node)
    if way == "kill -9 of a task":
        os.kill(victim.pid, signal.SIGKILL)
        return
    without_daemon = "slurmd" in way.split()
    if without_daemon:
        os.kill(bed.daemon(node), signal.SIGKILL)
    if "slurmstepd" in way.split():
        os.kill(victim.step_pid, signal.SIGKILL)
    bed.run("scancel", str(job))
    if without_daemon:
        others = [other for other in bed.nodes if other != node]
        wait_until(lambda: not bed.all_locked(others), "clocks restored on the other nodes", END_S)
        bed.start_daemon(node)


def try_way(bed: Bed, way: str, gpus: int) -> Outcome:
    """Start such a job, end it, and wait until its GPUs are as they were found."""
    job, tasks = start_holders(bed, gpus)
    before = {node: epilogs(bed, node, job) for node in bed.nodes}
    assert not any(before.values())
    start_s = time.monotonic()
    try:
        end(bed, job, tasks, way)
        wait_until(lambda: not bed.all_locked(), f"{way}: clocks restored", END_S)
        restored_s = time.monotonic() - start_s
        state = bed.wait(job, END_S)["JobState"]
    finally:
        for task in tasks:  # whom a killed slurmstepd has left behind
            with suppress(ProcessLookupError):
                os.kill(task.pid, signal.SIGKILL)
    return Outcome(way, restored_s, state, sum(epilogs(bed, node, job) for node in bed.nodes))


def without_epilog(bed: Bed, gpus: int) -> tuple[int, bool]:
    """The same job, cancelled, on nodes whose Epilog does nothing; then another job on one of them.

    Returns:
        GPUs still locked: those that were locked around clockd, since clockd has restored the others. And whether the next job's Prolog
        restored them on the last node, before the first task began.
    """
    script = bed.state / "epilog"
    text = script.read_text()
    script.write_text("#!/bin/sh\nexit 0\n")
    job, _ = start_holders(bed, gpus)
    bed.run("scancel", str(job))
    bed.wait(job, END_S)
    script.write_text(text)
    left = bed.all_locked()
    assert all(index % 2 for locked in left.values() for index in locked), left
    node, answer = bed.nodes[-1], bed.folder / "next"
    log = bed.state / "log" / f"hooks.{node}.log"
    bed.run("srun", f"--nodelist={node}", f"--gpus-per-node={gpus}", f"--output={answer}", "cat", str(log))
    prolog = answer.read_text().rpartition("prolog of job")[2]  # what its log said when the first task ran
    return sum(map(len, left.values())), prolog.count(" restored") == gpus and not bed.locked(node)


def epilogs(bed: Bed, node: str, job: int) -> bool:
    """Whether the Epilog has run on a node."""
    return f"epilog of job {job}\n" in bed.hooks(node)
