"""The device check on emulated GPUs: that it runs, tells mistakes, and could not change a GPU if it tried. Its figures need a real one."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_energy.emulation.state import NodeState, state_path
from tests.megatron.launching import needs_megatron
from tests.tools.loading import TOOLS, load_tool

FILES = sorted(TOOLS.glob("device_*.py"))


def check(folder: Path, *arguments: str, gpus: int = 1, program: str = "device_check.py") -> subprocess.CompletedProcess[str]:
    """Run the tool, or a program that uses it, on emulated GPUs whose state lies in ``folder``; with 0 GPUs on this host."""
    program_path = str(TOOLS / program)
    emulation = ["-m", "megatron_energy.emulation", "--gpu", "a100-sxm4-80gb", "--count", str(gpus)] if gpus else []
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEGATRON_ENERGY_EMULATED")}
    return subprocess.run(
        [sys.executable, *emulation, program_path, *arguments],
        cwd=TOOLS.parent,
        env={**clean, "MEGATRON_ENERGY_EMULATED_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def untouched(folder: Path) -> None:
    node = NodeState(state_path(folder))
    record = node.gpu(0)
    assert (record.locks_set, record.power_limit_mw, record.persistence) == (0, 0, 1)
    node.close()


@needs_megatron
def test_it_runs_without_cuda_and_says_what_its_figures_are(tmp_path: Path) -> None:
    output = tmp_path / "check.json"
    done = check(tmp_path, "--cpu", "--iterations", "5", "--seconds", "1", "--json", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NVML's figures are emulated; times are those of a tiny model on the CPU and mean nothing." in done.stdout.replace(
        "NVML's", "NVML's"
    )
    found = json.loads(output.read_text())
    assert (found["emulated"], found["cpu"]) == (True, True)
    checks = {(one["part"], one["name"]): one for one in found["checks"]}
    assert checks["NVML", "SM clocks, MHz"]["value"] == "210 to 1410, 81 of them"
    assert checks["sensors, idle", "counter against power, %"]["ok"] is True
    for run in ("hooks", "hooks, an event per operation", "hooks, controller (dry run)", "hooks again"):
        assert checks["training", f"{run}: losses"]["value"] == "identical"
    assert checks["controller", "requests settled"]["value"] == 5 * 3 * 4  # iterations x microbatches x begin and end of two operations
    assert checks["operations", "forward, median ms on the GPU"]["note"].startswith("12 of them")  # 4 iterations x 3 microbatches
    assert checks["read-only", "functions refused"]["ok"] is True
    assert not [one for one in found["checks"] if one["ok"] is False]
    untouched(tmp_path)


def test_without_a_driver_it_says_what_to_do(tmp_path: Path) -> None:
    done = check(tmp_path, gpus=0)
    if done.returncode != 2:
        pytest.skip("this host has a GPU")
    assert done.stderr.startswith("error: no NVIDIA driver here: run this on a GPU host")
    assert done.stderr.count("\n") == 1


@needs_megatron
def test_without_cuda_it_says_what_to_do(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("error: torch sees no CUDA device")


@pytest.mark.parametrize(("arguments", "advice"), [(["--iterations", "2"], "give 5 or more"), (["--seconds", "0"], "give 1 to 20")])
def test_bad_options_are_told_in_one_line(arguments: list[str], advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_tool("device_check").main(arguments) == 2
    error = capsys.readouterr().err
    assert advice in error and error.count("\n") == 1


def test_nothing_in_it_names_a_function_that_changes_a_gpu() -> None:
    changing = ("set_sm_clock_range", "reset_sm_clocks", "set_power_limit_w", "request_sm_clock", "NvmlActuator", "LatencyProbe")
    assert len(FILES) == 5
    for file in FILES:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & set(changing), file
        assert not [name for name in names if name.startswith(("nvmlDeviceSet", "nvmlDeviceReset"))], file


TRYING = """
import sys
sys.path[:0] = [{tools!r}, {root!r}]
import device_check
from megatron_energy.gpus.device import request_sm_clock
from megatron_energy.gpus.errors import NoPermission

def collect(args, gpu, guard):
    for change in (lambda: request_sm_clock(gpu, 900), gpu.reset_sm_clocks, lambda: gpu.set_power_limit_w(200.0)):
        try:
            change()
        except NoPermission:
            print("refused")
    return [device_check.Finding("read-only", "functions refused", len(guard.refused), ok=not guard.refused)]

device_check.collect = collect
device_check.prepare_torch = lambda cpu: None  # what is tried needs NVML alone
sys.exit(device_check.main(["--cpu"]))
"""


def test_an_attempt_to_change_something_is_refused_and_fails_the_check(tmp_path: Path) -> None:
    program = tmp_path / "trying.py"
    program.write_text(TRYING.format(tools=str(TOOLS), root=str(TOOLS.parent)))
    done = check(tmp_path, program=str(program))
    assert done.stdout.count("refused\n") == 3
    assert "| read-only | functions refused | 3 | **FAILED** |" in done.stdout
    assert done.returncode == 1
    untouched(tmp_path)


def test_findings_are_a_table_and_plain_types() -> None:
    findings = load_tool("device_findings")
    rows = [findings.Finding("a", "b", 1.23456), findings.Finding("a", "d", "x|y", ok=False, note="n")]
    assert findings.as_table(rows).splitlines()[2:] == ["| a | b | 1.235 |  |  |", "| a | d | x/y | **FAILED** | n |"]
    assert rows[1].plain() == {"part": "a", "name": "d", "value": "x|y", "ok": False, "note": "n"}
