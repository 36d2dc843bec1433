"""What a clock controller counted."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counts:
    """Clock requests of one process by what became of them, and what was seen of the clocks in force.

    Attributes:
        requested: requests that hooks made.
        ignored: made while the controller was off, held or told to forget them.
        coalesced: replaced by a newer one that was due as well.
        dropped_before_raise: lowers too shortly before the next raise to be of use.
        dropped_too_soon: lowers too shortly after the previous request.
        unchanged: the clock asked for was the one asked for before.
        issued: calls to the actuator that succeeded.
        late_raises: raises in force later than needed, or never.
        retried: calls repeated after a failure.
        failures: calls that failed.
        read_backs: times that the clock in force was read.
        disobeyed: of these, clocks that were not what was asked for, without a reason.
        throttled: of these, clocks held down by power or temperature.
    """

    requested: int = 0
    ignored: int = 0
    coalesced: int = 0
    dropped_before_raise: int = 0
    dropped_too_soon: int = 0
    unchanged: int = 0
    issued: int = 0
    late_raises: int = 0
    retried: int = 0
    failures: int = 0
    read_backs: int = 0
    disobeyed: int = 0
    throttled: int = 0

    @property
    def dropped_lowers(self) -> int:
        """Lowers that were not issued for either reason."""
        return self.dropped_before_raise + self.dropped_too_soon

    def settled(self) -> int:
        """Requests whose end is known: these sum up to ``requested`` when nothing is under way and nothing failed for good."""
        kinds = ("ignored", "coalesced", "dropped_before_raise", "dropped_too_soon", "unchanged", "issued")
        return sum(int(getattr(self, kind)) for kind in kinds)

    def as_dict(self) -> dict[str, int]:
        """Name -> number."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 99th percentile of ``samples`` durations, in s. Of fewer than 100, the latter is the longest."""

    samples: int
    median_s: float
    p99_s: float

    @classmethod
    def of(cls, durations_s: Iterable[float]) -> "Quantiles | None":
        """The quantiles of these; None of none."""
        ordered = sorted(durations_s)
        if not ordered:
            return None
        nearest_rank = -(-99 * len(ordered) // 100)
        return cls(len(ordered), statistics.median(ordered), ordered[nearest_rank - 1])


@dataclass(frozen=True, slots=True)
class ControllerReport:
    """A controller's state in numbers.

    Attributes:
        counts: see :class:`Counts`.
        delay_s: from when a request was due until its call began. None before the first call.
        call_s: length of the calls. None before the first.
        last_clock_mhz: the clock last asked for with success (0: the GPU's own choice); None: not known.
        stopped: why the controller issues nothing any more; empty while it does.
        last_failure, last_disobeyed: the latest of each in words; empty for none.
    """

    counts: Counts
    delay_s: Quantiles | None
    call_s: Quantiles | None
    last_clock_mhz: int | None
    stopped: str
    last_failure: str
    last_disobeyed: str
