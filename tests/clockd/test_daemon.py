"""clockd as a process, and the many ways in which it or its clients can end."""

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_energy.clockd.daemon import rules_for
from megatron_energy.clockd.errors import Busy, ConnectionLost, Denied, LeaseEnded
from megatron_energy.clockd.rules import Range
from megatron_energy.emulation.state import Fault
from tests.clockd.fake_devices import FakeDevice
from tests.clockd.host import EVERYTHING, Host, hold, kill_group, wait_until

AS_FOUND = ((0, 0), 300_000)


def state(host: Host, index: int = 0) -> tuple[tuple[int, int], int]:
    return host.locked(index), host.limit_mw(index)


def test_modes_of_socket_and_state(host: Host) -> None:
    host.start()
    assert stat.S_IMODE(host.socket.stat().st_mode) == 0o666
    assert stat.S_IMODE(host.state.stat().st_mode) == 0o700
    with host.client() as client:
        client.lease(host.uuids[:1]).set_max_clock(host.uuids[0], 1200)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [*host.state.iterdir(), host.audit]}
    assert modes == {"clockd-lock": 0o600, "clockd-state.json": 0o600, "audit.jsonl": 0o600}


def test_a_socket_group_closes_the_socket_to_others(new_host: Callable[..., Host]) -> None:
    host = new_host(f"[clockd]\nsocket_group = {os.getgid()}\n" + EVERYTHING)
    host.start()
    facts = host.socket.stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_gid) == (0o660, os.getgid())


def test_a_lease_from_begin_to_end(host: Host) -> None:
    host.set_limit_mw(0, 300_000)
    host.start()
    gpu = host.uuids[0]
    with host.client() as client:
        assert client.hello["emulated"] is True
        lease = client.lease([gpu])
        lease.set_max_clock(gpu, 1200)
        assert host.locked(0) == (210, 1200)  # an idle GPU may fall to its lowest clock
        lease.set_power_limit(gpu, 250.0)
        assert host.limit_mw(0) == 250_000
        saved = json.loads((host.state / "clockd-state.json").read_text())["gpus"]
        assert saved == {gpu: {"clocks": True, "power_limit_mw": 300_000, "own_limits_mw": [250_000]}}
        assert lease.release() == {}
        assert state(host) == AS_FOUND
        with pytest.raises(LeaseEnded, match="it was released"):
            lease.set_max_clock(gpu, 1200)
    assert json.loads((host.state / "clockd-state.json").read_text())["gpus"] == {}
    assert [event["why"] for event in host.events("lease-ended")] == ["it was released"]


def test_a_killed_holder(host: Host) -> None:
    host.set_limit_mw(0, 300_000)
    host.start()
    holder = hold(host, host.uuids[0])
    assert state(host) == ((210, 1200), 250_000)
    holder.kill()
    wait_until(lambda: state(host) == AS_FOUND, "restored")


def test_a_forked_child_that_keeps_the_socket_does_not_delay_the_restore(host: Host) -> None:
    host.set_limit_mw(0, 300_000)
    host.start()
    holder = hold(host, host.uuids[0], fork=True)
    holder.kill()  # the child sleeps for a minute
    wait_until(lambda: state(host) == AS_FOUND, "restored", longest_s=10.0)
    assert host.events("lease-ended")[-1]["why"] == "its process has ended"
    kill_group(holder)


def test_a_lease_that_is_not_renewed(host: Host) -> None:
    host.start()
    gpu = host.uuids[0]
    with host.client() as client:
        lease = client.lease([gpu], ttl_s=1.0)
        lease.set_max_clock(gpu, 1200)
        wait_until(lambda: host.locked() == (0, 0), "restored")
        with pytest.raises(LeaseEnded, match="not renewed for 1 s"):
            lease.renew()
        with pytest.raises(LeaseEnded, match="not renewed for 1 s"):
            lease.set_max_clock(gpu, 1200)
    assert host.locked() == (0, 0)


