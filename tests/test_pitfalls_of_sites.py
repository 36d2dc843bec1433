"""The pitfalls of tests/test_pitfalls.py that concern sites: limits that somebody set before us, and Slurm."""

import itertools
import re
from pathlib import Path

import pytest

from megatron_energy.clockd.controls import Controls
from megatron_energy.clockd.hardware import Hardware
from megatron_energy.clockd.messages import Refusal
from megatron_energy.clockd.saved import Memory
from megatron_energy.gpus.nvml import NvmlGpu
from tests.emulated_gpus import emulated_node
from tests.source_tree import ROOT, package_files


def test_pitfall_18_a_lowered_limit_is_restored_to_what_was_found(tmp_path: Path) -> None:
    """Seen in club-3090 PR #699, ansible-slurm-appliance #975: factory settings are not what was there before."""
    with emulated_node(tmp_path) as node:
        uuid = node.gpus[0].uuid
        gpu = Hardware(NvmlGpu(uuid))
        gpu.set_power_limit_mw(250_000)
        controls = Controls({uuid: gpu}, Memory(), None, lambda _event, **_facts: None, node.clock)
        controls.set_power(uuid, 200_000)
        assert gpu.power_limit_mw() == 200_000
        with pytest.raises(Refusal, match="never raised above what it was"):
            controls.set_power(uuid, 400_000)
        assert controls.restore(uuid) and gpu.power_limit_mw() == 250_000


def test_pitfall_20_containers_get_their_options_from_srun() -> None:
    """Seen in pyxis #111: srun does not take over the options for containers that sbatch was given."""
    lines = (ROOT / "scripts" / "slurm" / "container.sbatch").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if line.startswith("#SBATCH") and "container" in line]
    srun = next(number for number, line in enumerate(lines) if line.startswith("srun "))
    command = list(itertools.takewhile(lambda line: line.endswith("\\"), lines[srun:]))
    assert any("--container-image=" in line for line in command) and any("--container-mounts=" in line for line in command)


def test_pitfall_20_no_slurm_command_in_prologs_and_in_clockd() -> None:
    """Seen in nebius PR #265: scontrol in a prolog hangs."""
    scripts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "scripts" / "slurm" / "hooks").glob("*.sh")}
    assert {"prolog.sh", "epilog.sh", "task_prolog.sh"} <= set(scripts)
    scripts["page"] = "\n".join(re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "clockd.md").read_text(), re.MULTILINE | re.DOTALL))
    commands = {
        name: re.findall(r"^[^#\n]*\b(?:scontrol|squeue|scancel|sacct|sinfo)\b", text, re.MULTILINE) for name, text in scripts.items()
    }
    assert not any(commands.values()), commands
    started = [path.name for path in package_files() if path.parent.name == "clockd" and "subprocess" in path.read_text(encoding="utf-8")]
    assert started == ["watchdog.py"]  # which starts Python; the daemon starts nothing
