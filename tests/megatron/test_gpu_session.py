"""What a rank's GPU is timed with, with and without CUDA; a stand-in for torch.cuda."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import is_installed

if not is_installed("torch"):
    pytest.skip("needs torch, which is an extra", allow_module_level=True)

from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.host_events import HostEventSource
from megatron_energy.megatron import cuda_events, gpu_session, kernel_speed
from megatron_energy.megatron.cuda_events import CudaEventSource
from megatron_energy.megatron.kernel_speed import MatrixProduct
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.session.controlled_session import ControlledSession
from megatron_energy.session.options import EnergyOptions
from tests.session.facts import job

FACTS = job(pipeline=2).ranks[1]
PRODUCT_MS = 0.7


class FakeEvent:
    """Every product takes :data:`PRODUCT_MS`."""

    def __init__(self, **_settings: bool) -> None:
        self.recorded = 0

    def record(self) -> None:
        self.recorded += 1

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _end: "FakeEvent") -> float:
        return PRODUCT_MS


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with CUDA, whose current device is 5."""
    for name, value in {"is_initialized": lambda: True, "current_device": lambda: 5, "Event": FakeEvent}.items():
        monkeypatch.setattr(gpu_session.torch.cuda, name, value)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the session was started with; the session does nothing."""
    found: dict[str, Any] = {}
    session = object.__new__(ControlledSession)
    session.controller = SimpleNamespace(hold=None)  # type: ignore[assignment]

    def start(_options: object, _facts: object, _exchange: object, gpu: object, work: object, _say: object) -> ControlledSession:
        found.update(gpu=gpu, work=work)
        return session

    monkeypatch.setattr(gpu_session, "start", start)
    monkeypatch.setattr(gpu_session, "gpu_for_cuda_device", lambda index: f"GPU of CUDA device {index}")
    monkeypatch.setattr(cuda_events, "hold_during_capture", lambda controller: found.update(held=controller))
    found["session"] = session
    return found


def control(recorder: Recorder) -> Any:
    return gpu_session.controlled(EnergyOptions(policy="segments"), FACTS, None, recorder, True, print)  # type: ignore[arg-type]


def test_with_cuda_points_are_cuda_events_and_captures_hold_the_controller(cuda: None, started: dict[str, Any]) -> None:
    recorder = Recorder()
    session = control(recorder)
    assert started["gpu"] == "GPU of CUDA device 5"
    assert isinstance(started["work"].events, CudaEventSource) and isinstance(started["work"].kernel_time_s, MatrixProduct)
    assert started["held"] is session.controller
    assert recorder.mark == session.mark and recorder.request == session.request


def test_without_cuda_points_are_host_times(started: dict[str, Any]) -> None:
    recorder = Recorder()
    control(recorder)
    assert started["gpu"] == "GPU of CUDA device 0"  # of the rank's index on its node
    assert isinstance(started["work"].events, HostEventSource) and started["work"].kernel_time_s is None
    assert "held" not in started and recorder.mark is not None


def test_a_matrix_product_tells_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[tuple[int, ...]] = []
    torch = kernel_speed.torch
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, dtype, device: ones(*size, dtype=dtype))
    monkeypatch.setattr(torch, "matmul", lambda left, right, out: products.append(tuple(left.shape)))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    product = MatrixProduct(8)
    assert [product(), product()] == [PRODUCT_MS / 1e3] * 2
    assert products == [(8, 8)] * 3, "the first one loads the library and is not timed"


def test_for_want_of_memory_speeds_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_size: int, **_settings: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 32 MiB\nmore lines")

    monkeypatch.setattr(kernel_speed.torch, "ones", fails)
    with pytest.raises(GpuError, match=r"^CUDA out of memory. Tried to allocate 32 MiB$"):
        MatrixProduct()()
