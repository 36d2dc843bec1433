"""A second real Unix user on the same host. Needs root, to make him and to become him."""

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.clockd.client import ClockdClient, Lease
from megatron_energy.clockd.errors import ClockdError
from tests.clockd.host import Host, wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("useradd") is None, reason="needs root and useradd")

RULES = """
[rule first]
users = root
gpus = all
clocks_mhz = 210-1410
power_w = 100-400
[rule second]
users = {user}
gpus = {gpu}
clocks_mhz = 210-1410
power_w = 100-400
"""


@pytest.fixture(scope="module")
def second_user() -> Iterator[str]:
    name = f"clockdtest{os.getpid() % 100_000}"
    made = subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/false", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no user can be made here: {made.stderr.strip()}")
    yield name
    subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.fixture
def shared_host(second_user: str) -> Iterator[Host]:
    """A host in a folder that other users can reach; the second user may use GPU 3 alone."""
    folder = Path(tempfile.mkdtemp(prefix="clockd-test-"))
    folder.chmod(0o755)
    host = Host(folder)
    host.write_rules(RULES.format(user=second_user, gpu=host.uuids[3]))
    yield host
    host.close()
    shutil.rmtree(folder)


def as_user(name: str, action: Callable[[], object]) -> Any:
    """What ``action`` returns (plain types), or the error it ends in as ``"Error: message"``, done in a process of another user."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        facts = pwd.getpwnam(name)
        os.setgroups([])
        os.setresgid(facts.pw_gid, facts.pw_gid, facts.pw_gid)
        os.setresuid(facts.pw_uid, facts.pw_uid, facts.pw_uid)
        try:
            result = action()
        except (ClockdError, OSError) as error:
            result = f"{type(error).__name__}: {error}"
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        result = json.load(pipe)
    os.waitpid(pid, 0)
    return result


def stolen(client: ClockdClient, name: str, gpu: str) -> Lease:
    """A lease object around a name that was not given to this connection."""
    return Lease(client, {"lease": name, "gpus": {gpu: {}}, "ttl_s": 60.0})


def test_he_can_neither_see_nor_set_the_gpus_of_the_first(shared_host: Host, second_user: str) -> None:
    host = shared_host
    host.start()
    mine = host.uuids[0]
    with host.client() as client:
        lease = client.lease([mine])
        lease.set_max_clock(mine, 1200)
        lease.set_power_limit(mine, 300.0)

        def attempts() -> list[str]:
            with host.client() as second:
                foreign = stolen(second, lease._name, mine)
                actions: list[Callable[[], object]] = [
                    lambda: second.lease([mine]),
                    lambda: foreign.set_max_clock(mine, 900),
                    lambda: foreign.set_max_clock(mine, None),
                    lambda: foreign.set_power_limit(mine, 400.0),
                    foreign.renew,
                    foreign.release,
                    lambda: second.evict([mine]),
                    lambda: second.restore([mine]),
                    second.restore,
                ]
                refused = []
                for action in actions:
                    try:
                        action()
                        refused.append("granted")
                    except ClockdError as error:
                        refused.append(type(error).__name__)
                return [*refused, json.dumps(second.status()["gpus"])]

        *refused, seen = as_user(second_user, attempts)
        assert refused == ["Denied", *["LeaseEnded"] * 6, "Denied", "Denied"]
        assert json.loads(seen) == [{"uuid": host.uuids[3], "rule": "second", "leased": False}]
        assert (host.locked(0), host.limit_mw(0)) == ((210, 1200), 300_000)
        # Neither the state nor the log, nor the emulated GPUs themselves:
        for path in (host.state / "clockd-state.json", host.audit, host.node.path):
            assert as_user(second_user, lambda path=path: path.read_bytes().hex()).startswith("PermissionError"), path


def test_his_own_gpu_within_its_limits(shared_host: Host, second_user: str) -> None:
    host = shared_host
    host.set_limit_mw(3, 300_000)
    host.start()
    gpu = host.uuids[3]

    def use() -> str:
        with host.client() as second:
            lease = second.lease([gpu])
            lease.set_max_clock(gpu, 900)
            lease.set_power_limit(gpu, 200.0)
            locked, limit_mw = host.locked(3), host.limit_mw(3)
            try:
                lease.set_power_limit(gpu, 350.0)
            except ClockdError as error:
                return f"{locked} {limit_mw} {error}"
        return "raised"

    host.node.path.parent.chmod(0o755)
    host.node.path.chmod(0o666)  # so that this child can look at the emulated GPU
    told = as_user(second_user, use)
    assert told == "(210, 900) 200000 the power limit can be 100 to 300 W: it is never raised above what it was"
    wait_until(lambda: (host.locked(3), host.limit_mw(3)) == ((0, 0), 300_000), "restored")


def test_an_expired_lease(shared_host: Host, second_user: str) -> None:
    host = shared_host
    host.start()
    gpu = host.uuids[3]

    def use() -> str:
        with host.client() as second:
            lease = second.lease([gpu], ttl_s=1.0)
            time.sleep(1.2)
            lease.set_max_clock(gpu, 900)
        return "granted"

    assert as_user(second_user, use) == "LeaseEnded: the lease has ended: it was not renewed for 1 s"
    assert host.locked(3) == (0, 0)


def test_unusable_rules_are_said_without_their_particulars(shared_host: Host, second_user: str) -> None:
    host = shared_host
    host.write_rules("[rule a]\nusers = root\nsecret = 1\n")
    host.start()

    def use() -> str:
        with host.client() as second:
            second.lease([host.uuids[3]])
        return "granted"

    assert as_user(second_user, use) == "Denied: everything is denied: clockd cannot use its rules file"


def test_a_socket_for_a_group(shared_host: Host, second_user: str) -> None:
    host = shared_host
    host.write_rules(f"[clockd]\nsocket_group = {os.getgid()}\n" + RULES.format(user=second_user, gpu=host.uuids[3]))
    host.start()
    told = as_user(second_user, lambda: host.client().status())
    assert told == f"Unavailable: clockd's socket {host.socket} is closed to your user: its socket_group rule names who may connect"
