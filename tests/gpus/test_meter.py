import pytest

from megatron_energy.gpus.errors import GpuLost
from megatron_energy.gpus.meter import EnergyMeter, Lap, meter_for
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_gpu import FakeGpu


def meter_of(gpu: FakeGpu) -> tuple[EnergyMeter, FakeClock]:
    clock = FakeClock(10.0)
    return EnergyMeter(gpu, clock, background=False), clock


def test_laps_are_differences_of_the_counter() -> None:
    gpu = FakeGpu(energy_mj=5_000)
    meter, clock = meter_of(gpu)
    meter.open()
    clock.now_s, gpu.energy_mj = 12.0, 5_800
    assert meter.lap() == Lap(10.0, 12.0, 0.8)
    clock.now_s, gpu.energy_mj = 13.0, 6_000
    lap = meter.lap()
    assert lap == Lap(12.0, 13.0, 0.2)
    assert lap is not None and lap.power_w == pytest.approx(0.2)
    assert meter.total_j == pytest.approx(1.0)
    assert (meter.gaps, meter.source, meter.source_reason) == (0, "counter", "energy counter")


def test_a_meter_that_was_not_opened_does_nothing() -> None:
    gpu = FakeGpu(energy_mj=1)
    gpu.lost = True
    meter, _ = meter_of(gpu)
    assert meter.lap() is None
    meter.poll()
    meter.close()
    assert (meter.total_j, meter.gaps, meter.is_open) == (0.0, 0, False)


def test_a_falling_counter_is_a_gap_and_the_next_lap_is_sound() -> None:
    gpu = FakeGpu(energy_mj=9_000)
    meter, _ = meter_of(gpu)
    meter.open()
    gpu.energy_mj = 100
    lap = meter.lap()
    assert lap is not None and lap.energy_j is None and "fell from 9000 to 100 mJ" in lap.reason
    assert lap.power_w is None
    gpu.energy_mj = 600
    lap = meter.lap()
    assert lap is not None and lap.energy_j == 0.5
    assert (meter.gaps, meter.total_j) == (1, 0.5)


def test_a_counter_that_does_not_answer_makes_gaps_on_both_sides() -> None:
    gpu = FakeGpu(energy_mj=1_000)
    meter, _ = meter_of(gpu)
    meter.open()
    gpu.lost = True
    lap = meter.lap()
    assert lap is not None and lap.energy_j is None and lap.reason == "GPU is lost"
    gpu.lost, gpu.energy_mj = False, 2_000
    lap = meter.lap()
    assert lap is not None and lap.energy_j is None and "at the start of the lap" in lap.reason
    gpu.energy_mj = 2_500
    lap = meter.lap()
    assert lap is not None and lap.energy_j == 0.5
    assert meter.gaps == 2


def test_power_is_integrated_where_there_is_no_counter_and_it_says_so() -> None:
    gpu = FakeGpu(power_w=100.0)
    meter, clock = meter_of(gpu)
    meter.open()
    clock.now_s, gpu.watts = 11.0, 200.0
    meter.poll()  # a trapezoid of 100 to 200 W over 1 s
    clock.now_s = 13.0
    lap = meter.lap()
    assert lap is not None and lap.energy_j == pytest.approx(150.0 + 400.0)
    clock.now_s = 14.0
    lap = meter.lap()
    assert lap is not None and lap.energy_j == pytest.approx(200.0)
    assert meter.source == "power"
    assert "no energy counter" in meter.source_reason


def test_power_that_was_not_sampled_for_long_is_a_gap() -> None:
    gpu = FakeGpu(power_w=100.0)
    meter, clock = meter_of(gpu)
    meter.open()
    clock.now_s += 60.0
    lap = meter.lap()
    assert lap is not None and lap.energy_j is None and lap.reason == "power was not sampled for 60.0 s"


def test_the_background_thread_samples_and_ends() -> None:
    gpu = FakeGpu(power_w=100.0)
    meter = EnergyMeter(gpu)
    meter.open()
    lap = meter.lap()
    assert lap is not None and lap.energy_j == pytest.approx(100.0 * (lap.end_s - lap.start_s), abs=1.0)
    meter.close()
    assert not meter.is_open
    meter.close()


def test_opening_a_lost_gpu_raises() -> None:
    gpu = FakeGpu(energy_mj=1)
    gpu.lost = True
    meter, _ = meter_of(gpu)
    with pytest.raises(GpuLost):
        meter.open()
    assert meter.lap() is None


def test_there_is_one_meter_per_gpu() -> None:
    one, same = FakeGpu(energy_mj=1), FakeGpu(energy_mj=1)
    other = FakeGpu(energy_mj=1)
    other.uuid = "GPU-1"
    assert meter_for(one) is meter_for(same)
    assert meter_for(other) is not meter_for(one)
