"""What a sweep learns from marks and a stepping counter, on a GPU whose times and powers are known."""

import math

import pytest

from megatron_energy.gpus.device import EventReason
from megatron_energy.gpus.host_events import HostEventSource
from megatron_energy.gpus.sampler import GpuSampler
from megatron_energy.records.iteration import Activity
from megatron_energy.session.clock_trace import TracedActuator
from megatron_energy.session.directive import ITERATION_BEGIN
from megatron_energy.session.instruments import Instruments
from megatron_energy.session.learning import measure, steady_spans
from megatron_energy.session.rank_records import Recording
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_gpu import FakeGpu

PERIOD_S = 0.1
TOP_MHZ, LOW_MHZ, IN_FORCE_S = 1410, 1200, 0.02
POWERS_W = {"forward": 300.0, "backward": 350.0, "wait": 90.0, "optimizer": 200.0}
TIMES_S = {"forward": 0.083, "backward": 0.171, "wait": 0.037, "optimizer": 0.059}
ORDER: tuple[Activity, ...] = ("forward", "forward", "wait", "backward", "forward", "wait", "backward", "backward", "optimizer")
SLOWER, LESS = 1.1, 0.8  # of times and of powers at the low clock


class WorkingGpu(FakeGpu):
    """Its counter shows, every :data:`PERIOD_S`, what was used until then; its clock falls when it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.watts, self.used_mj, self.shown_mj = clock, 60.0, 0.0, 0
        self.in_force_mhz = TOP_MHZ

    def run(self, duration_s: float) -> None:
        """Work, or idle, at the present power."""
        end_s = self.clock() + duration_s
        while self.clock() < end_s - 1e-12:
            next_step_s = (math.floor(self.clock() / PERIOD_S + 1e-9) + 1) * PERIOD_S
            part_s = min(end_s, next_step_s) - self.clock()
            self.clock.sleep(part_s)
            self.used_mj += 1e3 * self.watts * part_s
            if abs(self.clock() - next_step_s) < 1e-9:
                self.shown_mj = round(self.used_mj)

    def total_energy_mj(self) -> int | None:
        return self.shown_mj

    def sm_clock_mhz(self) -> int:
        return self.in_force_mhz

    def event_reasons(self) -> EventReason:
        return EventReason.NONE

    def set_max_clock(self, clock_mhz: int) -> None:
        """As an actuator."""
        self.in_force_mhz = clock_mhz

    def release(self) -> None:
        self.in_force_mhz = TOP_MHZ


class Rank:
    """One rank's iterations; the sampler is polled as its thread would."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.gpu = WorkingGpu(self.clock)
        self.sampler = GpuSampler(self.gpu, self.clock)
        self.sampler._run = lambda: None  # type: ignore[method-assign]
        self.sampler.open()
        self.poll_s = self.clock()
        self.actuator = TracedActuator(self.gpu, self.clock)
        parts = (HostEventSource(self.clock), Recording(0, 1e9, emulated=True), TOP_MHZ, IN_FORCE_S, self.clock)
        self.instruments = Instruments(self.sampler, self.actuator, *parts)

    def run(self, duration_s: float) -> None:
        end_s = self.clock() + duration_s
        while self.clock() < end_s:
            self.gpu.run(max(min(self.poll_s, end_s) - self.clock(), 0.0))
            if self.clock() >= self.poll_s:
                self.poll_s = self.clock() + self.sampler.poll()

    def iterate(self, count: int):
        """Records of so many iterations."""
        slower, less = (SLOWER, LESS) if self.gpu.in_force_mhz == LOW_MHZ else (1.0, 1.0)
        ended = []
        for number in range(count):
            self.instruments.mark(ITERATION_BEGIN)
            for index, activity in enumerate(ORDER):
                chunk = -1 if activity in ("wait", "optimizer") else 0
                self.gpu.watts = POWERS_W[activity] * less
                self.instruments.mark((activity, chunk, index if chunk == 0 else -1, "begin"))
                self.run(TIMES_S[activity] * slower)
                self.instruments.mark((activity, chunk, index if chunk == 0 else -1, "end"))
            ended.append(self.instruments.end(number, False))
        self.run(0.2)
        return self.instruments.records(ended)


@pytest.fixture(scope="module")
def rank() -> Rank:
    return Rank()


def test_times_and_powers_of_the_baseline_and_of_a_lower_clock(rank: Rank) -> None:
    rank.run(1.0)  # the sampler finds the counter's period
    for clock_mhz, slower, less in ((TOP_MHZ, 1.0, 1.0), (LOW_MHZ, SLOWER, LESS)):
        if clock_mhz != TOP_MHZ:
            rank.actuator.set_max_clock(clock_mhz)
        records = rank.iterate(12)
        assert sum(r.energy_j for r in records) == pytest.approx(
            12 * sum(POWERS_W[a] * TIMES_S[a] for a in ORDER) * slower * less, rel=0.005
        )
        found = measure([records], clock_mhz)
        for activity, power_w in POWERS_W.items():
            measured = found[activity, 0 if activity in ("forward", "backward") else -1]  # type: ignore[index]
            assert measured.time_s == pytest.approx(TIMES_S[activity] * slower, rel=1e-5)
            assert measured.power_w == pytest.approx(power_w * less, rel=0.01), activity


def test_what_ran_before_the_clock_was_in_force_is_not_learned_from(rank: Rank) -> None:
    rank.actuator.release()
    rank.run(1.0)
    rank.actuator.set_max_clock(LOW_MHZ)
    records = rank.iterate(2)
    assert len(steady_spans(records, LOW_MHZ)) == 2 * len(ORDER) - 1  # the first operation began too early
    assert steady_spans(records, TOP_MHZ) == []
