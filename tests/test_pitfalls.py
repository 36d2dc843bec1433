"""One test per pitfall that users of other energy tools and of Megatron reported in public; the issue is named in each.

What concerns sites (18, 20) is in tests/test_pitfalls_of_sites.py; leases and their restore (14) are tested in tests/clockd too.
"""

import ast
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from megatron_energy.emulation.fault_rules import CounterReset, Ignore
from megatron_energy.emulation.faults import inject
from megatron_energy.emulation.nvml_devices import mig_uuid
from megatron_energy.emulation.state import Fault
from megatron_energy.errors import UserError
from megatron_energy.gpus.actuators import NvmlActuator
from megatron_energy.gpus.device import EventReason, request_sm_clock
from megatron_energy.gpus.errors import NotSupported
from megatron_energy.gpus.issuer import Issuer, Settings
from megatron_energy.gpus.meter import EnergyMeter, meter_for
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.preflight import preflight
from megatron_energy.gpus.sensors import check_sensors
from megatron_energy.gpus.visible import gpu_for_cuda_device, visible_gpus
from megatron_energy.observe.interval import combine
from megatron_energy.records.summary import GpuSummary, IterationSummary
from tests.emulated_gpus import EmulatedNode, FakeClock, emulated_node
from tests.gpus.fake_gpu import FakeGpu
from tests.source_tree import ROOT, package_files, parse


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[EmulatedNode]:
    with emulated_node(tmp_path) as node:
        yield node


def gpu_of(node: EmulatedNode, index: int = 0) -> NvmlGpu:
    return NvmlGpu(node.gpus[index].uuid)


def issuer_of(node: EmulatedNode, index: int = 0, **settings: Any) -> Issuer:
    gpu = gpu_of(node, index)
    return Issuer(NvmlActuator(gpu), Settings(lead_s=0.06, **settings), gpu, None, node.clock, node.clock.sleep)


def summary(*gpus: tuple[str, float]) -> IterationSummary:
    """An iteration of 2 s on one node: (UUID, J) by rank."""
    index = {uuid: number for number, uuid in enumerate(sorted({uuid for uuid, _ in gpus}))}
    found = [
        GpuSummary(rank, "n1", index[uuid], uuid, 0, 0, 0, joules, joules / 2, 1410.0, 0.0) for rank, (uuid, joules) in enumerate(gpus)
    ]
    return IterationSummary(1, "measure", 2.0, found)


def test_pitfall_01_an_unopened_meter_does_nothing() -> None:
    """Megatron-LM #1870: EnergyMonitor crashed at a checkpoint when energy was not logged."""
    gpu = FakeGpu(energy_mj=1)
    gpu.lost = True  # any reading would raise
    meter = EnergyMeter(gpu, background=False)
    meter.poll()
    assert meter.lap() is None
    meter.close()
    assert not meter.is_open


def test_pitfall_02_values_of_each_gpu_survive_gathering() -> None:
    """Megatron-LM PR #4008: a summing all-reduce loses who used what."""
    interval = combine([summary(("GPU-a", 100.0), ("GPU-b", 300.0))])
    assert [gpu.energy_j for gpu in interval.gpus] == [100.0, 300.0]
    assert interval.iteration_energy_j == 400.0


def test_pitfall_03_switches_are_counted_and_kept_apart(emulated: EmulatedNode) -> None:
    """Seen in nccl #1551: clocks set about every 50 ms slowed NCCL."""
    issuer = issuer_of(emulated, least_interval_s=0.05)
    for number in range(100):  # one request every 10 ms for a second
        issuer.handle(900 if number % 2 else 1080, emulated.clock.now_s)
        emulated.clock.now_s += 0.01
    counts = issuer.counts
    assert counts.issued + counts.dropped_too_soon + counts.unchanged == 100
    assert emulated.node.gpu(0).locks_set == counts.issued
    elapsed_s = emulated.clock.now_s - 1000.0
    assert counts.dropped_too_soon > 0
    assert 0 < counts.issued <= 2 * (elapsed_s / 0.05 + 1)  # at most a lower and a raise per 50 ms


def test_pitfall_04_a_clock_that_is_accepted_but_not_obeyed_is_noticed(emulated: EmulatedNode) -> None:
    """Seen in open-gpu-kernel-modules #1314: SUCCESS, and nothing happened."""
    emulated.gpus[0].set_load(0.5)
    issuer = issuer_of(emulated, read_back_every=1)
    with inject(Ignore(times=1)):
        for clock_mhz in (900, 1080):
            emulated.clock.now_s += 1.0
            issuer.handle(clock_mhz, emulated.clock.now_s)
    assert issuer.counts.disobeyed == 1
    assert issuer.report().last_disobeyed == "1410 MHz in force where 900 MHz were asked for (event reasons 0x0)"


