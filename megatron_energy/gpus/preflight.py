"""What can be read and controlled here, asked once, before anything depends on it. Changes nothing."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.library import emulated_library
from megatron_energy.gpus.nvml import NvmlGpu

CAP_SYS_ADMIN = 21  # linux/capability.h; the driver asks for it before it sets clocks or limits


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether something is possible, and why (not)."""

    possible: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Preflight:
    """What one GPU allows this process."""

    uuid: str
    energy: Ability
    clocks: Ability


def preflight(gpus: Iterable[NvmlGpu]) -> list[Preflight]:
    """Abilities of each GPU, in order. A GPU that does not answer has none, with the reason; nothing is raised for it."""
    permission = control_permission()
    return [Preflight(gpu.uuid, energy_ability(gpu), clock_ability(gpu, permission)) for gpu in gpus]


def energy_ability(gpu: NvmlGpu) -> Ability:
    """Whether the energy of ``gpu`` can be measured, and from which sensor."""
    try:
        if gpu.total_energy_mj() is not None:
            covers = "the GPU" if gpu.energy_scope == "gpu" else "the whole module, CPU included"
            return Ability(True, f"energy counter of {covers}")
        gpu.power_w()
        return Ability(True, f"no energy counter: power is integrated instead ({gpu.power_source})")
    except GpuError as error:
        return Ability(False, str(error))


def clock_ability(gpu: NvmlGpu, permission: Ability | None = None) -> Ability:
    """Whether this process can set the clock of ``gpu`` directly (the clock daemon may be able to where it is not)."""
    try:
        if gpu.mig_enabled():
            return Ability(False, "the GPU is split by MIG: its clock is shared by all instances")
        shared = gpu.shared_with_machines()
        if shared:
            return Ability(False, f"the GPU is {shared}: its clock is not this job's alone")
        if len(gpu.supported_sm_clocks_mhz()) < 2:
            return Ability(False, "the GPU offers a single SM clock")
    except GpuError as error:
        return Ability(False, str(error))
    return permission or control_permission()


def control_permission() -> Ability:
    """Whether this process may set clocks, told without setting any.

    NVML has no question for this, and a trial would overwrite another's clock range, which cannot be read back. So the
    privilege that the driver asks for is looked up instead; the first real request has the last word.
    """
    library = emulated_library()
    if library is not None:
        return (
            Ability(True, "emulated: control is allowed") if library.may_control() else Ability(False, "emulated: control is not allowed")
        )
    capabilities = effective_capabilities()
    if capabilities is None:
        return Ability(os.geteuid() == 0, "running as root" if os.geteuid() == 0 else "not root")
    if capabilities >> CAP_SYS_ADMIN & 1:
        if in_user_namespace():
            return Ability(False, "CAP_SYS_ADMIN holds only inside this user namespace (rootless container): use the clock daemon")
        return Ability(True, "CAP_SYS_ADMIN is effective")
    user = "root, but without" if os.geteuid() == 0 else "no"
    return Ability(False, f"{user} CAP_SYS_ADMIN: use the clock daemon, or start the container with --cap-add SYS_ADMIN")


def effective_capabilities(status: Path = Path("/proc/self/status")) -> int | None:
    """This process's effective capability bits from the kernel's ``status`` file, or None where there is no such file."""
    try:
        lines = status.read_text().splitlines()
    except FileNotFoundError:
        return None
    values = [line.split()[1] for line in lines if line.startswith("CapEff:")]
    return int(values[0], 16) if values else None


def in_user_namespace(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether this process lives in a user namespace of its own, where capabilities do not reach the driver."""
    try:
        fields = uid_map.read_text().split()
    except FileNotFoundError:
        return False
    return fields != ["0", "0", "4294967295"]  # the initial namespace maps every id onto itself (user_namespaces(7))
