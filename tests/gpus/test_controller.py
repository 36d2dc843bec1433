"""The controller's thread, on events that the test completes one by one."""

import os
import threading
from collections.abc import Iterator

import pytest

from megatron_energy.emulation.streams import HostStream
from megatron_energy.gpus.controller import ClockController
from megatron_energy.gpus.errors import GpuError, NoPermission
from megatron_energy.gpus.issuer import Settings
from tests.gpus.fake_actuator import FakeActuator
from tests.gpus.manual_events import ManualStream, eventually

SETTINGS = Settings(lead_s=1000.0, least_interval_s=0.0, retry_pause_s=0.0)
"""Nothing is late and nothing comes too soon, however slow this machine is; tests of lowers say when the next raise comes."""


class Bench:
    def __init__(self) -> None:
        self.stream = ManualStream()
        self.actuator = FakeActuator()
        self.said: list[str] = []
        self.controller = ClockController(self.actuator, self.stream, SETTINGS, on_stop=self.said.append)
        self.controller.start()

    def counted(self) -> dict[str, int]:
        return {name: number for name, number in self.controller.report().counts.as_dict().items() if number}

    def serves(self, number: int) -> None:
        """Wait until that many requests have come to an end."""
        eventually(lambda: self.controller.report().counts.settled() == number)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    for event in made.stream.recorded:
        event.reached.set()
    made.controller.close()


def controller_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "clock-controller"]


def test_a_request_waits_for_the_gpu(bench: Bench) -> None:
    bench.controller.request(1080)
    bench.controller.request(900)
    assert bench.actuator.asked == []
    bench.stream.reach(0)
    bench.serves(1)
    assert bench.actuator.clocks_mhz == [1080]
    bench.stream.reach(1)
    bench.serves(2)
    assert bench.actuator.clocks_mhz == [1080, 900]
    assert bench.counted() == {"requested": 2, "issued": 2}


def test_there_is_one_thread_bound_to_its_device(bench: Bench) -> None:
    bench.controller.request(1080)
    bench.stream.reach(0)
    bench.serves(1)
    assert len(controller_threads()) == 1
    assert bench.stream.bound == ["clock-controller"]
    bench.controller.close()
    assert controller_threads() == []


def test_events_come_from_a_pool(bench: Bench) -> None:
    made = bench.stream.made
    for number in range(made + 10):
        bench.controller.request(1000 + number % 2)
        bench.stream.reach(number)
        bench.serves(number + 1)
    assert bench.stream.made == made
    for number in range(made + 10):  # more than the pool holds are outstanding: more are made, nothing blocks
        bench.controller.request(900 + number)
    assert bench.stream.made >= made + 10


def test_a_delay_starts_when_the_gpu_gets_there(bench: Bench) -> None:
    bench.controller.request(1080, delay_s=3600.0)
    bench.controller.request(1410)
    bench.stream.reach(0)
    bench.stream.reach(1)
    assert bench.actuator.asked == []  # in order: the second waits for the first
    bench.controller.to_maximum()  # ends the waiting
    bench.serves(2)
    assert bench.counted() == {"requested": 2, "ignored": 2}
    bench.controller.request(900, delay_s=0.001)
    bench.stream.reach(2)
    bench.serves(3)
    assert bench.actuator.clocks_mhz == [900]


def test_newer_requests_replace_older_ones_only_when_all_are_due(bench: Bench) -> None:
    for clock_mhz in (1080, 900, 1200, 600):
        bench.controller.request(clock_mhz)
    bench.controller.caught_up()  # the host has waited for the GPU: all four are due
    bench.controller.request(1410)  # this one is not known to be
    for number in range(4):
        bench.stream.reach(number)
    bench.serves(4)
    assert bench.actuator.clocks_mhz == [600]
    bench.stream.reach(4)
    bench.serves(5)
    assert bench.actuator.clocks_mhz == [600, 1410]
    assert bench.counted() == {"requested": 5, "coalesced": 3, "issued": 2}


def test_a_newer_request_with_a_delay_replaces_nothing_before_it_is_due(bench: Bench) -> None:
    bench.controller.request(1080)
    bench.controller.request(900, delay_s=3600.0)
    bench.controller.caught_up()
    bench.stream.reach(0)
    bench.stream.reach(1)
    bench.serves(1)
    assert bench.actuator.clocks_mhz == [1080]


def test_to_maximum_forgets_what_was_asked(bench: Bench) -> None:
    bench.controller.request(1080)
    bench.stream.reach(0)
    bench.serves(1)
    bench.controller.request(900)
    bench.controller.to_maximum()
    bench.stream.reach(1)
    eventually(lambda: bench.actuator.clocks_mhz == [1080, 0])
    assert bench.counted() == {"requested": 2, "issued": 1, "ignored": 1}
    bench.controller.request(900)  # a newer plan
    bench.stream.reach(2)
    bench.serves(3)
    assert bench.actuator.clocks_mhz == [1080, 0, 900]


