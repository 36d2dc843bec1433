"""What every operation on a GPU makes of every NVML error: the operations, and their outcomes.

An operation either gives the same answer as without the error, or does without something and says why, or raises one of our
exceptions in one line. Another number, another exception or a traceback is an error of ours.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pynvml

from megatron_energy.emulation.fault_rules import Fail
from megatron_energy.emulation.faults import Faults, inject
from megatron_energy.errors import UserError
from megatron_energy.gpus import library, visible
from megatron_energy.gpus.actuators import NvmlActuator
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.issuer import Issuer, Settings
from megatron_energy.gpus.latency import LatencyProbe
from megatron_energy.gpus.meter import EnergyMeter
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.preflight import preflight
from megatron_energy.gpus.sensors import check_sensors
from tests.emulated_gpus import EmulatedNode

ERRORS = sorted((name for name in dir(pynvml) if name.startswith("NVML_ERROR_")), key=lambda name: int(getattr(pynvml, name)))
BUSY, SPLIT = 0, 3  # indices: a GPU under a steady load, and one with MIG instances


@dataclass(frozen=True)
class Answer:
    """An operation's result. ``reason``: what it did without, and why; empty if nothing."""

    value: object
    reason: str = ""


Operation = Callable[[EmulatedNode], Answer]


def prepare(node: EmulatedNode) -> None:
    """The state in which operations run."""
    node.gpus[BUSY].set_load(0.5)
    with node.node.edit(SPLIT) as record:
        record.mig_instances = 2
    node.clock.now_s += 10.0


def gpu_of(node: EmulatedNode, index: int = BUSY) -> NvmlGpu:
    return NvmlGpu(node.gpus[index].uuid)


def reading(read: Callable[[NvmlGpu], object]) -> Operation:
    return lambda node: Answer(read(gpu_of(node)))


def energy(node: EmulatedNode) -> Answer:
    """The counter; None is a GPU without one."""
    energy_mj = gpu_of(node).total_energy_mj()
    return Answer(energy_mj, "" if energy_mj is not None else "None: no counter")


def power(node: EmulatedNode) -> Answer:
    gpu = gpu_of(node)
    source = "" if gpu.power_source.startswith("instant") else gpu.power_source
    return Answer(gpu.power_w(), source)


def persistence(node: EmulatedNode) -> Answer:
    mode = gpu_of(node).persistence_mode()
    return Answer(mode, "" if mode is not None else "None: cannot be read")


def split(node: EmulatedNode) -> Answer:
    """Whether MIG is on."""
    enabled = gpu_of(node, SPLIT).mig_enabled()
    return Answer(enabled, "" if enabled else "False: a GPU that does not know the question has no MIG")


def mig_instance(node: EmulatedNode) -> Answer:
    """The GPU behind a MIG instance in CUDA_VISIBLE_DEVICES."""
    from megatron_energy.emulation.nvml_devices import mig_uuid

    gpus = visible.visible_gpus({visible.VARIABLE: mig_uuid(node.gpus[SPLIT], 1)})
    return Answer([gpu.uuid for gpu in gpus], "" if gpus else "no device is visible")


def metered(node: EmulatedNode) -> Answer:
    """Two laps of a meter that was open before the error came."""
    meter = EnergyMeter(gpu_of(node), node.clock, background=False)
    with healthy():
        meter.open()
    node.clock.now_s += 2.0
    lap = meter.lap()
    assert lap is not None
    meter.close()
    return Answer(lap.energy_j, lap.reason)


def opened(node: EmulatedNode) -> Answer:
    """A meter opened under the error."""
    meter = EnergyMeter(gpu_of(node), node.clock, background=False)
    meter.open()
    reason = "" if meter.source == "counter" else meter.source_reason
    meter.close()
    return Answer("open", reason)


def sensors(node: EmulatedNode) -> Answer:
    found = check_sensors(gpu_of(node), 0.5, 0.01, node.clock, node.clock.sleep)
    return Answer(found.agrees, "" if found.agrees is not None else "None: not known")


def abilities(node: EmulatedNode) -> Answer:
    with healthy():
        gpu = gpu_of(node)
    (found,) = preflight([gpu])
    reasons = [ability.reason for ability in (found.energy, found.clocks) if not ability.possible or "no energy counter" in ability.reason]
    return Answer((found.energy.possible, found.clocks.possible), "; ".join(reasons))


