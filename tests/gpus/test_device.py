import pytest

from megatron_energy.gpus.device import Gpu, request_sm_clock
from tests.gpus.fake_gpu import FakeGpu


def test_a_clock_is_requested_as_a_range_from_the_lowest() -> None:
    gpu = FakeGpu()
    request_sm_clock(gpu, 1200)
    assert gpu.clock_ranges_mhz == [(210, 1200)]


def test_an_unsupported_clock_is_refused_with_the_nearest_one() -> None:
    gpu = FakeGpu()
    with pytest.raises(ValueError, match="no SM clock of 1201 MHz; the nearest is 1200 MHz"):
        request_sm_clock(gpu, 1201)
    assert gpu.clock_ranges_mhz == []


def test_the_double_has_the_whole_interface() -> None:
    assert isinstance(FakeGpu(), Gpu)
