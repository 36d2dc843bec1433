import pytest

from megatron_energy.gpus.sensors import SensorCheck, check_sensors
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_gpu import FakeGpu


class SteppingGpu(FakeGpu):
    """Draws 200 W; its counter steps every 100 ms and shows ``factor`` times the energy."""

    def __init__(self, clock: FakeClock, factor: float = 1.0) -> None:
        super().__init__(energy_mj=0, power_w=200.0)
        self.clock, self.factor = clock, factor

    def total_energy_mj(self) -> int | None:
        tenths = int((self.clock() + 1e-9) * 10)
        return round(tenths * 0.1 * 200_000 * self.factor)


def check(factor: float = 1.0, duration_s: float = 1.0) -> SensorCheck:
    clock = FakeClock(10.05)
    return check_sensors(SteppingGpu(clock, factor), duration_s, poll_s=0.01, clock=clock, sleep=clock.sleep)


def test_the_counters_period_is_found() -> None:
    result = check()
    assert result.update_period_s == pytest.approx(0.1)
    assert result.counter_j == pytest.approx(result.power_j)
    assert result.agrees


def test_a_counter_that_disagrees_with_the_power_is_noticed() -> None:
    result = check(factor=1.5)
    assert result.disagreement == pytest.approx(0.5)
    assert result.agrees is False


def test_too_short_a_look_says_nothing() -> None:
    result = check(duration_s=0.15)
    assert (result.update_period_s, result.agrees) == (None, None)