def controlled(node: EmulatedNode) -> Answer:
    """Three requests of a controller; what it counted when they did not all go through."""
    with healthy():
        gpu = gpu_of(node)
        gpu.supported_sm_clocks_mhz()
    settings = Settings(lead_s=1.0, read_back_every=1, retry_pause_s=0.001)
    issuer = Issuer(NvmlActuator(gpu), settings, gpu, None, node.clock, node.clock.sleep)
    for clock_mhz in (900, 1080, 0):
        node.clock.now_s += 1.0
        issuer.handle(clock_mhz, node.clock.now_s)
    report = issuer.report()
    assert report.counts.settled() + report.counts.failures >= 3
    return Answer(report.counts.issued, report.stopped or report.last_failure or report.last_disobeyed)


def switching(node: EmulatedNode) -> Answer:
    gpu = gpu_of(node)
    probe = LatencyProbe(NvmlActuator(gpu), gpu, (1410, 900), None, node.clock, node.clock.sleep)
    return Answer(round(probe.measure(rounds=2).lead_s, 3))


OPERATIONS: dict[str, Operation] = {
    "start NVML": lambda node: Answer(restart()),
    "versions": lambda node: Answer((library.driver_version(), library.nvml_version())),
    "all GPUs": lambda node: Answer([gpu.uuid for gpu in visible.all_gpus()]),
    "CUDA device 1": lambda node: Answer(visible.gpu_for_cuda_device(1, {visible.VARIABLE: "2,0"}).uuid),
    "MIG instance": mig_instance,
    "identity": reading(lambda gpu: (gpu.index, gpu.name, gpu.energy_scope)),
    "MIG mode": split,
    "supported clocks": reading(lambda gpu: (gpu.supported_sm_clocks_mhz(), gpu.supported_memory_clocks_mhz())),
    "clocks in force": reading(lambda gpu: (gpu.sm_clock_mhz(), gpu.memory_clock_mhz())),
    "event reasons": reading(lambda gpu: gpu.event_reasons()),
    "power": power,
    "energy counter": energy,
    "power limits": reading(lambda gpu: gpu.power_limits()),
    "set power limit": reading(lambda gpu: gpu.set_power_limit_w(400.0)),
    "set and reset clocks": reading(lambda gpu: (gpu.set_sm_clock_range(210, 1410), gpu.reset_sm_clocks())),  # type: ignore[func-returns-value]
    "virtual machines": reading(lambda gpu: gpu.shared_with_machines()),
    "persistence mode": persistence,
    "temperature, utilisation": reading(lambda gpu: (gpu.temperature_c(), gpu.utilisation())),
    "meter: open": opened,
    "meter: lap": metered,
    "sensor check": sensors,
    "preflight": abilities,
    "controller": controlled,
    "switching latency": switching,
}


def restart() -> str:
    library._initialised = None
    library.open_nvml()
    return "started"


@contextmanager
def healthy() -> Iterator[None]:
    """No fault until the block ends."""
    with inject():
        yield


class Recorder(Faults):
    """No faults; keeps the C names of the functions that are called."""

    def __init__(self) -> None:
        super().__init__(())
        self.used: set[str] = set()

    def call(self, library: Any, name: str, handler: Any, arguments: tuple[Any, ...]) -> Any:
        self.used.add(name)
        return super().call(library, name, handler, arguments)


def functions_used(operation: Operation, node: EmulatedNode) -> set[str]:
    """C names of the NVML functions that an operation calls where faults can reach it."""
    recorder = Recorder()
    pynvml.nvmlLib.faults = recorder
    try:
        operation(node)
    finally:
        pynvml.nvmlLib.faults = None
    return recorder.used


@dataclass(frozen=True)
class Outcome:
    """How an operation ended: ``same``, ``degrades`` or the name of an exception; with the reason it gave."""

    kind: str
    reason: str = ""


def outcome(operation: Operation, node: EmulatedNode, expected: object) -> Outcome:
    """Run an operation under the faults that are injected. Raises AssertionError for a wrong number, and lets tracebacks through."""
    try:
        answer = operation(node)
    except (GpuError, UserError) as error:
        return Outcome(type(error).__name__, str(error))
    if answer.value == expected and not answer.reason:
        return Outcome("same")
    assert answer.reason, f"{answer.value} instead of {expected}, and no reason given"
    return Outcome("degrades", answer.reason)


def faults_of(function: str, error: str) -> list[Fail]:
    """The rules by which a function, or one field value of it, fails with an error."""
    rules = [Fail(function, error=error)]
    if function == "nvmlDeviceGetFieldValues":
        rules.append(Fail(function, error=error, field=186))
    return rules
