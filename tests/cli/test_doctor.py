import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from megatron_energy.cli import doctor, doctor_gpus, doctor_host, doctor_report
from megatron_energy.clockd.hardware import all_hardware
from megatron_energy.emulation.fault_rules import Fail
from megatron_energy.emulation.faults import inject
from megatron_energy.emulation.state import Fault
from megatron_energy.errors import UserError
from megatron_energy.gpus import library
from megatron_energy.gpus.preflight import Ability, preflight
from megatron_energy.gpus.visible import all_gpus
from megatron_energy.session.actuation import CLOCKD_RUNS
from tests.emulated_gpus import EmulatedNode, emulated_node


@pytest.fixture
def emulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedNode]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with emulated_node(tmp_path) as node:
        yield node


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_parser(parser.add_subparsers())
    args = parser.parse_args(["doctor", *arguments])
    return int(args.handler(args))


def findings() -> dict[str, doctor_host.Finding]:
    return {finding.topic: finding for finding in doctor_report.collect(0.0).findings}


def test_json_is_one_object_with_every_gpu(emulated: EmulatedNode, capsys: pytest.CaptureFixture[str]) -> None:
    emulated.gpus[1].set_load(0.8)
    assert run("--json", "--seconds", "0") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["emulated"], report["driver"]) == (True, "570.00.emulated")
    assert [gpu["uuid"] for gpu in report["gpus"]] == [gpu.uuid for gpu in emulated.gpus]
    assert report["gpus"][1]["utilisation"] == 0.8
    assert report["gpus"][0]["power_limits"] == {"current_w": 400.0, "default_w": 400.0, "minimum_w": 100.0, "maximum_w": 400.0}
    assert all(finding["found"] and finding["consequence"] for finding in report["findings"])


