"""Steps of a counter that the test moves; energies by hand."""

import itertools
import math

import pytest

from megatron_energy.gpus.device import EventReason
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.sampler import ASLEEP, FAILED_POLL_S, POLL_S, POWER_POLL_S, GpuSampler, Sample, energy_j
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_gpu import FakeGpu

PERIOD_S = 0.1


class SteppingGpu(FakeGpu):
    """300 W, shown by a counter that steps every :data:`PERIOD_S`."""

    def __init__(self, clock: FakeClock, period_s: float = PERIOD_S) -> None:
        super().__init__()
        self.clock, self.period_s, self.offset_mj, self.read = clock, period_s, 0, 0

    def total_energy_mj(self) -> int | None:
        self._answer()
        self.read += 1
        steps = math.floor(self.clock() / self.period_s + 1e-9)
        return round(300e3 * steps * self.period_s) + self.offset_mj


def opened(gpu: FakeGpu, clock: FakeClock) -> GpuSampler:
    sampler = GpuSampler(gpu, clock)
    sampler._run = lambda: None  # type: ignore[method-assign]  # the test polls instead of the thread
    sampler.open()
    return sampler


def poll(sampler: GpuSampler, clock: FakeClock, duration_s: float) -> None:
    until_s = clock() + duration_s
    while clock() < until_s:
        clock.sleep(sampler.poll())


def test_steps_are_seen_when_they_happen_with_few_readings() -> None:
    clock = FakeClock(1000.03)
    gpu = SteppingGpu(clock)
    sampler = opened(gpu, clock)
    poll(sampler, clock, 10.0)
    samples = sampler.samples()
    assert sampler.period_s == pytest.approx(PERIOD_S, abs=POLL_S)
    assert [s.energy_mj for s in samples] == [round(300e3 * (1000.1 + n * PERIOD_S)) for n in range(len(samples))]
    assert all(-1e-6 < s.time_s - (1000.1 + n * PERIOD_S) <= POLL_S for n, s in enumerate(samples))
    assert len(samples) == 100 and gpu.read < 1 + 4 * PERIOD_S / POLL_S + len(samples) * (2 + (1 - ASLEEP) * PERIOD_S / POLL_S)
    assert {(s.clock_mhz, s.reasons) for s in samples} == {(1410, EventReason.NONE)}


def test_a_counter_that_falls_or_does_not_answer_is_a_gap() -> None:
    clock = FakeClock()
    gpu = SteppingGpu(clock)
    sampler = opened(gpu, clock)
    poll(sampler, clock, 1.0)
    gpu.offset_mj = -200_000_000
    poll(sampler, clock, 1.0)
    gpu.lost = True
    assert sampler.poll() == sampler.poll() == FAILED_POLL_S
    gpu.lost = False
    poll(sampler, clock, 1.0)
    gaps = [s.time_s for s in sampler.samples() if s.energy_mj is None]
    assert len(gaps) == 2
    assert math.isnan(energy_j(sampler.samples(), gaps[0] - 0.5, gaps[0] + 0.5))
    assert energy_j(sampler.samples(), gaps[0] + 0.3, gaps[1] - 0.3) == pytest.approx(300 * (gaps[1] - gaps[0] - 0.6), rel=0.05)


def test_at_rest_one_step_in_five_is_seen_and_energies_still_add_up() -> None:
    clock = FakeClock(1000.003)
    gpu = SteppingGpu(clock, period_s=0.0203)
    sampler = opened(gpu, clock)
    poll(sampler, clock, 2.0)
    begin_s, every = clock(), len(sampler.samples())
    assert every == pytest.approx(2.0 / 0.0203, abs=2)
    sampler.rest(0.1)
    assert sampler.period_s == pytest.approx(0.0203, rel=0.005), "an error of a millisecond would count four times"
    before = gpu.read
    poll(sampler, clock, 10.0)
    at_rest = sampler.samples()[every:]
    distances_s = [b.time_s - a.time_s for a, b in itertools.pairwise(at_rest)]
    assert distances_s == [pytest.approx(5 * 0.0203, abs=POLL_S)] * len(distances_s)
    assert gpu.read - before < 3.5 * len(at_rest)
    ends_s = [begin_s + 0.77 * n for n in range(13)]
    parts_j = [energy_j(sampler.samples(), a, b) for a, b in itertools.pairwise(ends_s)]
    assert parts_j == [pytest.approx(300 * 0.77, rel=0.02)] * 12
    assert sum(parts_j) == pytest.approx(300 * 12 * 0.77, rel=0.002)
    sampler.rest(0.0)
    seen = len(sampler.samples())
    poll(sampler, clock, 1.0)
    assert len(sampler.samples()) - seen == pytest.approx(1.0 / 0.0203, abs=5)


