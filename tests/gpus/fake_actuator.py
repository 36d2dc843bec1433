"""An actuator that keeps what it was asked for; calls take time on a fake clock and may fail."""

from collections.abc import Callable


class FakeActuator:
    """``asked``: (time at which the call began in s, clock in MHz or 0) in order. ``failures`` are raised first, one per call."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0, sleep: Callable[[float], None] = lambda _: None) -> None:
        self.asked: list[tuple[float, int]] = []
        self.failures: list[Exception] = []
        self.call_s = 0.0
        self._clock, self._sleep = clock, sleep

    @property
    def clocks_mhz(self) -> list[int]:
        return [clock_mhz for _, clock_mhz in self.asked]

    def set_max_clock(self, clock_mhz: int) -> None:
        begin_s = self._clock()
        self._sleep(self.call_s)
        if self.failures:
            raise self.failures.pop(0)
        self.asked.append((begin_s, clock_mhz))

    def release(self) -> None:
        self.set_max_clock(0)
