from pathlib import Path

import pytest

from megatron_energy.clockd.controls import LONGEST_RETRY_S, Controls, restore_for
from megatron_energy.clockd.messages import Refusal
from megatron_energy.clockd.rules import Range
from megatron_energy.clockd.saved import Saved, StateDirectory
from megatron_energy.gpus.errors import NotSupported
from tests.clockd.fake_devices import Desk, FakeDevice
from tests.emulated_gpus import FakeClock

A = "GPU-a"


def test_clocks_are_locked_from_the_lowest_and_unlocked_again() -> None:
    desk = Desk()
    desk.controls.set_clock(A, 810)
    assert desk.devices[A].locked_mhz == (210, 810)
    assert desk.controls.restore(A)
    assert desk.devices[A].locked_mhz is None


def test_the_sites_range_bounds_and_is_restored() -> None:
    desk = Desk(site_mhz=Range(510, 1110))
    desk.controls.set_clock(A, 810)
    assert desk.devices[A].locked_mhz == (510, 810)
    desk.controls.set_clock(A, None)
    assert desk.devices[A].locked_mhz == (510, 1110)


def test_nothing_is_touched_that_was_not_changed() -> None:
    desk = Desk()
    desk.devices[A].locked_mhz = (300, 900)  # by somebody else
    desk.controls.set_clock(A, None)
    desk.controls.restore(A)
    assert (desk.devices[A].locked_mhz, desk.devices[A].changes) == ((300, 900), 0)


def test_a_clock_that_the_gpu_does_not_have() -> None:
    with pytest.raises(Refusal, match="no SM clock of 900 MHz; the nearest is 810 MHz"):
        Desk().controls.set_clock(A, 900)


def test_power_is_restored_as_found_and_never_raised_above() -> None:
    desk = Desk()
    device = desk.devices[A]
    device.limit_mw = 300_000  # a site's own cap, below the factory's 400 W
    with pytest.raises(Refusal, match="100 to 300 W: it is never raised"):
        desk.controls.set_power(A, 350_000)
    assert desk.store.get(A).empty
    desk.controls.set_power(A, 250_000)
    desk.controls.set_power(A, 200_000)
    with pytest.raises(Refusal, match="100 to 300 W"):
        desk.controls.set_power(A, 300_001)
    assert device.limit_mw == 200_000
    desk.controls.set_power(A, 300_000)
    desk.controls.set_power(A, 150_000)
    desk.controls.restore(A)
    assert device.limit_mw == 300_000


def test_power_is_given_back_within_a_lease() -> None:
    desk = Desk()
    desk.controls.set_power(A, None)  # nothing was changed
    desk.controls.set_power(A, 250_000)
    desk.controls.set_power(A, None)
    assert (desk.devices[A].limit_mw, desk.store.get(A).empty) == (400_000, True)


@pytest.mark.parametrize("foreign_mw", [280_000, 220_000, 350_000])
def test_a_limit_that_somebody_else_set_meanwhile_stands(foreign_mw: int) -> None:
    desk = Desk()
    device = desk.devices[A]
    device.limit_mw = 300_000
    desk.controls.set_power(A, 250_000)
    device.limit_mw = foreign_mw
    assert desk.controls.restore(A)
    assert device.limit_mw == foreign_mw
    assert "foreign-power-limit" in desk.events.names()


def test_a_limit_that_somebody_else_lowered_is_the_new_ceiling() -> None:
    desk = Desk()
    device = desk.devices[A]
    desk.controls.set_power(A, 250_000)
    device.limit_mw = 220_000
    with pytest.raises(Refusal, match="100 to 220 W"):
        desk.controls.set_power(A, 250_000)
    desk.controls.set_power(A, 200_000)
    desk.controls.restore(A)
    assert device.limit_mw == 220_000


def test_a_driver_may_round_a_limit() -> None:
    desk = Desk()
    desk.controls.set_power(A, 250_400)
    desk.devices[A].limit_mw = 250_000
    desk.controls.restore(A)
    assert desk.devices[A].limit_mw == 400_000


@pytest.mark.parametrize("in_force_mw", [300_000, 280_000, 250_000])
def test_a_kill_between_saving_and_setting(in_force_mw: int) -> None:
    """Saved: found 300 W, set 280 W, about to set 250 W. Whichever is in force, 300 W is restored."""
    desk = Desk()
    desk.devices[A].limit_mw = in_force_mw
    desk.store.put(A, Saved(power_limit_mw=300_000, own_limits_mw=(280_000, 250_000)))
    desk.controls.restore(A)
    assert desk.devices[A].limit_mw == 300_000