def test_sigterm_restores_before_clockd_exits(host: Host) -> None:
    host.set_limit_mw(0, 300_000)
    daemon = host.start()
    with host.client() as client:
        lease = client.lease(host.uuids[:2])
        lease.set_max_clock(host.uuids[0], 1200)
        lease.set_power_limit(host.uuids[0], 200.0)
        lease.set_max_clock(host.uuids[1], 900)
        daemon.terminate()
        assert daemon.wait(20) == 0
        assert (state(host), host.locked(1)) == (AS_FOUND, (0, 0))
        assert not host.socket.exists()
        with pytest.raises(ConnectionLost):
            lease.renew()
        with pytest.raises(ConnectionLost, match="connect anew"):  # never silently anew
            lease.renew()


def test_a_killed_clockd_is_made_up_for_by_the_next(host: Host) -> None:
    host.set_limit_mw(0, 300_000)
    daemon = host.start()
    holder = hold(host, host.uuids[0])
    daemon.kill()
    daemon.wait()
    assert state(host) == ((210, 1200), 250_000)
    host.start()  # the holder lives, but its lease has gone with the clockd it had it from
    assert state(host) == AS_FOUND
    assert host.events("found-unrestored")[-1]["gpus"] == host.uuids[:1]
    holder.kill()


def test_both_killed(host: Host) -> None:
    host.set_limit_mw(0, 300_000)
    daemon = host.start()
    holder = hold(host, host.uuids[0], fork=True)
    daemon.kill()
    holder.kill()
    daemon.wait()
    host.start()
    assert state(host) == AS_FOUND
    kill_group(holder)


def test_restoring_without_a_daemon(host: Host) -> None:
    host.set_limit_mw(0, 300_000)
    daemon = host.start()
    hold(host, host.uuids[0])
    daemon.kill()
    daemon.wait()
    restore = host.python("-m", "megatron_energy.clockd", "restore", *host.files, stdout=subprocess.PIPE)
    assert restore.communicate()[0] == f"{host.uuids[0]} restored\n"
    assert (restore.returncode, state(host)) == (0, AS_FOUND)


def test_a_second_clockd_is_refused(host: Host) -> None:
    host.start()
    second = host.python("-m", "megatron_energy.clockd", "run", *host.files, stderr=subprocess.PIPE)
    assert second.communicate()[1] == f"error: clockd is already running with the state directory {host.state}\n"
    assert second.returncode == 2
    with host.client():
        pass  # the first one still has its socket


def test_the_sites_clocks_are_what_is_restored(new_host: Callable[..., Host]) -> None:
    host = new_host("[site]\nclocks_mhz = 300-1200\n" + EVERYTHING)
    daemon = host.start()
    gpu = host.uuids[0]
    with host.client() as client:
        lease = client.lease([gpu])
        assert lease.gpus[gpu]["clocks_mhz"] == [300, 1200]
        with pytest.raises(Denied, match="300 to 1200 MHz"):
            lease.set_max_clock(gpu, 1410)
        lease.set_max_clock(gpu, 900)
        assert host.locked() == (300, 900)
        # Even a clockd that can no longer read its rules knows it after a kill.
        daemon.kill()
        daemon.wait()
    host.write_rules("[site\n")
    host.start()
    assert host.locked() == (300, 1200)


def test_a_sites_range_that_a_gpu_does_not_have_cannot_be_used(tmp_path: Path) -> None:
    """It could not be restored to it, ever."""
    path = tmp_path / "clockd.ini"
    path.write_text("[site]\nclocks_mhz = 1500-3000\n" + EVERYTHING)
    path.chmod(0o644)
    device = FakeDevice()
    rules = rules_for(path, {"GPU-a": device}, Range(300, 1200))
    assert rules.unusable == f"{path}: [site] clocks_mhz: GPU-a has no clock in it, its clocks are 210 to 1410 MHz"
    assert (rules.rules, rules.site_clocks_mhz) == ((), Range(300, 1200))
    assert rules_for(path, {"GPU-a": device}, Range(1500, 3000)).site_clocks_mhz is None  # the last known one is no better
    path.write_text("[site]\nclocks_mhz = 1400-3000\n" + EVERYTHING)
    assert rules_for(path, {"GPU-a": device}, None).site_clocks_mhz == Range(1400, 3000)