def test_a_step_that_was_slept_through_is_not_taken_for_one_that_was_seen() -> None:
    clock = FakeClock(1000.003)
    gpu = SteppingGpu(clock, period_s=0.02)
    sampler = opened(gpu, clock)
    poll(sampler, clock, 1.0)
    sampler.rest(0.1)
    clock.sleep(sampler.poll())
    for late_s in (0.007, 0.013, 0.019):  # the thread was not run when it should have been
        poll(sampler, clock, 0.5)
        clock.sleep(late_s)
    assert all((s.time_s / 0.02 + 1e-6) % 1 * 0.02 <= POLL_S + 1e-6 for s in sampler.samples())


def test_a_counter_that_falls_while_it_is_not_looked_at_is_a_gap() -> None:
    clock = FakeClock()
    gpu = SteppingGpu(clock, period_s=0.02)
    sampler = opened(gpu, clock)
    poll(sampler, clock, 1.0)
    sampler.rest(0.1)
    poll(sampler, clock, 1.0)
    gpu.offset_mj = -200_000_000
    poll(sampler, clock, 1.0)
    assert [s.energy_mj is None for s in sampler.samples()].count(True) == 1


def test_a_slow_counter_has_every_step_seen_at_rest_too() -> None:
    clock = FakeClock(1000.03)
    gpu = SteppingGpu(clock)
    sampler = opened(gpu, clock)
    poll(sampler, clock, 1.0)
    sampler.rest(0.1)
    poll(sampler, clock, 9.0)
    assert len(sampler.samples()) == 100


def test_a_gpu_without_a_counter_has_its_power_integrated_and_says_so() -> None:
    clock = FakeClock()
    gpu = FakeGpu(power_w=250.0)
    sampler = opened(gpu, clock)
    assert sampler.poll() == POWER_POLL_S
    poll(sampler, clock, 2.0)
    assert energy_j(sampler.samples(), 1000.5, 1001.5) == pytest.approx(250.0)
    assert sampler.source == "integrated power, because this GPU has no energy counter; instant power"


def test_a_gpu_that_cannot_be_read_is_refused() -> None:
    gpu = FakeGpu()
    gpu.lost = True
    with pytest.raises(GpuError):
        GpuSampler(gpu).open()


def test_its_thread_reads_and_ends() -> None:
    gpu = FakeGpu(power_w=100.0)
    sampler = GpuSampler(gpu)
    sampler.open()
    sampler.close()
    assert sampler._thread is not None and not sampler._thread.is_alive()


STEPS = [Sample(1.0, 1000), Sample(1.1, 11_000), Sample(1.2, 41_000), Sample(1.3, 41_000)]
"""100 W, then 300 W, then 0 W."""


@pytest.mark.parametrize(
    ("start_s", "end_s", "joules"),
    [
        (1.0, 1.1, 10.0),
        (1.05, 1.15, 5.0 + 15.0),
        (1.0, 1.3, 40.0),
        (0.9, 1.0, 10.0),  # before the first step: as after it
        (1.1, 1.1, 0.0),
        (1.25, 1.5, 0.0),  # beyond the last step: as before it
    ],
)
def test_energy_between_steps_is_drawn_straight(start_s: float, end_s: float, joules: float) -> None:
    assert energy_j(STEPS, start_s, end_s) == pytest.approx(joules, abs=1e-9)


def test_energies_of_consecutive_stretches_add_up() -> None:
    ends_s = [1.0, 1.03, 1.11, 1.12, 1.29, 1.3]
    parts = [energy_j(STEPS, a, b) for a, b in itertools.pairwise(ends_s)]
    assert sum(parts) == pytest.approx(40.0)


def test_too_few_steps_are_no_figure() -> None:
    assert math.isnan(energy_j(STEPS[:1], 0.0, 2.0))
    assert math.isnan(energy_j([], 0.0, 2.0))


def test_what_is_not_needed_any_more_is_forgotten() -> None:
    clock = FakeClock()
    sampler = opened(SteppingGpu(clock), clock)
    poll(sampler, clock, 5.0)
    before = sampler.samples()
    sampler.forget_before(1003.05)
    kept = sampler.samples()
    assert kept[0].time_s <= 1003.05 < kept[1].time_s
    assert energy_j(kept, 1003.06, 1004.0) == energy_j(before, 1003.06, 1004.0)
