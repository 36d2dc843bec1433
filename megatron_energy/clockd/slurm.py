"""The GPUs of the caller's Slurm job, for rules that say ``gpus = slurm-job``.

A process's own environment says which GPUs it was given, but its user may write there what he likes. So Slurm's Prolog,
which runs as root, leaves one file per job, and its Epilog removes it (docs/clockd.md has both scripts)::

    /run/megatron-energy/jobs/4711.json     {"uid": 1003, "gpus": "GPU-5d3c...,GPU-81f0..."}

The job of a caller is read from its control group where Slurm makes one; without, all jobs of his user on this node
count as his, and files of others that are being written or removed just then are none of his business. A file counts only if
it names the caller's user. ``gpus`` are UUIDs, or Slurm's numbers (SLURM_JOB_GPUS): those are taken only where NVML's indices
and the driver's minor numbers are the same, since sites differ in which they mean.
No Slurm command is called: scontrol may hang while a prolog runs.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.trust import read_trusted
from megatron_energy.errors import UserError

JobGpus: TypeAlias = Callable[[Peer], frozenset[str]]
"""UUIDs of the GPUs of a caller's job. Raises UserError with the reason where that cannot be told."""

# cgroup v2 (slurmstepd.scope, with the node's name in front where several slurmd share a host) and v1. Anchored at the root: a user may
# name groups in his own part of the tree as he likes.
_CGROUPS = (
    re.compile(r"/(?:system\.slice/)?(?:[\w.-]+_)?slurmstepd\.scope/job_([0-9]+)(?:/|$)"),
    re.compile(r"/slurm(?:_[\w.-]+)?/uid_[0-9]+/job_([0-9]+)(?:/|$)"),
)


def job_gpus_from_prolog(folder: Path, gpu_numbers: Mapping[int, str] | None, processes: Path = Path("/proc")) -> JobGpus:
    """What the Prolog's files in ``folder`` say.

    Args:
        folder: where the files are.
        gpu_numbers: number of a GPU on this host -> its UUID; None where the numbers are ambiguous.
        processes: the proc file system.
    """

    def job_gpus(peer: Peer) -> frozenset[str]:
        job = job_of(processes / str(peer.pid) / "cgroup")
        records = [(folder / f"{job}.json", *_record(folder / f"{job}.json"))] if job is not None else _readable(folder, peer.uid)
        gpus: set[str] = set()
        for file, uid, names in records:
            if uid == peer.uid:
                gpus |= _uuids(file, names, gpu_numbers)
        return frozenset(gpus)

    return job_gpus


def job_of(cgroup_file: Path) -> int | None:
    """The Slurm job in whose control group a process is, or None outside of one."""
    try:
        lines = cgroup_file.read_text().splitlines()
    except OSError:  # the process is gone, or the host hides processes: its user's jobs are all there is to go by
        return None
    for line in lines:
        path = line.split(":", 2)[-1]
        for pattern in _CGROUPS:
            match = pattern.match(path)
            if match is not None:
                return int(match[1])
    return None


def _readable(folder: Path, uid: int) -> list[tuple[Path, int, list[str]]]:
    """All records of a folder that can be read. Raises UserError where one cannot and none of this user's can."""
    records: list[tuple[Path, int, list[str]]] = []
    problem: UserError | None = None
    for file in sorted(folder.glob("[0-9]*.json")):
        try:
            records.append((file, *_record(file)))
        except UserError as error:
            problem = problem or (error if file.exists() else None)
    if problem is not None and all(owner != uid for _, owner, _ in records):
        raise problem
    return records


def _record(file: Path) -> tuple[int, list[str]]:
    text = read_trusted(file)
    try:
        record: Any = json.loads(text)
        uid, gpus = record["uid"], record["gpus"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f'{file} is malformed: Slurm\'s Prolog must write {{"uid": NUMBER, "gpus": "UUID,UUID"}}') from None
    if not isinstance(uid, int) or isinstance(uid, bool) or not isinstance(gpus, str):
        raise UserError(f'{file} is malformed: Slurm\'s Prolog must write {{"uid": NUMBER, "gpus": "UUID,UUID"}}')
    return uid, [name for name in re.split(r"[\s,]+", gpus) if name]


def _uuids(file: Path, names: list[str], gpu_numbers: Mapping[int, str] | None) -> set[str]:
    uuids: set[str] = set()
    for name in names:
        if not name.isdecimal():
            uuids.add(name)
        elif gpu_numbers is None:
            raise UserError(f"{file} names GPUs by number, but indices and minor numbers differ on this host: let the Prolog write UUIDs")
        elif int(name) not in gpu_numbers:
            raise UserError(f"{file} names GPU {name}, which this host does not have")
        else:
            uuids.add(gpu_numbers[int(name)])
    return uuids
