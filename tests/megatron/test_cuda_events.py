"""CUDA events without CUDA: stand-ins that tell elapsed times as CUDA does."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import is_installed
from tests.emulated_gpus import FakeClock

if not is_installed("torch"):
    pytest.skip("needs torch, which is an extra", allow_module_level=True)

from megatron_energy.gpus.errors import GpuError
from megatron_energy.megatron import cuda_events
from megatron_energy.megatron.cuda_events import DRIFT, REBASE_S, CudaEvent, CudaEventSource, GpuClock, hold_during_capture

WAKE_S = 0.0001


class Gpu:
    """A GPU whose clock runs ``rate`` times as fast as the host's; the host wakes ``wake_s`` late."""

    def __init__(self, rate: float = 1.0) -> None:
        self.host = FakeClock(500.0)
        self.rate = rate
        self.wake_s = WAKE_S

    def event_at(self, host_s: float) -> "FakeEvent":
        event = FakeEvent(self)
        event.host_s = host_s
        return event


class FakeEvent:
    """A torch.cuda.Event that is reached at ``host_s``."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.host_s = gpu.host.now_s
        self.error = ""

    def record(self) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.host_s = self.gpu.host.now_s

    def synchronize(self) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.gpu.host.now_s = max(self.gpu.host.now_s, self.host_s + self.gpu.wake_s)

    def elapsed_time(self, end: "FakeEvent") -> float:
        return (end.host_s - self.host_s) * self.gpu.rate * 1e3


def test_late_wakings_do_not_make_an_event_late() -> None:
    gpu = Gpu()
    gpu.wake_s = 0.004  # the first waking is late, so the first times are
    clock = GpuClock(gpu.event_at(500.0), gpu.host)
    for host_s, wake_s, error_s in ((501.0, 0.004, 0.004), (502.0, WAKE_S, WAKE_S), (503.0, 0.011, WAKE_S), (504.0, 0.5, WAKE_S)):
        gpu.wake_s = wake_s
        event = gpu.event_at(host_s)
        event.synchronize()
        reached_s, same = clock.reached_s(event)
        assert reached_s == pytest.approx(host_s + error_s, abs=1e-9)
        assert same is event


@pytest.mark.parametrize("rate", [1 - DRIFT, 1.0, 1 + DRIFT])
def test_clocks_that_drift_apart_are_followed(rate: float) -> None:
    gpu = Gpu(rate)
    clock = GpuClock(gpu.event_at(500.0), gpu.host)
    spares = 0
    for minute in range(1, 600):
        event = gpu.event_at(500.0 + 7.0 * minute)
        event.synchronize()
        reached_s, use = clock.reached_s(event)
        spares += use is not event
        assert -DRIFT * (REBASE_S + 7.0) <= reached_s - event.host_s <= WAKE_S + 2 * DRIFT * (REBASE_S + 7.0)
    assert spares == 599 // 9  # every 63 s the elapsed times start anew


def test_an_event_is_recorded_waited_for_and_recorded_again() -> None:
    gpu = Gpu()
    clock = GpuClock(gpu.event_at(500.0), gpu.host)
    event = CudaEvent(FakeEvent(gpu), clock)
    for _ in range(100):
        gpu.host.now_s += 1.7
        event.record()
        recorded_s = gpu.host.now_s
        event.synchronize()
        assert event.time_s() == pytest.approx(recorded_s, abs=2 * WAKE_S + 2 * DRIFT * REBASE_S)


def test_cudas_errors_are_gpu_errors_in_one_line() -> None:
    gpu = Gpu()
    clock = GpuClock(gpu.event_at(500.0), gpu.host)
    fake = FakeEvent(gpu)
    fake.error = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"
    event = CudaEvent(fake, clock)
    for call in (event.record, event.synchronize):
        with pytest.raises(GpuError, match=r"^CUDA error: an illegal memory access was encountered$"):
            call()


def test_the_source_makes_blocking_events_with_timing_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, made, devices = Gpu(), [], []

    def event(**options: bool) -> FakeEvent:
        made.append(options)
        return FakeEvent(gpu)

    monkeypatch.setattr(cuda_events.torch.cuda, "Event", event)
    monkeypatch.setattr(cuda_events.torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(cuda_events.torch.cuda, "set_device", devices.append)
    source = CudaEventSource()
    source.new_event()
    source.bind_thread()
    assert made == [{"enable_timing": True, "blocking": True}] * 2
    assert devices == [3]


class Controller:
    """Counts how deep it is held."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.log.append("hold")
        yield
        self.log.append("go on")


def graph_class(controller: Controller) -> Any:
    class Graph:
        fails = False

        def capture_begin(self, pool: str = "") -> str:
            if self.fails:
                raise RuntimeError("cannot capture")
            controller.log.append(f"begin {pool}")
            return "begun"

        def capture_end(self) -> None:
            controller.log.append("end")
            if self.fails:
                raise RuntimeError("capture was invalidated")

    return Graph


def test_a_capture_holds_the_controller() -> None:
    controller = Controller()
    graph = graph_class(controller)
    hold_during_capture(controller, graph)
    assert graph().capture_begin(pool="p") == "begun"
    graph().capture_end()
    assert controller.log == ["hold", "begin p", "end", "go on"]


def test_a_failed_capture_lets_it_go_on() -> None:
    controller = Controller()
    graph = graph_class(controller)
    hold_during_capture(controller, graph)
    graph().capture_begin()
    graph.fails = True
    with pytest.raises(RuntimeError, match="invalidated"):
        graph().capture_end()
    with pytest.raises(RuntimeError, match="cannot capture"):
        graph().capture_begin()
    assert controller.log == ["hold", "begin ", "end", "go on", "hold", "go on"]
