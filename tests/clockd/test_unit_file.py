"""The systemd unit: systemd understands it, it is closed as far as the driver lets it be, and clockd runs with so little."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_energy.clockd import paths
from tests.clockd.host import Host, hold, wait_until
from tests.source_tree import ROOT

UNIT = ROOT / "scripts" / "systemd" / "megatron-energy-clockd.service"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with this interpreter in it."""
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/usr/bin/python3", sys.executable))
    return path


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("needs systemd-analyze")
    return found


def test_systemd_understands_it(unit: Path, analyze: str) -> None:
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_closed(unit: Path, analyze: str) -> None:
    version = subprocess.run([analyze, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.split()[1]) < 250:
        pytest.skip("systemd-analyze security needs --offline (systemd 250)")
    done = subprocess.run([analyze, "security", "--offline=true", "--threshold=20", str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout  # an exposure of at most 2.0 of 10; CAP_SYS_ADMIN and the GPUs make up most of it


def test_the_audit_log_is_rotated() -> None:
    text = (UNIT.parent / f"{UNIT.stem}.logrotate").read_text()
    assert re.findall(r"^(/\S+) \{$", text, re.MULTILINE) == [str(paths.AUDIT_LOG)]
    assert "nocreate" in text and f"systemctl reload {UNIT.stem}" in text  # clockd makes the new file, with its own mode


def test_names_can_be_looked_up_when_it_starts() -> None:
    assert "nss-user-lookup.target" in re.findall(r"^After=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_its_only_capability_is_the_drivers() -> None:
    assert re.findall(r"^(?:CapabilityBoundingSet|AmbientCapabilities)=(.*)$", UNIT.read_text(), re.MULTILINE) == ["CAP_SYS_ADMIN"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_clockd_needs_no_other_capability(host: Host, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec setpriv --bounding-set -all,+sys_admin --inh-caps -all --no-new-privs {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    daemon = host.start(interpreter=str(wrapper))
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    assert re.search(r"^CapEff:\s*0*200000$", status, re.MULTILINE)  # CAP_SYS_ADMIN is bit 21
    holder = hold(host, host.uuids[0])
    holder.kill()
    wait_until(lambda: (host.locked(), host.limit_mw()) == ((0, 0), 400_000), "restored")
    daemon.terminate()
    assert daemon.wait(20) == 0