def test_pitfall_05_cudas_numbers_are_not_nvmls(emulated: EmulatedNode) -> None:
    """Seen in pynvml #28, codecarbon #567: NVML ignores CUDA_VISIBLE_DEVICES."""
    reordered = {"CUDA_VISIBLE_DEVICES": f"3,{emulated.gpus[1].uuid[:12]}"}
    assert [gpu_for_cuda_device(device, reordered).index for device in (0, 1)] == [3, 1]
    with pytest.raises(UserError, match="no CUDA device 2 here: 2 visible"):
        gpu_for_cuda_device(2, reordered)


def test_pitfall_06_mig_and_uuid_strings_are_understood_and_mig_clocks_left_alone(emulated: EmulatedNode) -> None:
    """Seen in zeus #109, nvitop #99: int() of a UUID."""
    with emulated.node.edit(2) as record:
        record.mig_instances = 2
    (gpu,) = visible_gpus({"CUDA_VISIBLE_DEVICES": mig_uuid(emulated.gpus[2], 1)})
    assert gpu.index == 2
    with pytest.raises(NotSupported, match="split by MIG"):
        request_sm_clock(gpu, 1080)
    assert "split by MIG" in preflight([gpu])[0].clocks.reason
    assert emulated.node.gpu(2).locks_set == 0


def test_pitfall_07_a_missing_counter_is_not_zero_joules(emulated: EmulatedNode) -> None:
    """Seen in codecarbon #1316: 0 kWh for a whole run."""
    with emulated.node.edit(0) as record:
        record.faults = Fault.NO_ENERGY_COUNTER
    emulated.gpus[0].set_load(0.5)
    meter = EnergyMeter(gpu_of(emulated), emulated.clock, background=False)
    meter.open()
    for _ in range(20):
        emulated.clock.now_s += 0.1
        meter.poll()
    lap = meter.lap()
    assert lap is not None and lap.energy_j == pytest.approx(2.0 * emulated.gpus[0].power_w(), rel=0.06)
    assert "no energy counter" in meter.source_reason


def test_pitfall_08_ranks_that_share_a_gpu_do_not_multiply_it(emulated: EmulatedNode) -> None:
    """Seen in codecarbon PR #1390, dcgm-exporter #317: N times the node's energy."""
    assert meter_for(gpu_of(emulated)) is meter_for(gpu_of(emulated))
    shared = combine([summary(("GPU-a", 100.0), ("GPU-a", 100.0), ("GPU-b", 50.0))])
    assert shared.energy_j == 150.0


def test_pitfall_09_power_is_the_instant_field(tmp_path: Path) -> None:
    """Seen in zeus #45, DCGM #157: GetPowerUsage is an average that lags by a second on newer GPUs."""
    with emulated_node(tmp_path, "h100-sxm5-80gb:1") as node:
        gpu = NvmlGpu(node.gpus[0].uuid)
        node.clock.now_s += 5.0
        node.gpus[0].set_load(0.5)
        node.clock.now_s += 0.3
        busy_w = node.gpus[0].power_w()
        assert gpu.power_w() == pytest.approx(busy_w, abs=0.01)
        lagging_w = pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetHandleByIndex(0)) / 1000
        assert lagging_w < 0.6 * busy_w


def test_pitfall_10_a_counter_that_disagrees_with_the_power_is_told() -> None:
    """Seen in zeus #181: 187 J by the counter, 327 J by power, over 5 s of idling."""

    class Disagreeing(FakeGpu):
        def total_energy_mj(self) -> int:
            return int(clock.now_s * 10) * 187_000 // 50  # a step every 100 ms

    clock = FakeClock()
    found = check_sensors(Disagreeing(power_w=327 / 5), 5.0, 0.01, clock, clock.sleep)
    assert found.agrees is False
    assert found.disagreement == pytest.approx(187 / 327 - 1, abs=0.03)


def test_pitfall_11_the_counters_steps_are_known_and_cancel_over_laps(emulated: EmulatedNode) -> None:
    """Seen in pynvml PR #18, zeus PR #186: the joules of a short operation are not one difference of the counter."""
    emulated.gpus[0].set_load(0.5)
    emulated.clock.now_s += 0.05
    power_w = emulated.gpus[0].power_w()
    found = check_sensors(gpu_of(emulated), 2.0, 0.002, emulated.clock, emulated.clock.sleep)
    assert found.update_period_s == pytest.approx(0.1, abs=0.005)
    meter = EnergyMeter(gpu_of(emulated), emulated.clock, background=False)
    meter.open()
    laps = []
    for _ in range(200):
        emulated.clock.now_s += 0.03
        lap = meter.lap()
        assert lap is not None and lap.energy_j is not None
        laps.append(lap.energy_j)
    assert min(laps) == 0.0 and max(laps) > 3 * 0.03 * power_w  # each alone is worthless ...
    assert sum(laps) == pytest.approx(200 * 0.03 * power_w, abs=0.1 * power_w)  # ... all together are right to one step


