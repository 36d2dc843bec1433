import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from megatron_energy.gpus.issuer import Issuer, Settings
from megatron_energy.gpus.turns import NodeTurns
from tests.emulated_gpus import FakeClock
from tests.gpus.fake_actuator import FakeActuator


def turns_of(folder: Path, clock: FakeClock, slots: int = 3) -> list[NodeTurns]:
    return [NodeTurns(folder / "turns", slot, slots, clock, clock.sleep) for slot in range(slots)]


def test_a_lower_waits_while_another_process_raises(tmp_path: Path) -> None:
    clock = FakeClock()
    one, two, _ = turns_of(tmp_path, clock)
    assert two.wait_for_raises(0.02) == 0.0
    with one.raising():
        assert two.wait_for_raises(0.02) == pytest.approx(0.02, abs=0.001)
        assert one.wait_for_raises(0.02) == 0.0  # its own raise is no reason
    assert two.wait_for_raises(0.02) == 0.0


def test_the_wait_ends_when_the_raise_does(tmp_path: Path) -> None:
    clock = FakeClock()
    one, two, _ = turns_of(tmp_path, clock)
    with one.raising(limit_s=0.004):  # announced for 4 ms: longer it holds nobody up
        assert two.wait_for_raises(0.02) == pytest.approx(0.004, abs=0.001)


def raise_and_die(path: Path) -> None:
    with NodeTurns(path, 0, 2).raising(limit_s=0.5):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_died_holds_nobody_up_for_long(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=raise_and_die, args=(tmp_path / "turns",))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    other = NodeTurns(tmp_path / "turns", 1, 2, clock=lambda: time.monotonic() + 1.0)
    assert other.wait_for_raises(60.0) == pytest.approx(0.0, abs=1.0)


def test_raises_come_before_lowers_of_other_gpus(tmp_path: Path) -> None:
    """While GPU 0's raise is at the driver, GPU 1's lower waits, and GPU 2's raise does not."""
    clock = FakeClock()
    zero, one, two = turns_of(tmp_path, clock)
    order: list[str] = []

    class Recording(FakeActuator):
        def __init__(self, name: str) -> None:
            super().__init__(clock)
            self._name = name

        def set_max_clock(self, clock_mhz: int) -> None:
            order.append(f"{self._name} at {clock.now_s - 1000.0:.3f} s")

    lowering = Issuer(Recording("lower"), Settings(turn_s=0.02), None, one, clock, clock.sleep)
    raising = Issuer(Recording("raise"), Settings(turn_s=0.02), None, two, clock, clock.sleep)
    raising.handle(600, clock.now_s)
    order.clear()
    with zero.raising(limit_s=0.006):
        lowering.handle(900, clock.now_s)
        assert order == ["lower at 0.006 s"]
    with zero.raising(limit_s=0.006):
        raising.handle(0, clock.now_s)
    assert order == ["lower at 0.006 s", "raise at 0.006 s"]


def test_the_file_is_private_and_slots_are_checked(tmp_path: Path) -> None:
    NodeTurns(tmp_path / "turns", 0, 8)
    assert (tmp_path / "turns").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "turns").stat().st_size == 64
    with pytest.raises(ValueError, match="slot 8 of 8"):
        NodeTurns(tmp_path / "turns", 8, 8)


def test_a_process_that_needs_less_room_does_not_shorten_the_file(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    NodeTurns(path, 2, 3)
    NodeTurns(path, 0, 1)
    assert path.stat().st_size == 3 * 8