def test_without_saving_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, device = StateDirectory(tmp_path), FakeDevice()
    controls = Controls({A: device}, store, None, lambda _event, **_facts: None, FakeClock())

    def full(_uuid: str, _saved: Saved) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "put", full)
    for change in (lambda: controls.set_clock(A, 810), lambda: controls.set_power(A, 250_000)):
        with pytest.raises(Refusal, match="nothing is changed, since it cannot be saved what to restore: No space left"):
            change()
    assert device.changes == 0
    store.close()


def test_a_failing_restore_is_tried_again_ever_more_rarely() -> None:
    desk = Desk()
    desk.controls.set_clock(A, 810)
    desk.controls.set_power(A, 250_000)
    desk.devices[A].failing = True
    assert not desk.controls.restore(A)
    waits_s = []
    for _ in range(12):
        waits_s.append(desk.controls.next_retry_s() - desk.clock.now_s)
        desk.clock.now_s = desk.controls.next_retry_s()
        desk.controls.retry()
    assert waits_s[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8]) and waits_s[-1] == pytest.approx(LONGEST_RETRY_S)
    assert desk.controls.trouble[A].reason == "the driver says no; the driver says no"
    assert desk.events.names().count("restore-failed") == 1  # the same reason is logged once
    desk.devices[A].failing = False
    desk.clock.now_s = desk.controls.next_retry_s()
    desk.controls.retry()
    assert (desk.devices[A].locked_mhz, desk.devices[A].limit_mw, desk.controls.trouble) == (None, 400_000, {})
    assert desk.events.all[-1] == ("restored", {"gpu": A, "clocks": True, "power_limit_w": 400.0, "attempts": 14})
    assert desk.controls.next_retry_s() == float("inf")


def test_half_a_restore_is_not_repeated() -> None:
    desk = Desk()
    device = desk.devices[A]
    desk.controls.set_clock(A, 810)
    desk.controls.set_power(A, 250_000)
    device.set_power_limit_mw = _failing  # type: ignore[method-assign]
    assert not desk.controls.restore(A)
    assert device.locked_mhz is None
    assert desk.store.get(A) == Saved(power_limit_mw=400_000, own_limits_mw=(250_000,))


def _failing(_limit_mw: int) -> None:
    from megatron_energy.gpus.errors import NoPermission

    raise NoPermission("no permission")


def test_a_limit_that_is_accepted_but_not_in_force_counts_as_not_restored() -> None:
    desk = Desk()
    desk.controls.set_power(A, 250_000)
    desk.devices[A].set_power_limit_mw = lambda _limit_mw: None  # type: ignore[method-assign]
    assert not desk.controls.restore(A)
    assert desk.controls.trouble[A].reason == "the power limit is 250 W after being restored to 400 W"


def test_a_gpu_that_is_gone() -> None:
    desk = Desk()
    desk.store.put("GPU-gone", Saved(clocks=True))
    assert not desk.controls.restore("GPU-gone")
    assert desk.controls.trouble["GPU-gone"].reason == "this host has no such GPU any more, or it did not answer when clockd started"


def test_a_gpu_whose_clocks_cannot_be_locked_has_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those split by MIG: an Epilog that restores all GPUs of a job must not fail for them, since that drains the node."""
    desk = Desk()

    def refuse() -> None:
        raise NotSupported("split by MIG")

    monkeypatch.setattr(desk.devices[A], "unlock", refuse)
    assert desk.controls.restore(A, clocks_anyway=True)
    assert (desk.controls.changed(), desk.controls.trouble) == ((), {})
    desk.controls.set_clock(A, 810)  # one that we have locked is another matter
    assert not desk.controls.restore(A, clocks_anyway=True)
    assert desk.controls.trouble[A].reason == "split by MIG"


def test_restoring_for_some_time() -> None:
    desk = Desk()
    desk.controls.set_clock(A, 810)
    desk.devices[A].failing = True
    start_s = desk.clock.now_s
    assert restore_for(desk.controls, 10.0, desk.clock.sleep) == {A: "the driver says no"}
    assert desk.clock.now_s - start_s == pytest.approx(6.3)  # 0.1 + 0.2 + ... + 3.2; the next would be at 12.7
    desk.devices[A].failing = False
    assert restore_for(desk.controls, 10.0, desk.clock.sleep) == {}


def test_raises_and_lowers() -> None:
    controls = Desk().controls
    assert not controls.raises_clock(A, 1410)  # as far as is known nothing is lowered
    controls.set_clock(A, 810)
    assert [controls.raises_clock(A, mhz) for mhz in (1110, None, 810, 510)] == [True, True, False, False]
    assert not controls.raises_power(A, 300_000)
    controls.set_power(A, 250_000)
    assert [controls.raises_power(A, mw) for mw in (300_000, None, 250_000, 200_000)] == [True, True, False, False]
