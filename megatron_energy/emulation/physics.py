"""Time and power of a GPU as functions of its SM clock.

Model (all constants are in the catalog, each with its source):

- time ``t(f) = scaling x f_max / f + fixed``: the part that runs in the SMs scales with the clock, memory and network do not.
- power ``P(f) = idle + memory x memory_power + compute x a x f x v(f)^2`` with the relative voltage
  ``v(f) = 1 + slope x max(0, f - knee)``: below the knee the voltage is at its floor and power is linear in the clock.
- power cap: the GPU runs at the highest supported clock, not above the request, whose power is within the limit.

The A100's constants are fitted to a published profile (GPT-3 175B, TP8, on A100-SXM, from the artifact of Perseus, arXiv 2312.06902)
that draws 475 W at its maximum clock, so its boards were not capped at the data sheet's 400 W. Compared with that profile
the model has to run under a limit of 478 W; with the catalog's 400 W the same work is throttled near 1260 MHz, which is what layer
measurements on capped A800 boards show.
"""

from dataclasses import dataclass

from megatron_energy.emulation.catalog import GpuModel


@dataclass(frozen=True, slots=True)
class Load:
    """What one operation asks of a GPU.

    Attributes:
        scaling_s: seconds at the maximum SM clock of the part that scales with it.
        fixed_s: seconds of the part that does not.
        compute: mean activity of the SMs, 1 for large matrix products.
        memory: mean activity of the memory, 1 for a streaming kernel.
    """

    scaling_s: float
    fixed_s: float
    compute: float
    memory: float


def time_s(gpu: GpuModel, load: Load, clock_mhz: float) -> float:
    """Seconds that the load takes at this SM clock."""
    return load.scaling_s * gpu.sm_clock_max_mhz / clock_mhz + load.fixed_s


def power_w(gpu: GpuModel, clock_mhz: float, compute: float = 1.0, memory: float = 0.0) -> float:
    """Watts at this SM clock, without the power cap; ``compute`` and ``memory`` are activities from 0 to 1."""
    voltage = 1.0 + gpu.voltage_slope_per_mhz * max(0.0, clock_mhz - gpu.knee_mhz)
    return gpu.idle_power_w + memory * gpu.memory_power_w + compute * gpu.dynamic_w_per_mhz * clock_mhz * voltage**2


def capped_clock_mhz(gpu: GpuModel, clock_mhz: int, limit_w: float, compute: float = 1.0, memory: float = 0.0) -> int:
    """The clock at which the GPU really runs: the highest supported one, not above the request, within the power limit.

    The lowest supported clock is returned where no clock is within the limit.
    """
    allowed = (clock for clock in gpu.sm_clocks_mhz if clock <= clock_mhz and power_w(gpu, clock, compute, memory) <= limit_w)
    return next(allowed, gpu.sm_clocks_mhz[-1])
