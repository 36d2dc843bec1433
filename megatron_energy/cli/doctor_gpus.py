"""Doctor's findings about the GPUs: what each says about itself, and what follows for a run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from megatron_energy.cli.doctor_host import Finding
from megatron_energy.errors import UserError
from megatron_energy.gpus.device import THROTTLING, EventReason, PowerLimits
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.preflight import energy_ability
from megatron_energy.gpus.sensors import TOLERANCE, SensorCheck, check_sensors, published_window
from megatron_energy.gpus.visible import VARIABLE, visible_gpus
from megatron_energy.session.actuation import CLOCKD_RUNS, SIGKILL_MEANS, outlook

T = TypeVar("T")

NAMELESS = "GPU that does not answer"
LOADED = 0.5  # utilisation from which idling no longer explains a low clock


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What one GPU says about itself; None where it does not say it."""

    index: int | None
    uuid: str
    name: str
    mig: bool | None
    shared_with_machines: str | None
    persistence: bool | None
    sm_clocks_mhz: tuple[int, ...]
    memory_clocks_mhz: tuple[int, ...]
    sm_clock_mhz: int | None
    event_reasons: tuple[str, ...]
    power_w: float | None
    power_source: str | None
    power_limits: PowerLimits | None
    energy_mj: int | None
    energy_scope: str | None
    utilisation: float | None
    temperature_c: int | None


def read_gpu(gpu: NvmlGpu) -> GpuFacts:
    """Ask one GPU everything; what it does not answer is None."""
    reasons = _ask(gpu.event_reasons) or EventReason.NONE
    return GpuFacts(
        index=_ask(lambda: gpu.index),
        uuid=gpu.uuid,
        name=_ask(lambda: gpu.name) or NAMELESS,
        mig=_ask(gpu.mig_enabled),
        shared_with_machines=_ask(gpu.shared_with_machines),
        persistence=_ask(gpu.persistence_mode),
        sm_clocks_mhz=_ask(gpu.supported_sm_clocks_mhz) or (),
        memory_clocks_mhz=_ask(gpu.supported_memory_clocks_mhz) or (),
        sm_clock_mhz=_ask(gpu.sm_clock_mhz),
        event_reasons=tuple(reason.name or "" for reason in EventReason if reason and reason in reasons),
        power_w=_ask(gpu.power_w),
        power_source=_ask(lambda: gpu.power_source),
        power_limits=_ask(gpu.power_limits),
        energy_mj=_ask(gpu.total_energy_mj),
        energy_scope=_ask(lambda: gpu.energy_scope),
        utilisation=_ask(gpu.utilisation),
        temperature_c=_ask(gpu.temperature_c),
    )


