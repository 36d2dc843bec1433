"""What the guard makes of a run: the steps between a plan, a safer one and maximum clocks."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from megatron_energy.session.guarded import PATIENCE, Guarded, Limits
from megatron_energy.session.signals import QUIET, Signals
from tests.session.fake_plans import FakeIteration, FakePlan

UNTIL_ALARM = 5  # iterations that are 3% longer, without noise
COMPARED = 4  # iterations of a comparison on each side, the first of which contains the change of clocks


@dataclass
class FakeRun:
    """Iterations take 2 s at maximum clocks, and ``plan_s`` by the version of the plan."""

    recheck: int = 0
    has_safer: bool = True
    plan_s: dict[int, float] = field(default_factory=lambda: {1: 2.0, 2: 2.0})
    maximum_s: float = 2.0
    signals: Signals = QUIET
    emulated: bool = False
    noise: float = 0.0  # every second iteration takes so much longer, the others so much shorter

    def __post_init__(self) -> None:
        self.said: list[str] = []
        self.number = 0
        times_s = [2.0] * 3 if not self.noise else [self.noisy(2.0) for _ in range(32)]
        self.findings = SimpleNamespace(baseline=[FakeIteration(t, emulated=self.emulated) for t in times_s], planned=None)
        safer = lambda plan: FakePlan(plan.version + 1) if self.has_safer else None  # noqa: E731
        self.guarded = Guarded(FakePlan(), safer, self.findings, Limits(0.0, self.recheck), 2, self.said.append)
        self.course = self.guarded.course()
        self.wanted = next(self.course)

    def iterate(self, count: int) -> str:
        """What ran: p and s for the two plans, b for a baseline window, M for maximum clocks."""
        ran = []
        for _ in range(count):
            first = self.wanted[0] if isinstance(self.wanted, list) else self.wanted
            ran.append({"baseline": "b", "maximum": "M", "planned": "ps"[first.plan_version - 1]}[first.phase])
            time_s = self.plan_s[first.plan_version] if first.phase == "planned" else self.maximum_s
            self.wanted = self.course.send(FakeIteration(self.noisy(time_s), self.signals))
        return "".join(ran)

    def noisy(self, time_s: float) -> float:
        self.number += 1
        return time_s * (1 + self.noise * (-1) ** self.number)


def test_a_plan_that_keeps_its_promise_goes_on():
    run = FakeRun()
    assert run.iterate(1000) == "p" * 1000
    assert run.said == []
    assert run.findings.planned == FakePlan()


def test_a_slow_plan_is_replaced_by_a_safer_one():
    run = FakeRun()
    run.iterate(101)
    run.plan_s[1] = 2.06
    assert run.iterate(30) == "p" * UNTIL_ALARM + "b" * COMPARED + "p" * COMPARED + "s" * (30 - UNTIL_ALARM - 2 * COMPARED)
    assert run.said == [
        "a safer plan from here on, clocks half-way up to the maximum: "
        "under the plan iterations took 3.0% longer than allowed (limit of the guard: 0.5%)"
    ]
    assert run.findings.planned == FakePlan(2)


def test_without_a_safer_plan_clocks_go_to_maximum():
    run = FakeRun(has_safer=False, plan_s={1: 2.06})
    assert run.iterate(30).rstrip("M") == "p" + "p" * UNTIL_ALARM + "b" * COMPARED + "p" * COMPARED
    assert run.said[0].startswith(f"maximum clocks for the next {PATIENCE} iterations: ")


def test_a_safer_plan_that_is_slow_as_well_ends_in_maximum_clocks_and_both_are_tried_again():
    run = FakeRun(plan_s={1: 2.06, 2: 2.04})
    judged = UNTIL_ALARM + 2 * COMPARED
    assert run.iterate(2 * (1 + judged)).count("M") == 0
    run.plan_s = {1: 2.0, 2: 2.0}  # what had made it slow is over
    assert run.iterate(1 + PATIENCE) == "M" * (1 + PATIENCE)  # the first one contains the change of clocks
    assert run.iterate(1 + PATIENCE) == "s" * (1 + PATIENCE)
    assert run.iterate(1000) == "p" * 1000
    assert [line.partition(" iterations")[0].partition(" from")[0] for line in run.said] == [
        "a safer plan",
        "maximum clocks for the next 200",
        "the safer plan is tried again after 200",
        "the plan is tried again after 200",
    ]


def test_a_step_back_that_fails_doubles_the_wait():
    run = FakeRun(has_safer=False, plan_s={1: 2.06})
    judged = 1 + UNTIL_ALARM + 2 * COMPARED
    for waits in (PATIENCE, 2 * PATIENCE, 4 * PATIENCE):
        ran = run.iterate(judged + 1 + waits)
        assert ran.lstrip("pb") == "M" * (1 + waits) and len(ran.rstrip("M")) == judged
    run.plan_s[1] = 2.0
    assert set(run.iterate(4 * PATIENCE + 2)) == {"p"}  # it has stood its test: the next failure is a new one ...
    run.plan_s[1] = 2.06
    assert run.iterate(judged + 10).endswith("M")
    assert run.said[-1].startswith(f"maximum clocks for the next {4 * PATIENCE} iterations: ")  # ... and does not double it


def test_with_much_noise_a_plan_is_compared_twice_before_it_is_given_up():
    run = FakeRun(noise=0.02)
    assert run.iterate(101) == "p" * 101
    run.plan_s[1] = 2.08
    slow = run.iterate(100)
    assert slow.strip("p").rstrip("s").rstrip("p").split("b" * 16) == ["", "p" * 16, ""]
    assert run.said[0].startswith("a safer plan from here on")


def test_with_much_noise_one_comparison_is_enough_to_keep_a_plan():
    run = FakeRun(noise=0.02)
    run.iterate(101)
    run.plan_s[1] = 2.08
    while run.guarded.comparisons == 0:
        run.iterate(1)
    run.plan_s[1] = 2.0
    assert run.iterate(100) == "b" * 16 + "p" * 84
    assert "the plan keeps its time" in run.said[0]


def test_a_job_that_becomes_slower_keeps_its_plan():
    run = FakeRun()
    run.iterate(100)
    run.plan_s[1] = run.maximum_s = 2.06
    assert run.iterate(200) == "p" * UNTIL_ALARM + "b" * COMPARED + "p" * (200 - UNTIL_ALARM - COMPARED)
    assert run.said == [
        "iterations looked too long, so 3 at maximum clocks were compared with 3 under the plan: "
        "the plan keeps its time (+0.0%), the baseline has changed by +3.0%"
    ]


def test_figures_of_emulated_gpus_are_called_so():
    drifted = FakeRun(emulated=True, plan_s={1: 2.06, 2: 2.0}, maximum_s=2.06)
    drifted.iterate(20)
    assert drifted.said[0].endswith("the baseline has changed by +3.0% (emulated)")
    for has_safer in (True, False):
        slow = FakeRun(emulated=True, has_safer=has_safer, plan_s={1: 2.06, 2: 2.0})
        slow.iterate(20)
        assert slow.said[0].endswith("longer than allowed (limit of the guard: 0.5%) (emulated)")


def test_the_baseline_is_measured_now_and_then():
    run = FakeRun(recheck=50)
    assert run.iterate(210) == "p" + ("p" * 50 + "b" * COMPARED + "p") * 3 + "p" * (210 - 1 - 3 * 55)
    assert run.said == []


def test_the_baseline_follows_a_drift_without_an_alarm():
    run = FakeRun(recheck=50)
    for n in range(1200):
        run.plan_s[1] = run.maximum_s = 2.0 * (1 + 5e-5 * n)  # 0.25% between two windows, 6% in all
        run.iterate(1)
    assert run.said == []


def test_other_signals_end_a_plan_as_well():
    run = FakeRun(signals=Signals(throttled=0.5))
    assert run.iterate(8) == "p" * 4 + "s" * 4
    assert "power or temperature held clocks down" in run.said[0]


def test_where_someone_else_sets_clocks_no_safer_plan_is_tried():
    run = FakeRun(signals=Signals(other_writer="another process"))
    assert run.iterate(10) == "p" * 2 + "M" * 8
    assert "another program sets something of its GPUs (another process)" in run.said[0]


@pytest.mark.parametrize("slowdown", [0.0, 0.03])
def test_the_allowed_slowdown_is_used(slowdown):
    findings = SimpleNamespace(baseline=[FakeIteration(2.0)] * 3, planned=None)
    course = Guarded(FakePlan(), lambda plan: None, findings, Limits(slowdown, 0), 1, lambda line: None).course()
    next(course)
    phases = {course.send(FakeIteration(2.06))[0].phase for _ in range(UNTIL_ALARM)}
    assert phases == {"planned"}
    course.send(FakeIteration(2.06))
    after = course.send(FakeIteration(2.06))
    assert isinstance(after, list) == (slowdown > 0)
