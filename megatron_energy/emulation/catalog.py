"""GPU models that can be emulated: data sheet and published figures, each with its source.

The figures live in ``gpus/<key>.json``, one object ``{"value": ..., "source": ...}`` per field of :class:`GpuModel`. A
source that begins with ``estimate`` is not published for this very GPU; it then says how the value was arrived at.

Example::

    gpu = load("a100-sxm4-80gb")
    gpu.sm_clock_max_mhz                  # 1410
    gpu.sources["blocking_power_w"]       # "Perseus (SOSP'24, ...": where the figure comes from
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path

from megatron_energy.errors import UserError

_FOLDER = Path(__file__).parent / "gpus"


@dataclass(frozen=True)
class GpuModel:
    """One GPU model. Units are in the names; every field but ``key``, ``name`` and ``sources`` has an entry in ``sources``.

    Attributes:
        key: catalog key, e.g. ``a100-sxm4-80gb``.
        name: the name NVML reports.
        sources: field name to where its value comes from; starts with ``estimate`` where it is one.
        sm_clock_min_mhz, sm_clock_max_mhz, sm_clock_step_mhz: supported SM clocks.
        memory_clocks_mhz: supported memory clocks, highest first.
        power_limit_min_w, power_limit_default_w, power_limit_max_w: settable power limits.
        idle_power_w: no work, context open.
        blocking_power_w: waiting inside NCCL.
        peak_bf16_flop_s: dense, at ``peak_clock_mhz``.
        gemm_efficiency: share of the peak that large matrix products reach.
        memory_bytes, memory_bytes_s, memory_efficiency: capacity, bandwidth, reachable share of the bandwidth.
        link_bytes_s: NVLink, one direction. ``network_bytes_s``: one GPU's adapter, one direction.
        link_efficiency: reachable share of either. ``transfer_latency_s``: fixed cost of one transfer.
        link_clock_share: share of tensor-parallel communication time that scales with the SM clock.
        knee_mhz: below it the voltage is at its floor. ``voltage_slope_per_mhz``: relative rise per MHz above it.
        dynamic_w_per_mhz: dynamic power per MHz at the voltage floor with all tensor cores busy.
        memory_power_w: added when the memory is fully busy.
        counter_update_s: time between two steps of the energy counter.
        sensor_window_s, sensor_update_s: averaging window and update period of the power reading.
        request_median_s, request_p99_s: one locked-clocks call. ``request_lock_s``: how long each call holds the node-wide driver lock.
        in_force_s: from the end of the call until the clock is in force.
        ambient_c, celsius_per_w, slowdown_c: steady temperature is ambient + power x celsius_per_w; slowdown threshold.
    """

    key: str
    name: str
    sources: Mapping[str, str]
    sm_clock_min_mhz: int
    sm_clock_max_mhz: int
    sm_clock_step_mhz: int
    memory_clocks_mhz: tuple[int, ...]
    power_limit_min_w: float
    power_limit_default_w: float
    power_limit_max_w: float
    idle_power_w: float
    blocking_power_w: float
    peak_bf16_flop_s: float
    peak_clock_mhz: int
    gemm_efficiency: float
    memory_bytes: int
    memory_bytes_s: float
    memory_efficiency: float
    link_bytes_s: float
    network_bytes_s: float
    link_efficiency: float
    transfer_latency_s: float
    link_clock_share: float
    knee_mhz: float
    voltage_slope_per_mhz: float
    dynamic_w_per_mhz: float
    memory_power_w: float
    counter_update_s: float
    sensor_window_s: float
    sensor_update_s: float
    request_median_s: float
    request_p99_s: float
    request_lock_s: float
    in_force_s: float
    ambient_c: float
    celsius_per_w: float
    slowdown_c: float

    @cached_property
    def sm_clocks_mhz(self) -> tuple[int, ...]:
        """Supported SM clocks, highest first."""
        return tuple(range(self.sm_clock_max_mhz, self.sm_clock_min_mhz - 1, -self.sm_clock_step_mhz))

    def supported_clock_mhz(self, clock_mhz: float) -> int:
        """The highest supported SM clock that is not above ``clock_mhz``; the lowest supported one if there is none."""
        steps = int((self.sm_clock_max_mhz - clock_mhz + self.sm_clock_step_mhz - 1e-6) // self.sm_clock_step_mhz)
        return max(self.sm_clock_max_mhz - max(steps, 0) * self.sm_clock_step_mhz, self.sm_clocks_mhz[-1])

    def request_lead_s(self, gpus_on_node: int) -> float:
        """How early a clock must be requested to be in force in time when all GPUs of a node switch together, in s.

        A call's 99th percentile, the turns of the other GPUs at the driver lock, and the time until in force.
        """
        return self.request_p99_s + self.request_lock_s * gpus_on_node + self.in_force_s


def known() -> list[str]:
    """Keys of the GPU models in the catalog, sorted."""
    return sorted(file.stem for file in _FOLDER.glob("*.json"))


@cache
def load(key: str) -> GpuModel:
    """The GPU model with this key; case does not matter.

    Raises:
        UserError: there is no such model.
    """
    key = key.lower()
    if key not in known():
        raise UserError(f"unknown emulated GPU '{key}': choose one of {', '.join(known())}")
    return _parse(key, json.loads((_FOLDER / f"{key}.json").read_text(encoding="utf-8")))


def _parse(key: str, entries: dict[str, object]) -> GpuModel:
    """Build the model; a missing, unknown or unsourced entry is a defect of the catalog, so it raises ValueError."""
    name = entries.pop("name")
    wanted = {f.name for f in fields(GpuModel)} - {"key", "name", "sources"}
    if wanted != entries.keys():
        raise ValueError(f"catalog entry '{key}': missing or unknown figures {sorted(wanted ^ entries.keys())}")
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for field, entry in entries.items():
        if not isinstance(entry, dict) or not entry.get("source"):
            raise ValueError(f"catalog entry '{key}': '{field}' has no source")
        value = entry["value"]
        values[field] = tuple(value) if isinstance(value, list) else value
        sources[field] = entry["source"]
    return GpuModel(key=key, name=str(name), sources=sources, **values)  # type: ignore[arg-type]
