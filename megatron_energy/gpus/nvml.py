"""A GPU through NVML (real or emulated: the same code)."""

import os
from typing import Any

import pynvml

from megatron_energy.gpus.device import EventReason, PowerLimits, Scope
from megatron_energy.gpus.errors import GpuError, NotSupported
from megatron_energy.gpus.library import call, open_nvml, translated

# nvml.h: field ids of nvmlDeviceGetFieldValues. Constants of pynvml since its 12.535; older ones lack the name.
POWER_INSTANT_FIELD = getattr(pynvml, "NVML_FI_DEV_POWER_INSTANT", 186)

_NO_SUCH_FIELD = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

# The counter of Grace-Hopper modules includes the CPU and its memory (seen in zeus PR #172).
MODULE_COUNTER_NAMES = ("GH200",)


_SHARED_WITH_MACHINES = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU: "a virtual GPU (vGPU)",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU: "shared by virtual GPUs of this host (vGPU)",
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA: "shared by virtual machines of this host (vSGA)",
}


class NvmlGpu:
    """One physical GPU, identified by its UUID. Implements :class:`~megatron_energy.gpus.device.Gpu`.

    Safe to carry over a fork: the NVML handle is looked up again in the child.
    """

    def __init__(self, uuid: str, mig_instance: str | None = None) -> None:
        """``uuid`` of the GPU (``GPU-...``); ``mig_instance``: UUID of the MIG instance through which CUDA sees it, if any."""
        self._uuid = uuid
        self.mig_instance = mig_instance
        self._handle_pid = -1
        self._cached_handle: Any = None
        self._sm_clocks_mhz: tuple[int, ...] | None = None
        self._instant_power: bool | None = None  # None: not tried yet
        self._handle()  # an unknown UUID fails here, not at the first measurement

    def __repr__(self) -> str:
        return f"NvmlGpu({self._uuid!r})"

    def _handle(self) -> Any:
        """NVML's handle in this process."""
        pid = os.getpid()
        if self._handle_pid != pid:
            open_nvml()
            self._cached_handle = call(pynvml.nvmlDeviceGetHandleByUUID, self._uuid)
            self._handle_pid = pid
        return self._cached_handle

    @property
    def uuid(self) -> str:
        """``GPU-...``."""
        return self._uuid

    @property
    def index(self) -> int:
        """NVML's index (bus order), which is not CUDA's."""
        return int(call(pynvml.nvmlDeviceGetIndex, self._handle()))

    @property
    def name(self) -> str:
        """Product name."""
        name = call(pynvml.nvmlDeviceGetName, self._handle())
        return name.decode() if isinstance(name, bytes) else str(name)

    @property
    def energy_scope(self) -> Scope:
        """``module`` for Grace-Hopper, whose counter covers the CPU too."""
        return "module" if any(part in self.name for part in MODULE_COUNTER_NAMES) else "gpu"

    def mig_enabled(self) -> bool:
        """Whether MIG mode is on; False on GPUs that have no MIG."""
        try:
            return bool(call(pynvml.nvmlDeviceGetMigMode, self._handle())[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
        except NotSupported:
            return False

    def shared_with_machines(self) -> str:
        """How virtual machines share this GPU, in words; empty where none do (passed through to one machine as a whole counts as none)."""
        try:
            mode = call(pynvml.nvmlDeviceGetVirtualizationMode, self._handle())
        except NotSupported:
            return ""
        return _SHARED_WITH_MACHINES.get(int(mode), "")

    def supported_memory_clocks_mhz(self) -> tuple[int, ...]:
        """Memory clocks, highest first."""
        return self._listed(call(pynvml.nvmlDeviceGetSupportedMemoryClocks, self._handle()), "memory")

    def _listed(self, clocks_mhz: list[int], kind: str) -> tuple[int, ...]:
        """Highest first; a list without any entry is as good as none."""
        if not clocks_mhz:
            raise NotSupported(f"{self._uuid} lists no {kind} clocks")
        return tuple(sorted((int(mhz) for mhz in clocks_mhz), reverse=True))

    def supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """SM clocks at the highest memory clock, highest first (read once)."""
        if self._sm_clocks_mhz is None:
            memory_mhz = self.supported_memory_clocks_mhz()[0]
            clocks = call(pynvml.nvmlDeviceGetSupportedGraphicsClocks, self._handle(), memory_mhz)
            self._sm_clocks_mhz = self._listed(clocks, "SM")
        return self._sm_clocks_mhz

    def sm_clock_mhz(self) -> int:
        """SM clock in force."""
        return int(call(pynvml.nvmlDeviceGetClockInfo, self._handle(), pynvml.NVML_CLOCK_SM))

    def memory_clock_mhz(self) -> int:
        """Memory clock in force."""
        return int(call(pynvml.nvmlDeviceGetClockInfo, self._handle(), pynvml.NVML_CLOCK_MEM))

    def event_reasons(self) -> EventReason:
        """Clock event reasons, under their older name (throttle reasons) on drivers that lack the newer one."""
        try:
            reasons = call(pynvml.nvmlDeviceGetCurrentClocksEventReasons, self._handle())
        except NotSupported:
            reasons = call(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle())
        return EventReason(int(reasons))

    def power_w(self) -> float:
        """Instant power where there is such a field, else NVML's power usage (see :attr:`power_source`).

        Which one is decided at the first answer and stays: the two must not be mixed.
        """
        if self._instant_power is not False:
            try:
                power_w = self._instant_power_w()
            except NotSupported:
                if self._instant_power:  # it was there before
                    raise
                self._instant_power = False
            else:
                self._instant_power = True
                return power_w
        return int(call(pynvml.nvmlDeviceGetPowerUsage, self._handle())) / 1000

    def _instant_power_w(self) -> float:
        value = call(pynvml.nvmlDeviceGetFieldValues, self._handle(), [POWER_INSTANT_FIELD])[0]
        if value.nvmlReturn in _NO_SUCH_FIELD:
            raise NotSupported("no instant power field")
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise translated(pynvml.NVMLError(value.nvmlReturn), "instant power field")
        return int(value.value.uiVal) / 1000

    @property
    def power_source(self) -> str:
        """Which sensor :meth:`power_w` reads."""
        if self._instant_power is None:
            try:
                self.power_w()
            except GpuError as error:
                return f"power cannot be read: {error}"
        if self._instant_power:
            return "instant power (field NVML_FI_DEV_POWER_INSTANT)"
        return "power usage: this driver or GPU has no instant power field, and usage is a lagging average on newer GPUs"

    def total_energy_mj(self) -> int | None:
        """Energy counter in mJ, or None where the GPU has none (before Volta)."""
        try:
            return int(call(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle()))
        except NotSupported:
            return None

    def power_limits(self) -> PowerLimits:
        """Limit in force (the enforced one: the least of all that apply) and its bounds."""
        handle = self._handle()
        minimum_mw, maximum_mw = call(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
        return PowerLimits(
            current_w=int(call(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)) / 1000,
            default_w=int(call(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)) / 1000,
            minimum_w=int(minimum_mw) / 1000,
            maximum_w=int(maximum_mw) / 1000,
        )

    def set_power_limit_w(self, limit_w: float) -> None:
        """Set the power limit in W (rounded to mW)."""
        self._refuse_mig("power limit")
        call(pynvml.nvmlDeviceSetPowerManagementLimit, self._handle(), round(limit_w * 1000))

    def set_sm_clock_range(self, min_mhz: int, max_mhz: int) -> None:
        """Lock the SM clock into [min, max] MHz; memory clocks are not touched."""
        self._refuse_mig("clock")
        call(pynvml.nvmlDeviceSetGpuLockedClocks, self._handle(), min_mhz, max_mhz)

    def reset_sm_clocks(self) -> None:
        """Remove the lock."""
        self._refuse_mig("clock")
        call(pynvml.nvmlDeviceResetGpuLockedClocks, self._handle())

    def _refuse_mig(self, what: str) -> None:
        if self.mig_enabled():
            raise NotSupported(
                f"GPU {self.index} is split by MIG: its {what} are shared by all instances and are left alone; use whole GPUs"
            )

    def persistence_mode(self) -> bool | None:
        """Whether the driver stays loaded without clients; None where it cannot be read."""
        try:
            return bool(call(pynvml.nvmlDeviceGetPersistenceMode, self._handle()))
        except NotSupported:
            return None

    def temperature_c(self) -> int:
        """Core temperature."""
        return int(call(pynvml.nvmlDeviceGetTemperature, self._handle(), pynvml.NVML_TEMPERATURE_GPU))

    def utilisation(self) -> float:
        """Share of the last sampling period with a kernel running."""
        return int(call(pynvml.nvmlDeviceGetUtilizationRates, self._handle()).gpu) / 100
