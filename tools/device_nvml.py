"""The parts of tools/device_check.py that need NVML alone."""

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from device_findings import Finding

from megatron_energy.gpus.library import driver_version, nvml_version
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.preflight import clock_ability, energy_ability
from megatron_energy.gpus.sensors import TOLERANCE, check_sensors

READS = 200


def nvml_findings(gpu: NvmlGpu) -> list[Finding]:
    """What NVML says about the GPU, and what reading it costs."""
    clocks_mhz, limits = gpu.supported_sm_clocks_mhz(), gpu.power_limits()
    facts: list[tuple[str, object]] = [
        ("name", gpu.name),
        ("UUID", gpu.uuid),
        ("NVML index", gpu.index),
        ("driver", driver_version()),
        ("NVML", nvml_version()),
        ("MIG", "on" if gpu.mig_enabled() else "off"),
        ("persistence mode", gpu.persistence_mode()),
        ("SM clocks, MHz", f"{clocks_mhz[-1]} to {clocks_mhz[0]}, {len(clocks_mhz)} of them"),
        ("memory clocks, MHz", ", ".join(str(mhz) for mhz in gpu.supported_memory_clocks_mhz())),
        ("SM clock now, MHz", gpu.sm_clock_mhz()),
        ("event reasons", gpu.event_reasons().name or f"{int(gpu.event_reasons()):#x}"),
        ("power limit, W", f"{limits.current_w:g} ({limits.minimum_w:g} to {limits.maximum_w:g}, default {limits.default_w:g})"),
        ("power source", gpu.power_source),
        ("energy", energy_ability(gpu).reason),
        ("clock control", clock_ability(gpu).reason),
        ("temperature, C", gpu.temperature_c()),
    ]
    costs: dict[str, Callable[[], object]] = {
        "energy counter": gpu.total_energy_mj,
        "power": gpu.power_w,
        "SM clock": gpu.sm_clock_mhz,
        "event reasons": gpu.event_reasons,
    }
    return [Finding("NVML", name, value) for name, value in facts] + [
        Finding("NVML", f"reading the {name}, median us", _median_us(read)) for name, read in costs.items()
    ]


def _median_us(read: Callable[[], object]) -> float:
    samples = []
    for _ in range(READS):
        begin_s = time.perf_counter()
        read()
        samples.append(1e6 * (time.perf_counter() - begin_s))
    return statistics.median(samples)


def sensor_findings(gpu: NvmlGpu, duration_s: float, state: str, load: Callable[[float], AbstractContextManager[None]]) -> list[Finding]:
    """Energy counter against integrated power while ``load`` keeps the GPU as it says."""
    with load(duration_s + 1.0):
        time.sleep(0.5)  # the load, and a sensor's window, settle
        found = check_sensors(gpu, duration_s)
        clock_mhz, power_w = gpu.sm_clock_mhz(), gpu.power_w()
    part = f"sensors, {state}"
    if found.counter_j is None or found.power_j is None or found.update_period_s is None:
        return [Finding(part, "energy counter", "no steps seen", note=gpu.power_source)]
    seconds = f"over {duration_s:g} s"
    disagreement = found.disagreement or 0.0
    return [
        Finding(part, "SM clock, MHz", clock_mhz),
        Finding(part, "power, W", power_w),
        Finding(part, "counter's update period, ms", 1e3 * found.update_period_s),
        Finding(part, "counter, J", found.counter_j, note=seconds),
        Finding(part, "integrated power, J", found.power_j, note=seconds),
        Finding(part, "counter against power, %", 100 * disagreement, found.agrees, f"within {100 * TOLERANCE:g}%"),
    ]