def test_text_names_every_gpu_and_says_emulated(emulated: EmulatedNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--seconds", "0") == 0
    text = capsys.readouterr().out
    assert all(gpu.uuid in text for gpu in emulated.gpus)
    assert "GPUs of this host (emulated)" in text
    assert "SM 210 to 1410 MHz (81 steps)" in text


def test_a_healthy_node(emulated: EmulatedNode) -> None:
    by_topic = findings()
    for topic in ("GPUs", "CUDA_VISIBLE_DEVICES", "MIG", "Clock control", "Persistence", "Supported clocks", "Power limit", "Energy"):
        assert by_topic[topic].status == "ok", topic


def test_no_permission(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRON_ENERGY_EMULATED_CONTROL", "no")
    finding = findings()["Clock control"]
    assert (finding.status, finding.consequence) == ("off", "a run measures energy and leaves the clocks as they are")


def test_a_busy_gpu_below_its_maximum_hints_at_a_foreign_lock(emulated: EmulatedNode) -> None:
    idle = findings()["Foreign locks"]
    assert idle.status == "note" and "while the GPUs idle" in idle.found
    for gpu in emulated.gpus:
        gpu.set_load(0.6)
    assert findings()["Foreign locks"].found == "none seen"
    emulated.gpus[2].lock_clocks(210, 1200)
    emulated.clock.now_s += 1.0
    finding = findings()["Foreign locks"]
    assert finding.status == "note"
    assert finding.found == "busy and not throttled: GPU 2 at 1200 of 1410 MHz"


def test_a_power_cap_is_no_foreign_lock(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(1.0)
    facts = doctor_report.collect(0.0).gpus[0]
    assert facts.event_reasons == ("POWER_CAP",)
    assert not doctor_gpus.foreign_lock(facts)


def test_obstacles_are_named(emulated: EmulatedNode) -> None:
    with emulated.node.edit(0) as record:
        record.mig_instances = 2
    with emulated.node.edit(1) as record:
        record.persistence, record.faults = 0, Fault.NO_ENERGY_COUNTER | Fault.NO_INSTANT_POWER
    emulated.gpus[2].set_power_limit_mw(300_000)
    by_topic = findings()
    assert by_topic["MIG"].found == "on for GPU 0"
    assert by_topic["Persistence"].found == "off for GPU 1"
    assert by_topic["Power limit"].found == (
        "300 W, default 400 W, may be set from 100 to 400 W (GPU 2); 400 W, the default, may be set from 100 to 400 W (GPU 0, 1, 3)"
    )
    assert "never raise it" in by_topic["Power limit"].consequence
    assert "power is integrated" in by_topic["Energy"].found
    assert by_topic["Power sensor"].status == "note"


def test_a_lost_gpu_is_reported_with_the_others(emulated: EmulatedNode) -> None:
    with emulated.node.edit(3) as record:
        record.faults = Fault.LOST
    by_topic = findings()
    assert by_topic["GPU 3"].status == "off" and "GPU is lost" in by_topic["GPU 3"].found
    assert by_topic["GPUs"].found == "3 x NVIDIA A100-SXM4-80GB (emulated)"
    assert by_topic["CUDA_VISIBLE_DEVICES"].status == "off"


def test_a_gpu_that_answers_nothing_but_its_uuid_is_no_other_model(emulated: EmulatedNode, capsys: pytest.CaptureFixture[str]) -> None:
    with inject(Fail("nvmlDeviceGet[!UH]*", gpu=3, error="GPU_IS_LOST")):  # all but its UUID and its handle
        assert run("--seconds", "0") == 0
        by_topic = findings()
    assert "None" not in capsys.readouterr().out
    assert "GPU is lost" in by_topic["Energy"].found
    assert by_topic["GPUs"].found == "3 x NVIDIA A100-SXM4-80GB (emulated), 1 x GPU that does not answer"
    assert by_topic["GPUs"].status == "off"


def test_a_gpu_that_virtual_machines_share(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "vGPU" not in findings()
    monkeypatch.setattr(pynvml, "nvmlDeviceGetVirtualizationMode", lambda _handle: pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU)
    assert findings()["vGPU"].found.startswith("GPU 0 is a virtual GPU (vGPU), GPU 1 is")
    (first, *_) = preflight(all_gpus())
    assert all(gpu.split() for gpu in all_hardware({}).values())  # so clockd does not lend it
    assert first.clocks == Ability(False, "the GPU is a virtual GPU (vGPU): its clock is not this job's alone")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetVirtualizationMode", lambda _handle: pynvml.NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH)
    assert "vGPU" not in findings()


def test_the_power_sensors_window_is_said(emulated: EmulatedNode) -> None:
    assert findings()["Power sensor"].found.endswith("(emulated): a mean over 25 ms, renewed every 101 ms (published)")


def test_visible_devices(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert findings()["CUDA_VISIBLE_DEVICES"].consequence.startswith("CUDA device -> GPU: 0 -> 3, 1 -> 1;")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,1")
    assert "twice" in findings()["CUDA_VISIBLE_DEVICES"].consequence


def test_without_a_driver_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def no_library() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_library)
    monkeypatch.setattr(library, "_initialised", None)
    monkeypatch.delenv("MEGATRON_ENERGY_EMULATED", raising=False)
    assert run("--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["gpus"], report["driver"], report["emulated"]) == ([], None, False)
    assert report["findings"][0]["consequence"] == "no NVIDIA driver here: use --energy-device emulated or run on a GPU host"


@pytest.mark.parametrize("seconds", ["-1", "61"])
def test_bad_options(seconds: str) -> None:
    with pytest.raises(UserError, match="give 0 to 60"):
        run("--seconds", seconds)


def test_slurms_own_clock_request() -> None:
    assert doctor_host.slurm_finding({}) is None
    calm = doctor_host.slurm_finding({"SLURM_JOB_ID": "7"})
    assert calm is not None and calm.status == "ok"
    finding = doctor_host.slurm_finding({"SLURM_JOB_ID": "7", "SLURM_GPU_FREQ": "medium,memory=high"})
    assert finding is not None and finding.status == "note" and "medium,memory=high" in finding.found


def test_the_public_indexs_apex_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "apex").mkdir()
    (tmp_path / "apex" / "__init__.py").write_text("raise RuntimeError('doctor imports nothing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert doctor_host.apex_finding().found == "not NVIDIA's apex"
    (tmp_path / "apex" / "multi_tensor_apply").mkdir()
    assert doctor_host.apex_finding().status == "ok"


def test_clock_control_is_what_a_run_would_have(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = findings()["Clock control"]
    assert direct.status == "ok" and direct.consequence.startswith("no clockd here: clocks are set through the driver")
    monkeypatch.setattr(doctor_gpus, "outlook", lambda: Ability(True, CLOCKD_RUNS))
    assert findings()["Clock control"].consequence.startswith("clocks are set through clockd, which restores them")


def test_a_torch_for_the_cpu_is_no_torch_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_host, "package_folder", lambda module: Path("/"))
    for version, status in (("2.13.0+cpu", "note"), ("2.13.0+cu130", "ok"), ("2.9.0a0+145a3a7bda.nv25.10", "ok")):
        monkeypatch.setattr(doctor_host, "installed_version", lambda name, version=version: version)
        assert doctor_host.torch_finding().status == status
