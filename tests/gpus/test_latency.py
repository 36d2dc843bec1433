"""Switching latency of emulated GPUs, whose latencies are known."""

import pytest

from megatron_energy.emulation.fault_rules import Delay, Fail
from megatron_energy.emulation.faults import inject
from megatron_energy.gpus.actuators import NvmlActuator
from megatron_energy.gpus.counts import Quantiles
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.latency import IN_FORCE_S, LatencyProbe, SwitchingLatency, slowest
from megatron_energy.gpus.nvml import NvmlGpu
from tests.emulated_gpus import EmulatedNode

CALL_S, IN_FORCE_EMULATED_S = 0.00575, 0.005  # of the catalog's A100
POLL_S = 0.0005


def probe_of(node: EmulatedNode, kernel: bool = False) -> LatencyProbe:
    gpu = NvmlGpu(node.gpus[0].uuid)

    def kernel_time_s() -> float:
        """A kernel of 1 ms at 1410 MHz."""
        duration_s = 0.001 * 1410 / node.gpus[0].clock_mhz()
        node.clock.sleep(duration_s)
        return duration_s

    return LatencyProbe(NvmlActuator(gpu), gpu, (1410, 900), kernel_time_s if kernel else None, node.clock, node.clock.sleep)


def test_a_busy_gpu_shows_calls_and_clocks(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.5)
    found = probe_of(emulated).measure(rounds=20)
    assert found.call_s.samples == 20
    assert (found.call_s.median_s, found.call_s.p99_s) == (pytest.approx(CALL_S), pytest.approx(CALL_S))
    assert found.reported_s is not None
    assert found.reported_s.p99_s == pytest.approx(IN_FORCE_EMULATED_S, abs=2 * POLL_S)
    assert found.kernel_s is None
    assert found.notes == ("no kernel was given to measure speeds with", "not measured with the node's other GPUs")
    assert found.lead_s == pytest.approx(CALL_S + IN_FORCE_EMULATED_S, abs=2 * POLL_S)
    assert emulated.node.gpu(0).locked_max_mhz == 0  # given back


def test_kernels_show_the_new_speed(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.5)
    found = probe_of(emulated, kernel=True).measure(rounds=4)
    assert found.kernel_s is not None
    assert found.kernel_s.p99_s == pytest.approx(IN_FORCE_EMULATED_S, abs=0.0016 + POLL_S)  # at most one kernel later
    assert found.in_force_s == found.kernel_s.p99_s


def test_an_idle_gpu_tells_the_call_alone_and_says_so(emulated: EmulatedNode) -> None:
    found = probe_of(emulated).measure(rounds=2)
    assert found.reported_s is None
    assert found.notes[1] == "the GPU shows 210 MHz, not 900: idle or held down"
    assert found.lead_s == pytest.approx(CALL_S + IN_FORCE_S)


class BehindOthers(NvmlActuator):
    """After the barrier, the node's three other GPUs get their turn at the driver first."""

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__(NvmlGpu(node.gpus[0].uuid))
        self._others = node.gpus[1:]
        self._together = False
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1
        self._together = self.barriers > 4  # first each of the four is alone once

    def set_max_clock(self, clock_mhz: int) -> None:
        for gpu in self._others if self._together else []:
            gpu.lock_clocks(210, 900)
        super().set_max_clock(clock_mhz)


def test_the_node_together(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.5)
    actuator = BehindOthers(emulated)
    probe = LatencyProbe(actuator, NvmlGpu(emulated.gpus[0].uuid), (1410, 900), None, emulated.clock, emulated.clock.sleep)
    found = probe.measure(rounds=4, barrier=actuator.barrier, gpus_on_node=4, turn=2, rounds_together=6)
    assert actuator.barriers == 4 + 6
    assert found.call_s.p99_s == pytest.approx(CALL_S)
    assert found.together_s is not None
    assert (found.together_s.samples, found.together_s.p99_s) == (6, pytest.approx(4 * CALL_S))
    assert found.lead_s == pytest.approx(4 * CALL_S + IN_FORCE_EMULATED_S, abs=2 * POLL_S)


def test_spikes_are_in_the_lead(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.5)
    with inject(Delay("nvmlDeviceSetGpuLockedClocks", latency_s=0.1, from_call=6, times=1)):
        found = probe_of(emulated).measure(rounds=20)
    assert found.call_s.median_s == pytest.approx(CALL_S)
    assert found.lead_s == pytest.approx(0.1 + CALL_S + IN_FORCE_EMULATED_S, abs=2 * POLL_S)


def test_a_clock_that_never_comes_is_noted(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(1.0)  # 1410 MHz under full load is beyond the power limit
    found = probe_of(emulated).measure(rounds=2)
    assert found.reported_s is None
    assert "held down" in found.notes[1]


def test_a_failure_still_gives_the_clock_back(emulated: EmulatedNode) -> None:
    with inject(Fail("nvmlDeviceSetGpuLockedClocks", error="TIMEOUT", from_call=2)), pytest.raises(GpuError, match="Timeout"):
        probe_of(emulated).measure()
    assert emulated.node.gpu(0).locked_max_mhz == 0


def test_clocks_must_be_apart(emulated: EmulatedNode) -> None:
    gpu = NvmlGpu(emulated.gpus[0].uuid)
    with pytest.raises(ValueError, match="clearly lower"):
        LatencyProbe(NvmlActuator(gpu), gpu, (1410, 1395))
    with pytest.raises(ValueError, match="turn 4 of 4 GPUs"):
        probe_of(emulated).measure(gpus_on_node=4, turn=4)


def test_the_slowest_gpu_of_a_job_decides() -> None:
    quick = SwitchingLatency(Quantiles(20, 0.004, 0.012), None, None, Quantiles(10, 0.03, 0.05), 8)
    unknown = SwitchingLatency(Quantiles(20, 0.004, 0.012), None, None, None, 8)
    assert quick.lead_s == pytest.approx(0.05 + IN_FORCE_S)
    assert unknown.lead_s == pytest.approx(0.012 + 7 * 0.006 + IN_FORCE_S)
    assert slowest([quick, unknown]) is slowest([unknown, quick]) is unknown
