"""Rules about what goes wrong with NVML, and when.

A rule counts the calls that it matches, from 1 on; it strikes from call ``from_call`` on, at most ``times`` times, and each time
with ``probability``. So ``times=1`` is once, ``from_call=n, times=1`` the n-th call, and neither means always.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import pynvml

from megatron_energy.emulation.nvml_calls import FUNCTIONS
from megatron_energy.errors import UserError

LONGEST_DELAY_S = 3600.0


def error_code(name: str) -> int:
    """``TIMEOUT`` or ``NVML_ERROR_TIMEOUT`` -> NVML's number. Raises UserError for another word."""
    full = name if name.startswith("NVML_ERROR_") else f"NVML_ERROR_{name}"
    code = getattr(pynvml, full, None)
    if not isinstance(code, int):
        raise UserError(f"NVML has no error {name}: use a name such as TIMEOUT, NO_PERMISSION or GPU_IS_LOST")
    return code


@dataclass(frozen=True)
class Rule:
    """When a fault strikes.

    Attributes:
        function: C name of the NVML function, with ``*`` and ``?`` as in file names.
        gpu: index of the GPU; None: any, and functions that are not a GPU's too.
        from_call: number of the first matching call that it may strike.
        times: how often at most; None: no limit.
        probability: of striking, each time; drawn from a seeded generator.
    """

    function: str = "*"
    gpu: int | None = None
    from_call: int = 1
    times: int | None = None
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not any(fnmatchcase(name, self.function) for name in FUNCTIONS):
            raise UserError(f"no emulated NVML function is called {self.function}: use its C name, such as nvmlDeviceGetPowerUsage")
        if self.from_call < 1 or not 0 <= self.probability <= 1:
            raise UserError(f"calls count from 1 and a probability is 0 to 1, not {self.from_call} and {self.probability}")
        if (self.times is not None and self.times < 1) or (self.gpu is not None and self.gpu < 0):
            raise UserError(f"times is 1 or more and gpu an index, not {self.times} and {self.gpu}: leave them out for always and for any")


@dataclass(frozen=True)
class Fail(Rule):
    """The call does nothing and returns an error. With ``field``, only that field value of nvmlDeviceGetFieldValues has it."""

    error: str = "UNKNOWN"
    field: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        error_code(self.error)


@dataclass(frozen=True)
class Ignore(Rule):
    """A request that sets something is answered with success, and nothing happens."""

    function: str = "nvmlDeviceSetGpuLockedClocks"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.function.startswith(("nvmlDeviceSet", "nvmlDeviceReset")):
            raise UserError(f"{self.function} returns something, so it cannot be ignored: only nvmlDeviceSet... and nvmlDeviceReset... can")


@dataclass(frozen=True)
class Delay(Rule):
    """The call takes ``latency_s`` longer."""

    latency_s: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.latency_s <= LONGEST_DELAY_S:
            raise UserError(f"latency_s is 0 to {LONGEST_DELAY_S:g}, not {self.latency_s}")


@dataclass(frozen=True)
class CounterReset(Rule):
    """The energy counter begins again from 0 when it is read for the ``from_call``-th time, as after a driver reload."""

    function: str = "nvmlDeviceGetTotalEnergyConsumption"
    times: int | None = 1


@dataclass(frozen=True)
class Disturb(Rule):
    """Readings of power are off.

    Attributes:
        noise_share: standard deviation of a Gaussian error, as a share of the reading.
        drift_per_hour: share by which the reading grows per hour.
        quantum_w: readings are multiples of this.
    """

    function: str = "nvmlDeviceGet*"
    noise_share: float = 0.0
    drift_per_hour: float = 0.0
    quantum_w: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.quantum_w < math.inf:
            raise UserError(f"quantum_w is above 0, not {self.quantum_w}")
        if not 0 <= self.noise_share < math.inf or not math.isfinite(self.drift_per_hour):
            raise UserError(f"noise_share is 0 or more and drift_per_hour a number, not {self.noise_share} and {self.drift_per_hour}")


def gpu_lost(gpu: int, from_call: int = 1) -> Fail:
    """GPU number ``gpu`` falls off the bus at the ``from_call``-th call for it, and stays lost."""
    return Fail("nvmlDevice*", gpu, from_call, error="GPU_IS_LOST")


_KINDS: Mapping[str, type[Rule]] = {"fail": Fail, "ignore": Ignore, "delay": Delay, "counter-reset": CounterReset, "disturb": Disturb}

Plain: TypeAlias = "dict[str, Any]"


_WHOLE, _NUMBER, _TEXT = "a whole number", "a number", "a text"
_VALUES = {
    **dict.fromkeys(("gpu", "from_call", "times", "field"), _WHOLE),
    **dict.fromkeys(("probability", "latency_s", "noise_share", "drift_per_hour", "quantum_w"), _NUMBER),
    **dict.fromkeys(("function", "error"), _TEXT),
}
_TYPES: Mapping[str, tuple[type, ...]] = {_WHOLE: (int,), _NUMBER: (int, float), _TEXT: (str,)}


def rule_from_plain(plain: Plain) -> Rule:
    """A rule from its JSON object: ``fault`` names its kind, the rest are its attributes. Raises UserError."""
    values = dict(plain)
    kind = _KINDS.get(str(values.pop("fault", None)))
    if kind is None:
        raise UserError(f"fault rule {plain}: set 'fault' to one of {', '.join(_KINDS)}")
    for name, value in values.items():
        wanted = _VALUES.get(name)
        if wanted is not None and (isinstance(value, bool) or not isinstance(value, _TYPES[wanted])):
            raise UserError(f"fault rule {plain}: {name} must be {wanted}; leave it out for its default")
    try:
        return kind(**values)
    except TypeError as error:
        raise UserError(f"fault rule {plain}: {error}") from error
