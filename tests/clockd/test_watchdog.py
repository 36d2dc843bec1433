"""The watchdog of a trainer that sets clocks itself."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_energy.clockd.watchdog import Watchdog, WatchdogError
from tests.clockd.host import Host, kill_group, wait_until

TRAINER = """
import os, sys, time
from megatron_energy.clockd.watchdog import Watchdog
from megatron_energy.gpus.actuators import NvmlActuator
from megatron_energy.gpus.nvml import NvmlGpu
gpu = NvmlGpu(sys.argv[1])
watchdog = Watchdog()
watchdog.guard(gpu.uuid, power=True)
NvmlActuator(gpu).set_max_clock(1200)
gpu.set_power_limit_w(250.0)
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(60)      # keeps the pipe open
print(watchdog.pid, flush=True)
if sys.argv[2] == "end":
    sys.exit(3)
time.sleep(60)
"""


@pytest.fixture
def guarded(host: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host whose emulated GPUs the watchdogs of this process see as well. GPU 0 has a limit of 300 W."""
    for name in ("PYTHONPATH", "MEGATRON_ENERGY_EMULATED", "MEGATRON_ENERGY_EMULATED_DIR"):
        monkeypatch.setenv(name, host.environment[name])
    host.set_limit_mw(0, 300_000)
    yield host


def trainer(host: Host, what: str = "") -> tuple["subprocess.Popen[str]", int]:
    process = host.python("-c", TRAINER, host.uuids[0], what, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def changed(host: Host) -> bool:
    return (host.locked(), host.limit_mw()) == ((210, 1200), 250_000)


def restored(host: Host) -> bool:
    return (host.locked(), host.limit_mw()) == ((0, 0), 300_000)


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits to be collected by whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_the_end_of_the_trainer(guarded: Host) -> None:
    process, _ = trainer(guarded, "end")
    assert process.wait(20) == 3
    wait_until(lambda: restored(guarded), "restored")


def test_a_killed_trainer(guarded: Host) -> None:
    process, watchdog = trainer(guarded)
    assert changed(guarded)
    process.kill()
    wait_until(lambda: restored(guarded), "restored")
    wait_until(lambda: ended(watchdog), "the watchdog has ended as well")


def test_a_killed_process_group(guarded: Host) -> None:
    process, _ = trainer(guarded)
    kill_group(process)
    wait_until(lambda: restored(guarded), "restored")


def test_a_forked_child_that_keeps_the_pipe_does_not_delay_the_restore(guarded: Host) -> None:
    process, _ = trainer(guarded, "fork")
    process.kill()
    wait_until(lambda: restored(guarded), "restored", longest_s=10.0)
    kill_group(process)


def test_closing_it_restores(guarded: Host) -> None:
    with Watchdog() as watchdog:
        watchdog.guard(guarded.uuids[0], power=True)
        watchdog.guard(guarded.uuids[0], power=True)  # twice is no harm
        with guarded.node.edit(0) as record:
            record.locked_min_mhz, record.locked_max_mhz, record.power_limit_mw = 210, 900, 200_000
        assert watchdog.alive
    assert restored(guarded)


def test_the_sites_range(guarded: Host) -> None:
    with Watchdog((300, 1200)) as watchdog:
        watchdog.guard(guarded.uuids[0])
    assert guarded.locked() == (300, 1200)


def test_a_limit_that_was_raised_meanwhile_stands(guarded: Host) -> None:
    with Watchdog() as watchdog:
        watchdog.guard(guarded.uuids[0], power=True)
        guarded.set_limit_mw(0, 350_000)
    assert guarded.limit_mw() == 350_000


def test_files_of_the_users_with_the_names_of_modules(guarded: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer may be started in a folder that others write to; the watchdog has its privileges."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("json", "select", "pynvml", "megatron_energy"):
        (folder / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(folder)
    with Watchdog() as watchdog:
        watchdog.guard(guarded.uuids[0])
        assert watchdog.alive


def test_a_gpu_that_is_not_there(guarded: Host) -> None:
    with Watchdog() as watchdog:
        with pytest.raises(WatchdogError, match="nvmlDeviceGetHandleByUUID"):
            watchdog.guard("GPU-none")
        watchdog.guard(guarded.uuids[0])


def test_sigterm_restores_at_once_and_ends_clock_control(guarded: Host) -> None:
    watchdog = Watchdog()
    watchdog.guard(guarded.uuids[0])
    with guarded.node.edit(0) as record:
        record.locked_min_mhz, record.locked_max_mhz = 210, 900
    os.kill(watchdog.pid, signal.SIGTERM)
    wait_until(lambda: not watchdog.alive, "it says so")
    assert guarded.locked() == (0, 0)
    with pytest.raises(WatchdogError, match="got SIGTERM and has restored the GPUs: set no more clocks"):
        watchdog.guard(guarded.uuids[1])
    with guarded.node.edit(0) as record:  # the trainer was about to set a clock when the signal came
        record.locked_min_mhz, record.locked_max_mhz = 210, 900
    watchdog.close()
    assert guarded.locked() == (0, 0)


def test_a_killed_watchdog_is_noticed(guarded: Host) -> None:
    watchdog = Watchdog()
    watchdog.guard(guarded.uuids[0])
    os.kill(watchdog.pid, signal.SIGKILL)
    wait_until(lambda: not watchdog.alive, "noticed")
    with pytest.raises(WatchdogError, match="the watchdog has ended"):
        watchdog.guard(guarded.uuids[0])
    with pytest.raises(WatchdogError, match="killed by signal 9: restore the GPUs"):
        watchdog.close()


def test_a_forked_child_cannot_use_it(guarded: Host) -> None:
    with Watchdog() as watchdog:
        pid = os.fork()
        if pid == 0:
            try:
                watchdog.guard(guarded.uuids[0])
            except WatchdogError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert watchdog.alive


def test_without_a_driver_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATRON_ENERGY_EMULATED", raising=False)
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("there is a driver here")
    with pytest.raises(WatchdogError, match="no NVIDIA driver here"):
        Watchdog()