def test_pitfall_12_a_counter_of_a_whole_module_says_so(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in zeus PR #172: GH200's counter covers CPU and memory too."""
    gpu = gpu_of(emulated)
    assert gpu.energy_scope == "gpu"
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda _handle: "NVIDIA GH200 480GB")
    assert gpu.energy_scope == "module"
    assert preflight([gpu])[0].energy.reason == "energy counter of the whole module, CPU included"


def test_pitfall_13_without_permission_measuring_goes_on(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in zeus #29, geopm #1532, nvidia-docker #495: Insufficient Permissions."""
    monkeypatch.setenv("MEGATRON_ENERGY_EMULATED_CONTROL", "no")
    (found,) = preflight([gpu_of(emulated)])
    assert (found.energy.possible, found.clocks.possible) == (True, False)
    issuer = issuer_of(emulated)
    issuer.handle(900, emulated.clock.now_s)
    assert "needs root, CAP_SYS_ADMIN or the clock daemon" in issuer.stopped
    emulated.clock.now_s += 1.0
    assert gpu_of(emulated).total_energy_mj() == pytest.approx(60_000, abs=10)


def test_pitfall_14_only_the_own_gpu_is_touched_and_given_back(emulated: EmulatedNode) -> None:
    """NBMiner #661, #839: clocks stayed locked, and those of other jobs changed."""
    issuer = issuer_of(emulated, index=2)
    assert issuer.release() == "" and emulated.node.gpu(2).locks_set == 0  # never changed, never reset
    issuer.handle(900, emulated.clock.now_s)
    issuer.stop("the run is over")
    assert [emulated.node.gpu(index).locks_set for index in range(4)] == [0, 0, 2, 0]
    assert emulated.node.gpu(2).locked_max_mhz == 0


def nvml_names() -> set[str]:
    """Every NVML function that the product names outside its emulation."""
    trees = [parse(path) for path in package_files() if "emulation" not in path.parts]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("nvml")}


def test_pitfall_15_application_clocks_and_memory_locks_are_not_used() -> None:
    """Application clocks are deprecated and gone with CUDA 14; memory clocks can be locked on Ampere and later only."""
    names = nvml_names()
    assert "nvmlDeviceSetGpuLockedClocks" in names
    assert not [name for name in names if "ApplicationsClock" in name or "MemoryLocked" in name or name == "nvmlDeviceSetMemClkVfOffset"]


def test_pitfall_16_no_dependency_on_lookalikes() -> None:
    """PyPI's pynvml is a deprecated shim, PyPI's apex another package."""
    wanted = re.findall(r"""["']([A-Za-z0-9_.-]+)""", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "nvidia-ml-py" in wanted
    assert not {"pynvml", "apex"} & set(wanted)
    programs = [path.read_text(encoding="utf-8") for path in (ROOT / "Dockerfile", *(ROOT / "scripts").rglob("*.sh"))]
    assert not [line for text in programs for line in re.findall(r"^.*pip3? install.*\b(?:pynvml|apex)\b.*$", text, re.MULTILINE)]


def test_pitfall_17_a_counter_that_falls_is_a_gap(emulated: EmulatedNode) -> None:
    """Seen in dcgm-exporter #417, compute-runtime #938: an unsigned difference of a counter that fell."""
    emulated.clock.now_s += 100.0
    meter = EnergyMeter(gpu_of(emulated), emulated.clock, background=False)
    with inject(CounterReset(from_call=2)):
        meter.open()
        energies_j = []
        for _ in range(3):
            emulated.clock.now_s += 10.0
            lap = meter.lap()
            energies_j.append(lap.energy_j if lap is not None else math.nan)
    assert energies_j == [None, pytest.approx(600.0, abs=0.1), pytest.approx(600.0, abs=0.1)]
    assert meter.gaps == 1


def test_pitfall_18_giving_clocks_back_leaves_the_sites_power_cap(emulated: EmulatedNode) -> None:
    """Seen in club-3090 PR #699, ansible-slurm-appliance #975: factory limits put over a site's own cap."""
    pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 250_000)
    issuer = issuer_of(emulated)
    issuer.handle(900, emulated.clock.now_s)
    issuer.stop("the run is over")
    assert gpu_of(emulated).power_limits().current_w == 250.0


def test_pitfall_19_a_forked_process_starts_nvml_anew(emulated: EmulatedNode) -> None:
    """Seen in cuCascade #138: NVML's state does not survive a fork."""
    gpu = gpu_of(emulated)
    before = pynvml.nvmlLib.references
    child = os.fork()
    if child == 0:
        status = 1
        try:
            meter = meter_for(gpu)
            meter.open()
            status = 0 if pynvml.nvmlLib.references == before + 1 else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert pynvml.nvmlLib.references == before


def test_a_locked_gpu_shows_why(emulated: EmulatedNode) -> None:
    """What pitfall 4's read-back relies on."""
    emulated.gpus[0].set_load(0.5)
    request_sm_clock(gpu_of(emulated), 900)
    emulated.clock.now_s += 1.0
    assert gpu_of(emulated).event_reasons() == EventReason.LOCKED_CLOCKS
