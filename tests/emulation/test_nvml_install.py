import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from megatron_energy.emulation.install import install, install_from_environment, parse_specification, uninstall
from megatron_energy.errors import UserError
from tests.emulated_gpus import EmulatedNode

ROOT = Path(__file__).parents[2]


def emulate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python -m megatron_energy.emulation``, outside any emulation of the test's own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MEGATRON_ENERGY_EMULATED")}
    command = [sys.executable, "-m", "megatron_energy.emulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=clean | environment, check=False)


@pytest.mark.parametrize(("text", "expected"), [("a100-sxm4-80gb:4", ("a100-sxm4-80gb", 4)), ("A100-SXM4-80GB", ("a100-sxm4-80gb", 8))])
def test_specifications(text: str, expected: tuple[str, int]) -> None:
    assert parse_specification(text) == expected


@pytest.mark.parametrize("text", ["a100-sxm4-80gb:", "a100-sxm4-80gb:x", "a100-sxm4-80gb:-1", "gtx-280:4", ":3"])
def test_bad_specifications_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_specification(text)
    assert "\n" not in str(caught.value)


def test_nothing_is_installed_unless_asked() -> None:
    assert install_from_environment({}) is None
    assert install_from_environment({"MEGATRON_ENERGY_EMULATED": ""}) is None


def test_the_environment_installs(tmp_path: Path) -> None:
    variables = {"MEGATRON_ENERGY_EMULATED": "a100-sxm4-80gb:2", "MEGATRON_ENERGY_EMULATED_DIR": str(tmp_path)}
    try:
        node = install_from_environment(variables)
        assert node is not None and node.path.parent == tmp_path
        assert install_from_environment(variables) is node  # twice is once
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 2
    finally:
        uninstall()


def test_nodes_of_one_host_stay_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = set()
    for name in ("node-a", "node-b"):
        monkeypatch.setenv("SLURMD_NODENAME", name)
        node = install("a100-sxm4-80gb:2", tmp_path)
        uuids |= {node.uuid(0), node.uuid(1)}
        uninstall()
    assert len(uuids) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node-node-a.state", "node-node-b.state"]


def test_nvml_in_use_is_not_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", object())
    with pytest.raises(UserError, match="already initialised"):
        install("a100-sxm4-80gb:2", tmp_path)


def test_another_node_does_not_replace_the_installed_one(emulated: EmulatedNode, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already initialised"):
        install("a100-sxm4-80gb:4", tmp_path / "elsewhere")


def test_a_node_with_other_gpus_is_refused(tmp_path: Path) -> None:
    install("a100-sxm4-80gb:2", tmp_path)
    uninstall()
    with pytest.raises(UserError, match="holds 2 x a100-sxm4-80gb, not 4 x a100-sxm4-80gb"):
        install("a100-sxm4-80gb:4", tmp_path)


def test_after_uninstalling_pynvml_looks_for_a_driver_again(tmp_path: Path) -> None:
    install("a100-sxm4-80gb:2", tmp_path)
    pynvml.nvmlInit()
    uninstall()
    assert pynvml.nvmlLib is None
    uninstall()


PROGRAM = """
import subprocess, sys
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
print(sys.argv[1:], __name__)
if "child" in sys.argv:
    sys.stdout.flush()
    subprocess.run([sys.executable, "-c", "import pynvml; pynvml.nvmlInit(); print('child', pynvml.nvmlDeviceGetCount())"], check=True)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "a program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_any_program_runs_with_emulated_gpus(program: str) -> None:
    done = emulate("--gpu", "h100-sxm5-80gb", "--count", "3", "--load", "0.5", program, "--load", "7", "child")
    assert done.stdout.splitlines() == ["3 NVIDIA H100 80GB HBM3 (emulated) 50", "['--load', '7', 'child'] __main__", "child 3"]
    assert done.returncode == 7


def test_the_environment_is_the_default_and_its_directory_stays(program: str, tmp_path: Path) -> None:
    directory = tmp_path / "nodes"
    variables = {"MEGATRON_ENERGY_EMULATED": "h100-sxm5-80gb:2", "MEGATRON_ENERGY_EMULATED_DIR": str(directory)}
    done = emulate("--load", "0.5", program, "x", "0", **variables)
    assert done.stdout.startswith("2 NVIDIA H100")
    assert len(list(directory.iterdir())) == 1


def test_modules_run_as_well() -> None:
    done = emulate("-m", "json.tool", "--help")
    assert done.returncode == 0
    assert "usage:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "gtx-280", "-m", "json"], "unknown emulated GPU 'gtx-280': choose one of a100-sxm4-80gb, h100-sxm5-80gb"),
        (["absent.py"], "no program absent.py"),
        (["-m", "absent_module"], "no module absent_module"),
        (["-m", "os.absent"], "no module os.absent that can be run"),
        (["-m", "xml"], "no module xml that can be run"),
        (["/"], "no program /"),
        (["--load", "2", "-m", "json"], "--load 2.0"),
        (["--count", "0", "-m", "json"], "give 1 to 64"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], message: str) -> None:
    done = emulate(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
