"""Who changes the clocks of a GPU: clockd, the driver with a watchdog, or nobody, with the reason."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from megatron_energy.emulation.fault_rules import Fail
from megatron_energy.emulation.faults import inject
from megatron_energy.emulation.install import install, uninstall
from megatron_energy.emulation.nvml import CONTROL_VARIABLE
from megatron_energy.gpus.errors import NoPermission
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.session.actuation import Hold, outlook, take
from tests.clockd.host import EVERYTHING, GPU, Host, wait_until


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host whose emulated GPUs this process and its watchdogs see; clockd does not run yet."""
    made = Host(tmp_path, gpus=2)
    for name in ("PYTHONPATH", "MEGATRON_ENERGY_EMULATED", "MEGATRON_ENERGY_EMULATED_DIR"):
        monkeypatch.setenv(name, made.environment[name])
    monkeypatch.setenv("MEGATRON_ENERGY_CLOCKD", str(made.socket))
    install(f"{GPU}:2", tmp_path / "emulated")
    pynvml.nvmlInit()
    yield made
    uninstall()
    made.close()


def taken(host: Host, lost: list[str] | None = None) -> Hold:
    return take(NvmlGpu(host.uuids[0]), [].append if lost is None else lost.append)


def test_clockd_first(host: Host) -> None:
    host.start()
    assert (outlook().possible, outlook().reason) == (True, "clockd runs here")
    hold = taken(host)
    assert (hold.way.kind, hold.way.reason, hold.way.clocks_mhz) == ("clockd", "", (210, 1410))
    assert hold.actuator is not None
    hold.actuator.set_max_clock(1200)
    assert host.locked(0) == (210, 1200) and host.locked(1) == (0, 0)
    second = taken(host)
    assert second.actuator is None and "clockd" not in second.way.kind, "where clockd refuses, nobody goes around it"
    assert second.way.reason.startswith(host.uuids[0])
    hold.close()
    hold.close()
    assert host.locked(0) == (0, 0)
    assert [event["why"] for event in host.events("lease-ended")] == ["it was released"]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("[rule nobody]\nusers = 12345\ngpus = all\nclocks_mhz = 210-1410\n", "no rule"),
        ("[rule power]\nusers = *\ngpus = all\npower_w = 100-400\n", "clockd's rules give this user no clocks of GPU-"),
        (EVERYTHING.replace("210-1410", "210-1200"), "clocks up to 1200 MHz only, where a plan needs 1410 of GPU-"),
    ],
)
def test_what_clockds_rules_do_not_allow_is_not_tried_around_them(host: Host, rules: str, reason: str) -> None:
    host.write_rules(rules)
    host.start()
    hold = taken(host)
    assert hold.actuator is None and hold.way.kind == "none"
    assert reason in hold.way.reason
    assert host.gpu(0).locks_set == 0


def test_a_gpu_that_does_not_answer_is_given_back_to_clockd(host: Host) -> None:
    host.start()
    with inject(Fail("nvmlDeviceGetSupportedGraphicsClocks", gpu=0, error="GPU_IS_LOST")):
        hold = taken(host)
    assert hold.actuator is None and hold.way.kind == "none" and "nvmlDeviceGetSupported" in hold.way.reason
    assert taken(host).way.kind == "clockd"


def test_a_lost_clockd_is_told(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_energy.session.actuation.TTL_S", 1.0)
    monkeypatch.setattr("megatron_energy.clockd.client.RENEW_AFTER", 0.0)
    lost: list[str] = []
    daemon = host.start()
    hold = taken(host, lost)
    daemon.kill()
    wait_until(lambda: lost, "told")
    assert lost == ["clockd closed the connection; its clocks have been restored, or will be when clockd is back"]
    hold.close()


def test_the_driver_with_a_watchdog_where_there_is_no_clockd(host: Host) -> None:
    assert outlook().possible
    hold = taken(host)
    assert hold.way.kind == "nvml" and hold.actuator is not None
    hold.actuator.set_max_clock(1200)
    assert host.locked(0) == (210, 1200)
    hold.close()
    assert host.locked(0) == (0, 0)


def test_without_its_watchdog_no_clock_is_set(host: Host) -> None:
    hold = taken(host)
    assert hold.actuator is not None
    hold.actuator.set_max_clock(1200)
    os.kill(hold.actuator._watchdog.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    wait_until(lambda: not hold.actuator._watchdog.alive, "noticed")  # type: ignore[union-attr]
    with pytest.raises(NoPermission, match="the watchdog that restores clocks after a crash has ended"):
        hold.actuator.set_max_clock(900)
    hold.actuator.release()
    assert host.locked(0) == (0, 0)
    hold.close()


def test_nobody_where_neither_is_there(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONTROL_VARIABLE, "no")
    hold = taken(host)
    assert (hold.way.kind, hold.actuator) == ("none", None)
    assert hold.way.reason == (
        f"no clockd at {host.socket}: start it (docs/clockd.md), or mount its socket into the container; emulated: control is not allowed"
    )
    assert outlook().reason == hold.way.reason
    hold.close()


def test_a_gpu_split_by_mig_is_left_alone(host: Host) -> None:
    with host.node.edit(0) as record:
        record.mig_instances = 2
    host.start()
    assert taken(host).way.reason == "the GPU is split by MIG: its clock is shared by all instances"