def test_nothing_is_outstanding_while_it_is_held(bench: Bench) -> None:
    bench.controller.request(1080)
    reached = threading.Timer(0.01, bench.stream.reach, [0])
    reached.start()
    with bench.controller.hold():
        assert bench.stream.recorded[0].reached.is_set()
        assert bench.actuator.clocks_mhz == [1080, 0]
        with bench.controller.hold():
            bench.controller.request(900)
        bench.controller.request(900)
        assert len(bench.stream.recorded) == 1
    reached.join()
    bench.controller.request(900)
    bench.stream.reach(1)
    bench.serves(4)
    assert bench.counted() == {"requested": 4, "issued": 2, "ignored": 2}


def test_closing_gives_the_clock_back_and_forgets_the_rest(bench: Bench) -> None:
    bench.controller.request(1080)
    bench.controller.request(900, delay_s=3600.0)
    for number in (0, 1):
        bench.stream.reach(number)
    bench.serves(1)
    bench.controller.close()
    bench.controller.close()
    assert bench.actuator.clocks_mhz == [1080, 0]
    bench.controller.request(600)
    assert len(bench.stream.recorded) == 2


def test_closing_does_not_wait_for_a_gpu_that_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron_energy.gpus.controller.CLOSING_S", 0.01)
    bench.controller.request(1080)
    bench.stream.reach(0)
    bench.serves(1)
    bench.controller.request(900)
    bench.controller.close()
    assert bench.actuator.clocks_mhz == [1080, 0]


def test_a_forked_child_leaves_the_clock_alone(bench: Bench) -> None:
    bench.controller.request(1080)
    bench.stream.reach(0)
    bench.serves(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            bench.controller.close()
            status = 0 if bench.actuator.clocks_mhz == [1080] else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_when_control_is_lost_it_stops_and_says_so_once(bench: Bench) -> None:
    bench.actuator.failures = [NoPermission("not yours")] * 4
    bench.controller.request(1080)
    bench.stream.reach(0)
    eventually(lambda: bool(bench.said))
    assert bench.said == ["clock control stopped: not yours; the clock could not be given back: not yours"]
    bench.controller.request(900)
    assert len(bench.stream.recorded) == 1  # hooks record nothing any more
    with bench.controller.hold():
        pass
    bench.controller.request(900)
    assert bench.counted() == {"requested": 3, "ignored": 2, "failures": 4}
    assert bench.controller.report().stopped == bench.said[0]


def test_an_event_that_fails_stops_the_controller(bench: Bench) -> None:
    bench.controller.request(1080)
    bench.stream.reach(0)
    bench.serves(1)
    bench.controller.request(900)
    bench.stream.recorded[1].error = "CUDA error: an illegal memory access was encountered"
    bench.stream.reach(1)
    eventually(lambda: bool(bench.said))
    assert bench.said == ["clock control stopped: CUDA error: an illegal memory access was encountered; the GPU chooses its clock"]
    assert bench.actuator.clocks_mhz == [1080, 0]


def test_an_event_that_cannot_be_recorded_does_not_harm_the_caller(bench: Bench) -> None:
    bench.stream.fails = "CUDA error: out of memory"
    bench.controller.request(1080)
    eventually(lambda: bool(bench.said))
    assert bench.said == ["clock control stopped: CUDA error: out of memory; the GPU chooses its clock"]


def test_a_thread_that_cannot_be_bound_says_so() -> None:
    stream, said = ManualStream(), []
    controller = ClockController(FakeActuator(), stream, on_stop=said.append)
    stream.fails = "invalid device ordinal"
    controller.start()
    eventually(lambda: bool(said))
    with controller.hold():
        pass
    controller.close()
    assert said == ["clock control stopped: invalid device ordinal; the GPU chooses its clock"]


def test_failures_are_counted_and_the_next_request_is_issued(bench: Bench) -> None:
    bench.actuator.failures = [GpuError("timeout")]
    bench.controller.request(1080)
    bench.stream.reach(0)
    eventually(lambda: bench.controller.report().counts.failures == 1)
    bench.controller.request(1200)
    bench.stream.reach(1)
    bench.serves(1)
    assert bench.actuator.clocks_mhz == [1200]
    assert bench.said == []


def test_pythons_switch_interval_is_put_back() -> None:
    import sys

    before_s = sys.getswitchinterval()
    controller = ClockController(FakeActuator(), ManualStream())
    controller.start(switch_interval_s=0.0005)
    assert sys.getswitchinterval() == pytest.approx(0.0005)
    controller.close()
    assert sys.getswitchinterval() == pytest.approx(before_s)


def test_on_a_host_without_cuda_it_runs_on_emulated_streams() -> None:
    stream, actuator = HostStream(), FakeActuator()
    controller = ClockController(actuator, stream, SETTINGS)
    controller.start()
    for clock_mhz in (1080, 1410, 900):
        stream.enqueue(0.002)
        controller.request(clock_mhz)
    eventually(lambda: controller.report().counts.issued == 3)
    controller.close()
    assert actuator.clocks_mhz == [1080, 1410, 900, 0]
    report = controller.report()
    assert report.delay_s is not None and report.delay_s.samples == 3
