"""What speaks against a plan beside iteration times."""

from megatron_energy.records.iteration import RankIteration, Span
from megatron_energy.session.signals import QUIET, SignalGuard, Signals, signals_of


def guard(throttled: float = 0.2) -> SignalGuard:
    found = SignalGuard()
    found.rebase([Signals(throttled=throttled)] * 3)
    return found


def test_quiet_iterations_are_no_violation():
    quiet = guard()
    assert all(quiet.observe(QUIET) is None for _ in range(100))
    assert all(quiet.observe(Signals(throttled=0.25)) is None for _ in range(100))  # as much as before, and little more


def test_more_throttling_than_in_the_baseline_is_a_violation_when_repeated():
    watched = guard()
    assert watched.observe(Signals(throttled=0.5)) is None
    assert watched.observe(QUIET) is None
    assert watched.observe(Signals(throttled=0.4)) is None
    found = watched.observe(Signals(throttled=0.5))
    assert found is not None and not found.hopeless
    assert found.reason == "power or temperature held clocks down for 40% of the time, in the baseline for 20%"
    assert watched.observe(Signals(throttled=0.5)) is None  # it begins anew


def test_what_lies_further_back_is_forgotten():
    watched = guard()
    for n in range(40):
        assert watched.observe(Signals(throttled=0.9) if n % 5 == 0 else QUIET) is None


def test_disobeyed_clocks_are_hopeless():
    watched = guard()
    assert watched.observe(Signals(disobeyed=1)) is None
    assert watched.observe(Signals(disobeyed=4)) is None
    found = watched.observe(Signals(disobeyed=1))
    assert found is not None and found.hopeless and "up to 4 GPUs" in found.reason


def test_another_writer_is_hopeless_at_once():
    found = guard().observe(Signals(other_writer="nvidia-smi"))
    assert found is not None and found.hopeless and "(nvidia-smi)" in found.reason


def test_signals_of_records():
    held = RankIteration(
        0, 1, 0.0, 4.0, 1.0, [Span("forward", 0, 0, 0.0, 1.0, 1290, throttled=True), Span("backward", 0, 0, 1.0, 4.0, 1410)]
    )
    free = RankIteration(1, 1, 0.0, 4.0, 1.0)
    assert signals_of([held, free]) == Signals(throttled=1 / 8)
    assert signals_of([]) == QUIET
