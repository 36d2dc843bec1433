"""What can go wrong with NVML, on demand: for tests, and to rehearse what a run does when a GPU misbehaves.

Faults belong to one process (what is wrong with a GPU for *every* process is :class:`megatron_energy.emulation.state.Fault`).
They are injected for a while from Python, or for a whole process through an environment variable::

    with inject(Fail("nvmlDeviceSetGpuLockedClocks", error="TIMEOUT", times=2)):
        ...

    MEGATRON_ENERGY_EMULATED_FAULTS='[{"fault": "fail", "function": "nvmlDeviceGetPowerUsage", "error": "TIMEOUT", "from_call": 3}]'
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import pynvml

from megatron_energy.emulation.fault_rules import CounterReset, Delay, Disturb, Fail, Ignore, Rule, error_code
from megatron_energy.emulation.nvml_calls import DEVICE_FUNCTIONS, Handler, Refuse, read_handle, target
from megatron_energy.errors import UserError

if TYPE_CHECKING:
    from megatron_energy.emulation.nvml import EmulatedNvml

_POWER_FIELDS = (185, 186)  # nvml.h: NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_INSTANT
_ENERGY_FIELDS = (83, 191)  # nvml.h: NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, NVML_FI_DEV_ENERGY


class Faults:
    """The rules of one process, at work. ``sleep`` and ``clock`` (s) are the emulated node's."""

    def __init__(
        self,
        rules: tuple[Rule, ...],
        seed: int = 0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.strikes = [0] * len(rules)  # how often each rule struck
        self._rules = rules
        self._calls = [0] * len(rules)
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._sleep, self._clock, self._start_s = sleep, clock, clock()
        self._counter_from_mj: dict[int, int] = {}
        self._reset_due: set[int] = set()

    @property
    def highest_gpu(self) -> int:
        """The highest index of a GPU that a rule names; -1: none does."""
        return max((rule.gpu for rule in self._rules if rule.gpu is not None), default=-1)

    def call(self, library: "EmulatedNvml", name: str, handler: Handler, arguments: tuple[Any, ...]) -> Any:
        """Do what the function does, or what goes wrong; the return value is NVML's error code."""
        gpu = _gpu_of(library, name, arguments)
        striking = self._striking(name, gpu)
        self._sleep_through([rule for rule in striking if isinstance(rule, Delay)])
        for rule in striking:
            if isinstance(rule, Fail) and rule.field is None:
                return error_code(rule.error)
            if isinstance(rule, Ignore):
                return int(pynvml.NVML_SUCCESS)
        if gpu is not None and any(isinstance(rule, CounterReset) for rule in striking):
            self._reset_due.add(gpu)
        code = handler(library, *arguments)
        if code == pynvml.NVML_SUCCESS and gpu is not None:
            for reading in _readings(name, arguments):
                self._change(reading, gpu, striking)
        return code

    def _striking(self, name: str, gpu: int | None) -> list[Rule]:
        found = []
        with self._lock:
            for number, rule in enumerate(self._rules):
                if not fnmatchcase(name, rule.function) or rule.gpu not in (None, gpu):
                    continue
                self._calls[number] += 1
                exhausted = rule.times is not None and self.strikes[number] >= rule.times
                if self._calls[number] < rule.from_call or exhausted or self._random.random() >= rule.probability:
                    continue
                self.strikes[number] += 1
                found.append(rule)
        return found

    def _sleep_through(self, delays: list[Delay]) -> None:
        if delays:
            self._sleep(sum(delay.latency_s for delay in delays))

    def _change(self, reading: "_Reading", gpu: int, striking: list[Rule]) -> None:
        """Change one value that a call has written."""
        for rule in striking:
            if isinstance(rule, Fail) and rule.field is not None and rule.field == reading.field:
                reading.fail(error_code(rule.error))
                return
            if isinstance(rule, Disturb) and reading.kind == "power":
                reading.write(self._disturbed_mw(reading.read(), rule))
        if reading.kind == "energy":
            if gpu in self._reset_due:
                self._reset_due.discard(gpu)
                self._counter_from_mj[gpu] = reading.read()
            reading.write(reading.read() - self._counter_from_mj.get(gpu, 0))

    def _disturbed_mw(self, power_mw: int, rule: Disturb) -> int:
        hours = (self._clock() - self._start_s) / 3600
        with self._lock:
            noise = self._random.gauss(0.0, rule.noise_share) if rule.noise_share else 0.0
        quantum_mw = rule.quantum_w * 1000
        return max(0, round(round(power_mw * (1 + noise + rule.drift_per_hour * hours) / quantum_mw) * quantum_mw))


@dataclass(frozen=True, slots=True)
class _Reading:
    """A value in a call's arguments: a plain integer, or field value number ``field``."""

    kind: str  # power, energy or other
    holder: Any
    field: int | None = None

    def read(self) -> int:
        if self.field is None:
            return int(self.holder.value)
        return int(self.holder.value.ullVal if self.kind == "energy" else self.holder.value.uiVal)

    def write(self, value: int) -> None:
        if self.field is None:
            self.holder.value = value
        elif self.kind == "energy":
            self.holder.value.ullVal = value
        else:
            self.holder.value.uiVal = value

    def fail(self, code: int) -> None:
        self.holder.nvmlReturn = code


def _readings(name: str, arguments: tuple[Any, ...]) -> Iterator[_Reading]:
    """The values that faults can change in a call that has succeeded."""
    if name == "nvmlDeviceGetPowerUsage":
        yield _Reading("power", target(arguments[1]))
    elif name == "nvmlDeviceGetTotalEnergyConsumption":
        yield _Reading("energy", target(arguments[1]))
    elif name == "nvmlDeviceGetFieldValues":
        for value in target(arguments[2]):
            kinds = {**dict.fromkeys(_POWER_FIELDS, "power"), **dict.fromkeys(_ENERGY_FIELDS, "energy")}
            if value.nvmlReturn == pynvml.NVML_SUCCESS:
                yield _Reading(kinds.get(value.fieldId, "other"), value, value.fieldId)


def _gpu_of(library: "EmulatedNvml", name: str, arguments: tuple[Any, ...]) -> int | None:
    """Index of the GPU that a call is for; None for the system's functions and for handles that are none."""
    if name.startswith("nvmlDeviceGetHandleBy"):
        return _gpu_wanted(library, name, arguments[0])
    if name not in DEVICE_FUNCTIONS or not arguments:
        return None
    try:
        return read_handle(library, arguments[0])[0]
    except Refuse:
        return None


def _gpu_wanted(library: "EmulatedNvml", name: str, wanted: Any) -> int | None:
    """Index of the GPU whose handle is looked up, by index or UUID; None for others."""
    value = getattr(wanted, "value", wanted)
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    for gpu in library.gpus:
        if text == (gpu.index if name.startswith("nvmlDeviceGetHandleByIndex") else gpu.uuid):
            return gpu.index
    return None


@contextmanager
def inject(*rules: Rule, seed: int = 0) -> Iterator[Faults]:
    """Let these things go wrong in this process, with its emulated GPUs, until the block ends. Raises UserError without them."""
    from megatron_energy.emulation.nvml import EmulatedNvml

    library = pynvml.nvmlLib
    if not isinstance(library, EmulatedNvml):
        raise UserError("faults can only be injected into emulated GPUs: install them first (MEGATRON_ENERGY_EMULATED)")
    before, library.faults = library.faults, Faults(rules, seed, *library.gpus[0].time_functions)
    try:
        yield library.faults
    finally:
        library.faults = before
