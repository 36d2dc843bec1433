import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from megatron_energy.cli import clockd
from megatron_energy.clockd import command
from megatron_energy.emulation.install import uninstall
from megatron_energy.errors import UserError
from megatron_energy.gpus import library
from tests.clockd.host import EVERYTHING, Host


@dataclass
class Numbered:
    """A GPU with its two numbers."""

    uuid: str
    index: int
    minor: int

    def minor_number(self) -> int:
        return self.minor


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    found.close()


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    clockd.add_parser(parser.add_subparsers())
    args = parser.parse_args(["clockd", *arguments])
    return int(args.handler(args))


def test_status(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.start()
    with host.client() as client:
        lease = client.lease(host.uuids[:1])
        lease.set_max_clock(host.uuids[0], 1200)
        lease.set_power_limit(host.uuids[0], 300.0)
        assert run("status", "--socket", str(host.socket)) == 0
        first, *gpus = capsys.readouterr().out.splitlines()
        assert "emulated GPUs" in first and "(operator)" in first
        assert gpus[0].startswith(f"{host.uuids[0]}  process {client.hello['pid']} of user")
        assert "at most 1200 MHz, 300 W (found: 400 W)" in gpus[0]
        assert gpus[1] == f"{host.uuids[1]}  free"
        assert run("status", "--json", "--socket", str(host.socket)) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["emulated"] is True and report["gpus"][0]["lease"]["max_mhz"] == 1200


def test_release_and_restore(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.start()
    with host.client() as client:
        client.lease(host.uuids[:1]).set_max_clock(host.uuids[0], 1200)
        assert run("release", "--gpu", host.uuids[0], "--socket", str(host.socket)) == 0
        assert host.locked() == (0, 0)
        assert run("release", "--socket", str(host.socket)) == 0
        client.lease(host.uuids[:1]).set_max_clock(host.uuids[0], 1200)
        assert run("restore", *host.files) == 0
        assert host.locked() == (0, 0)
        assert run("restore", *host.files) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{host.uuids[0]} released",
        "your user holds no GPU",
        f"{host.uuids[0]} restored",
        "nothing to restore",
    ]
    with pytest.raises(UserError, match="your user holds none of these GPUs"):
        run("release", "--gpu", host.uuids[1], "--socket", str(host.socket))


def test_gpus_may_be_named_by_slurms_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command.uuids_of(None) is None
    assert command.uuids_of(["GPU-a,GPU-b", "GPU-c"]) == ("GPU-a", "GPU-b", "GPU-c")  # NVML is not needed
    gpus = {name: Numbered(name, index, index) for index, name in enumerate(("GPU-a", "GPU-b"))}
    monkeypatch.setattr(command, "all_hardware", lambda _silent: gpus)
    assert command.uuids_of(["1,0", "GPU-c"]) == ("GPU-b", "GPU-a", "GPU-c")
    with pytest.raises(UserError, match="no GPU 2 on this host"):
        command.uuids_of(["1,2"])
    gpus["GPU-a"].minor = 3
    with pytest.raises(UserError, match="differ on this host: name GPUs by UUID"):
        command.uuids_of(["1"])


def test_rules_are_checked_without_running(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--check", *host.files) == 0
    assert capsys.readouterr().out == f"{host.rules}: 1 rules, usable\n"
    host.write_rules(EVERYTHING + "clock_mhz = 1-2\n")
    with pytest.raises(UserError, match="unknown key clock_mhz"):
        run("run", "--check", *host.files)


def test_a_trial_on_emulated_gpus(host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in host.environment.items():
        if name.startswith("MEGATRON_ENERGY_EMULATED"):
            monkeypatch.setenv(name, value)
    try:
        assert run("restore", "--gpu", "1", *host.files) == 0
        assert host.node.gpu(1).locks_set == 1
    finally:
        uninstall()
    assert f"{host.uuids[1]} restored" in capsys.readouterr().out
    monkeypatch.delenv("MEGATRON_ENERGY_EMULATED")
    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    monkeypatch.setattr(library, "_initialised", None)
    with pytest.raises(UserError, match="clockd runs where the GPUs are"):
        run("run", *host.files)


def no_library() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def test_no_daemon(host: Host) -> None:
    with pytest.raises(UserError, match=r"no clockd at .*: start it"):
        run("status", "--socket", str(host.socket))


def test_a_gpu_that_is_not_restored_is_said(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    host.environment["MEGATRON_ENERGY_EMULATED_FAULTS"] = json.dumps(
        [{"fault": "fail", "function": "nvmlDeviceResetGpuLockedClocks", "error": "TIMEOUT"}]
    )
    host.start()
    with host.client() as client:
        client.lease(host.uuids[:1]).set_max_clock(host.uuids[0], 1200)
        assert run("restore", *host.files) == 1
    assert capsys.readouterr().err.startswith(f"{host.uuids[0]} NOT restored: nvmlDeviceResetGpuLockedClocks")
    run("status", "--socket", str(host.socket))
    assert "; NOT restored after" in capsys.readouterr().out
