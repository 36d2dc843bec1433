import json
import os
from pathlib import Path

import pytest

from megatron_energy.clockd.hardware import unambiguous_numbers
from megatron_energy.clockd.peers import Peer
from megatron_energy.clockd.slurm import job_gpus_from_prolog, job_of
from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError, GpuLost, NotSupported

PEER = Peer(pid=42, uid=1003, gids=frozenset({1003}))


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs"
    folder.mkdir(mode=0o755)
    return folder


def record(jobs: Path, job: int, uid: object, gpus: object) -> None:
    path = jobs / f"{job}.json"
    path.write_text(json.dumps({"uid": uid, "gpus": gpus}))
    path.chmod(0o644)


def in_cgroup(tmp_path: Path, path: str) -> Path:
    """A proc file system in which process 42 is in a control group."""
    processes = tmp_path / "proc"
    (processes / "42").mkdir(parents=True, exist_ok=True)
    (processes / "42" / "cgroup").write_text(path)
    return processes


@pytest.mark.parametrize(
    ("line", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", 4711),
        ("0::/system.slice/n1_slurmstepd.scope/job_4711/step_batch/user\n", 4711),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/slurmstepd.scope/job_5\n", 4711),
        ("11:devices:/slurm/uid_1003/job_4711/step_0\n1:name=systemd:/user.slice\n", 4711),
        ("11:devices:/slurm_n1/uid_1003/job_4711\n", 4711),
        # Anybody may name his own groups so.
        ("0::/user.slice/user-1003.slice/user@1003.service/slurmstepd.scope/job_5\n", None),
        ("0::/user.slice/user-1003.slice/user@1003.service/slurm/uid_1003/job_5\n", None),
        ("0::/system.slice/ssh.service\n", None),
    ],
)
def test_the_job_of_a_process(tmp_path: Path, line: str, job: int | None) -> None:
    assert job_of(in_cgroup(tmp_path, line) / "42" / "cgroup") == job


def test_the_gpus_of_the_job(tmp_path: Path, jobs: Path) -> None:
    record(jobs, 4711, 1003, "GPU-a,GPU-b")
    record(jobs, 4712, 1003, "GPU-c")
    record(jobs, 4713, 1004, "GPU-d")
    inside = in_cgroup(tmp_path, "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n")
    assert job_gpus_from_prolog(jobs, None, inside)(PEER) == {"GPU-a", "GPU-b"}
    foreign = in_cgroup(tmp_path, "0::/system.slice/slurmstepd.scope/job_4713/step_0/user/task_0\n")
    assert job_gpus_from_prolog(jobs, None, foreign)(PEER) == set()


def test_without_control_groups_all_jobs_of_the_user_count(tmp_path: Path, jobs: Path) -> None:
    record(jobs, 4711, 1003, "GPU-a")
    record(jobs, 4712, 1003, "GPU-c")
    record(jobs, 4713, 1004, "GPU-d")
    job_gpus = job_gpus_from_prolog(jobs, None, tmp_path / "nothing here")
    assert job_gpus(PEER) == {"GPU-a", "GPU-c"}
    (jobs / "4711.json").unlink()  # the Epilog does this
    assert job_gpus(PEER) == {"GPU-c"}


def test_files_of_other_jobs_are_none_of_his_business(tmp_path: Path, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Prolog writes one just now, an Epilog removes one: neither may end this user's lease."""
    record(jobs, 4712, 1003, "GPU-c")
    (jobs / "4711.json").write_text("")
    (jobs / "4713.json").symlink_to(jobs / "gone")
    job_gpus = job_gpus_from_prolog(jobs, None, tmp_path)
    assert job_gpus(PEER) == {"GPU-c"}
    (jobs / "4712.json").unlink()
    with pytest.raises(UserError, match=r"4711\.json is malformed"):  # it might be his
        job_gpus(PEER)
    (jobs / "4711.json").unlink()
    assert job_gpus(PEER) == set()


def test_numbers_instead_of_uuids(tmp_path: Path, jobs: Path) -> None:
    record(jobs, 4711, 1003, "0,2")
    assert job_gpus_from_prolog(jobs, {0: "GPU-a", 1: "GPU-b", 2: "GPU-c"}, tmp_path)(PEER) == {"GPU-a", "GPU-c"}
    with pytest.raises(UserError, match="indices and minor numbers differ on this host: let the Prolog write UUIDs"):
        job_gpus_from_prolog(jobs, None, tmp_path)(PEER)
    with pytest.raises(UserError, match="names GPU 2, which this host does not have"):
        job_gpus_from_prolog(jobs, {0: "GPU-a"}, tmp_path)(PEER)


class Numbered:
    def __init__(self, index: int, minor: int | GpuError) -> None:
        self.index, self.minor, self.uuid = index, minor, f"GPU-{index}"

    def minor_number(self) -> int:
        if isinstance(self.minor, GpuError):
            raise self.minor
        return self.minor


def numbers(*minors: int | GpuError) -> dict[int, str] | None:
    return unambiguous_numbers([Numbered(index, minor) for index, minor in enumerate(minors)])  # type: ignore[misc]


def test_when_numbers_are_unambiguous() -> None:
    assert numbers(0, 1) == {0: "GPU-0", 1: "GPU-1"}
    assert numbers(1, 0) is None
    assert numbers(0, GpuLost("it fell off the bus"), 2) == {0: "GPU-0", 2: "GPU-2"}  # a GPU that does not answer has no number
    assert numbers(NotSupported("no device files"), NotSupported("no device files")) is None


@pytest.mark.parametrize(("uid", "gpus"), [("1003", "GPU-a"), (True, "GPU-a"), (1003, ["GPU-a"])])
def test_malformed_records(tmp_path: Path, jobs: Path, uid: object, gpus: object) -> None:
    record(jobs, 4711, uid, gpus)
    with pytest.raises(UserError, match=r"4711\.json is malformed: Slurm's Prolog must write"):
        job_gpus_from_prolog(jobs, None, tmp_path)(PEER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_record_that_the_user_wrote_himself_is_not_believed(tmp_path: Path, jobs: Path) -> None:
    record(jobs, 4711, 1003, "GPU-a")
    os.chown(jobs / "4711.json", 1003, 1003)
    with pytest.raises(UserError, match="belongs to user 1003"):
        job_gpus_from_prolog(jobs, None, tmp_path)(PEER)