def test_a_socket_in_a_folder_of_a_folder_that_is_not_there_yet(host: Host) -> None:
    host.socket = host.folder / "new" / "folder" / "clockd.sock"
    host.start()
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in list(host.socket.parents)[:2]] == [0o755, 0o755]


def test_unusable_rules_deny_everything_and_say_so(new_host: Callable[..., Host]) -> None:
    host = new_host("[rule everybody]\nusers = *\ngpus = all\nclock_mhz = 210-1410\n")
    host.start()
    with host.client() as client:
        assert "[rule everybody] has an unknown key clock_mhz" in client.hello["rules"]
        with pytest.raises(Denied, match=r"everything is denied: .* unknown key clock_mhz"):
            client.lease(host.uuids[:1])


def test_a_reload_ends_what_the_rules_no_longer_grant(host: Host) -> None:
    daemon = host.start()
    first, second = host.uuids[:2]
    with host.client() as client:
        kept, ended = client.lease([first]), client.lease([second])
        ended.set_max_clock(second, 900)
        host.write_rules(EVERYTHING.replace("gpus = all", f"gpus = {first}"))
        daemon.send_signal(signal.SIGHUP)
        wait_until(lambda: host.locked(1) == (0, 0), "restored")
        kept.renew()
        with pytest.raises(LeaseEnded, match="no rule lets user"):
            ended.renew()
        host.rules.chmod(0o666)
        daemon.send_signal(signal.SIGHUP)
        wait_until(lambda: client.hello["operator"] and client.request("hello")["rules"], "the rules are refused")
        with pytest.raises(LeaseEnded, match="cannot use its rules file"):
            kept.renew()
        with pytest.raises(Denied, match="can be written by others"):
            client.lease([first])


def test_a_gpu_that_cannot_be_restored_is_tried_again(host: Host) -> None:
    """NVML fails three times: the operator sees it, nobody gets the GPU meanwhile, and in the end it is restored."""
    host.environment["MEGATRON_ENERGY_EMULATED_FAULTS"] = json.dumps(
        [{"fault": "fail", "function": "nvmlDeviceResetGpuLockedClocks", "error": "TIMEOUT", "times": 3}]
    )
    host.start()
    gpu = host.uuids[0]
    with host.client() as client:
        lease = client.lease([gpu])
        lease.set_max_clock(gpu, 900)
        assert "nvmlDeviceResetGpuLockedClocks" in lease.release()[gpu]
        with pytest.raises(Busy, match="could not be restored yet: nvmlDeviceResetGpuLockedClocks"):
            client.lease([gpu])
        (trouble,) = [entry["unrestored"] for entry in client.status()["gpus"] if entry["uuid"] == gpu]
        assert trouble["attempts"] >= 1
        wait_until(lambda: host.locked() == (0, 0), "restored")
        wait_until(lambda: "unrestored" not in client.status()["gpus"][0], "no more trouble")
        client.lease([gpu])
    assert host.events("restored")[0]["attempts"] == 4


def test_a_gpu_that_fell_off_the_bus_keeps_no_other_from_being_restored_and_lent(host: Host) -> None:
    daemon = host.start()
    with host.client() as client:
        lease = client.lease(host.uuids[:2])
        for uuid in host.uuids[:2]:
            lease.set_max_clock(uuid, 1200)
        daemon.kill()
        daemon.wait()
    with host.node.edit(1) as record:
        record.faults = Fault.LOST
    host.start()
    assert host.locked(0) == (0, 0)
    with host.client() as client:
        client.lease([host.uuids[0]]).set_max_clock(host.uuids[0], 900)
        with pytest.raises(Denied):
            client.lease([host.uuids[1]])
        unrestored = client.restore()["unrestored"]
    assert unrestored == {host.uuids[1]: "this host has no such GPU any more, or it did not answer when clockd started"}
    (*_, started) = host.events("started")
    assert list(started["silent"]) == ["1"] and "GPU is lost" in started["silent"]["1"]