def _ask(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except GpuError:
        return None


def gpu_findings(gpus: Sequence[NvmlGpu], facts: Sequence[GpuFacts], watch_s: float, environment: Mapping[str, str]) -> list[Finding]:
    """Findings about all GPUs of the host; ``watch_s``: seconds to watch the sensors of the first (0: do not)."""
    return [
        models_finding(facts),
        visible_finding(facts, environment),
        mig_finding(facts),
        *machines_finding(facts),
        control_finding(),
        persistence_finding(facts),
        clocks_finding(facts),
        foreign_lock_finding(facts),
        power_limit_finding(facts),
        energy_finding(gpus),
        power_finding(facts),
        *([sensors_finding(gpus[0], watch_s)] if watch_s > 0 else []),
    ]


def silent_finding(silent: Mapping[int, str]) -> list[Finding]:
    """GPUs that do not even say who they are: index -> reason."""
    return [
        Finding(f"GPU {index}", "off", reason, "it is neither measured nor controlled; the others are not affected")
        for index, reason in silent.items()
    ]


def models_finding(facts: Sequence[GpuFacts]) -> Finding:
    """Which GPUs there are."""
    models = Counter(gpu.name for gpu in facts)
    found = ", ".join(f"{number} x {name}" for name, number in models.items())
    if NAMELESS in models:
        return Finding("GPUs", "off", found, "a GPU that does not answer is neither measured nor controlled")
    if len(models) > 1:
        return Finding("GPUs", "note", found, "different models: a plan keeps one clock table per model")
    return Finding("GPUs", "ok", found, "one clock table for all")


def visible_finding(facts: Sequence[GpuFacts], environment: Mapping[str, str]) -> Finding:
    """Which of them CUDA shows, and in which order."""
    value = environment.get(VARIABLE)
    try:
        visible = [gpu.uuid for gpu in visible_gpus(environment)]
    except (UserError, GpuError) as error:
        return Finding(VARIABLE, "off", value or "not set", str(error))
    if value is None:
        return Finding(VARIABLE, "ok", "not set", f"all {len(facts)} GPUs are used, in bus order")
    by_uuid = {gpu.uuid: gpu.index for gpu in facts}
    order = ", ".join(f"{cuda} -> {by_uuid.get(uuid)}" for cuda, uuid in enumerate(visible)) or "none"
    return Finding(VARIABLE, "ok" if visible else "off", value or "empty", f"CUDA device -> GPU: {order}; no other GPU is touched")


def mig_finding(facts: Sequence[GpuFacts]) -> Finding:
    """Whether GPUs are split."""
    split = [str(gpu.index) for gpu in facts if gpu.mig]
    if not split:
        return Finding("MIG", "ok", "off", "GPUs are whole: clocks can be set")
    return Finding("MIG", "off", f"on for GPU {', '.join(split)}", "energy is measured, no clock is set: it is shared by all instances")


def machines_finding(facts: Sequence[GpuFacts]) -> list[Finding]:
    """GPUs that virtual machines share; nothing where none does."""
    shared = [f"GPU {gpu.index} is {gpu.shared_with_machines}" for gpu in facts if gpu.shared_with_machines]
    return [Finding("vGPU", "off", ", ".join(shared), "no clock is set: it is not this host's alone")] if shared else []


def control_finding() -> Finding:
    """Whether a run of this user may set clocks, and through what."""
    possible = outlook()
    if not possible.possible:
        return Finding("Clock control", "off", possible.reason, "a run measures energy and leaves the clocks as they are")
    return Finding("Clock control", "ok", possible.reason, SIGKILL_MEANS["clockd" if possible.reason == CLOCKD_RUNS else "nvml"])


def persistence_finding(facts: Sequence[GpuFacts]) -> Finding:
    """Whether the driver stays loaded between programs."""
    off = [str(gpu.index) for gpu in facts if gpu.persistence is False]
    if not off:
        return Finding("Persistence", "ok", "on, or not reported", "the driver stays loaded; counters go on between runs")
    follows = "clock locks and counters vanish when the last program ends: run nvidia-persistenced or nvidia-smi -pm 1"
    return Finding("Persistence", "note", f"off for GPU {', '.join(off)}", follows)


def clocks_finding(facts: Sequence[GpuFacts]) -> Finding:
    """Which clocks can be requested."""
    tables = {(gpu.sm_clocks_mhz, gpu.memory_clocks_mhz) for gpu in facts}
    parts = [
        f"SM {sm[-1]} to {sm[0]} MHz ({len(sm)} steps), memory {', '.join(map(str, memory))} MHz"
        for sm, memory in sorted(tables)
        if sm and memory
    ]
    if not parts:
        return Finding("Supported clocks", "off", "not reported", "no clock can be set; energy is measured where possible")
    return Finding("Supported clocks", "ok", "; ".join(parts), "requests set the range (lowest, f); memory clocks are left alone")


def foreign_lock(gpu: GpuFacts) -> bool:
    """Whether a busy GPU runs below its maximum although nothing throttles it: somebody may have locked its clock."""
    throttled = any(EventReason[reason] in THROTTLING for reason in gpu.event_reasons)
    busy = gpu.utilisation is not None and gpu.utilisation >= LOADED
    below = bool(gpu.sm_clocks_mhz) and gpu.sm_clock_mhz is not None and gpu.sm_clock_mhz < gpu.sm_clocks_mhz[0]
    return busy and below and not throttled


def foreign_lock_finding(facts: Sequence[GpuFacts]) -> Finding:
    """Hint at clock locks that are not ours. NVML cannot read a locked range, so this is all that can be seen."""
    locked = [f"GPU {gpu.index} at {gpu.sm_clock_mhz} of {gpu.sm_clocks_mhz[0]} MHz" for gpu in facts if foreign_lock(gpu)]
    if locked:
        follows = "somebody may have locked these clocks; a locked range cannot be read, so a run would end by removing it"
        return Finding("Foreign locks", "note", f"busy and not throttled: {', '.join(locked)}", follows)
    if all((gpu.utilisation or 0) < LOADED for gpu in facts):
        return Finding("Foreign locks", "note", "cannot be told while the GPUs idle", "look again while something runs on them")
    return Finding("Foreign locks", "ok", "none seen", "at the end of a run clocks are given back to the GPUs")


def power_limit_finding(facts: Sequence[GpuFacts]) -> Finding:
    """Power limits in force, lowest first."""
    by_limits: dict[PowerLimits, list[str]] = {}
    for gpu in facts:
        if gpu.power_limits is not None:
            by_limits.setdefault(gpu.power_limits, []).append(str(gpu.index))
    if not by_limits:
        return Finding("Power limit", "note", "not reported", "power limits are left alone")
    ordered = sorted(by_limits.items(), key=lambda item: item[0].current_w)
    found = "; ".join(_limit(limits) + (f" (GPU {', '.join(gpus)})" if len(ordered) > 1 else "") for limits, gpus in ordered)
    lowered = any(limits.current_w < limits.default_w for limits in by_limits)
    follows = "somebody has lowered it: runs keep it and never raise it" if lowered else "runs keep it; it may throttle clocks"
    return Finding("Power limit", "note" if lowered else "ok", found, follows)


def _limit(limits: PowerLimits) -> str:
    relation = "the default" if limits.current_w == limits.default_w else f"default {limits.default_w:g} W"
    return f"{limits.current_w:g} W, {relation}, may be set from {limits.minimum_w:g} to {limits.maximum_w:g} W"


def energy_finding(gpus: Sequence[NvmlGpu]) -> Finding:
    """What energy is measured with."""
    abilities = [energy_ability(gpu) for gpu in gpus]
    found = "; ".join(sorted({ability.reason for ability in abilities}))
    if not all(ability.possible for ability in abilities):
        return Finding("Energy", "off", found, "GPUs without a reading show gaps, never zeros")
    return Finding("Energy", "ok", found, "read once per iteration; NVML measures the GPU, not the wall plug")


def power_finding(facts: Sequence[GpuFacts]) -> Finding:
    """Which power sensor is read."""
    sources = sorted({gpu.power_source for gpu in facts if gpu.power_source is not None})
    if not sources:
        return Finding("Power sensor", "off", "none answers", "no power is shown")
    lagging = any("instant" not in source.partition(":")[0] for source in sources)
    windows = sorted({f"{gpu.name}: {window} (published)" for gpu in facts if (window := published_window(gpu.name)) is not None})
    found = "; ".join([*sources, *windows])
    return Finding("Power sensor", "note" if lagging else "ok", found, "for display; energy comes from the counter where there is one")


def sensors_finding(gpu: NvmlGpu, watch_s: float) -> Finding:
    """How often the counter steps, and whether it agrees with the power."""
    try:
        check: SensorCheck = check_sensors(gpu, watch_s)
    except GpuError as error:
        return Finding("Counter", "off", "the GPU stopped answering", str(error))
    if check.update_period_s is None or check.disagreement is None:
        return Finding(
            "Counter", "note", f"fewer than 3 steps in {watch_s:g} s", "its update period is not known; watch longer with --seconds 5"
        )
    found = f"steps every {1000 * check.update_period_s:.0f} ms; {100 * check.disagreement:+.1f}% against integrated power"
    if not check.agrees:
        follows = f"counter and power differ by more than {100 * TOLERANCE:.0f}%: energies are the counter's; look again with --seconds 5"
        return Finding("Counter", "note", found, follows)
    return Finding("Counter", "ok", found, "single operations are averaged over many repeats, as one delta is too coarse for them")
