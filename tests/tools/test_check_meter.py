"""The meter on loads of known joules, in the catalogued sensors' behaviour."""

import pytest

from tests.tools.loading import load_tool

check_meter = load_tool("check_meter")

STEP_S = 0.1  # of the counter


@pytest.mark.parametrize("model", check_meter.MODELS)
@pytest.mark.parametrize("window_s", check_meter.WINDOWS_S)
def test_the_counter_is_right_to_one_step(model: str, window_s: float) -> None:
    """Under a steady load the error of a window is at most one step, and half of the windows err by less than half of one."""
    error = check_meter.error_of(model, "steady", "counter", window_s, 60)
    assert error.worst <= 100 * STEP_S / (0.95 * window_s) + 0.01
    assert error.median <= 100 * 0.5 * STEP_S / (0.95 * window_s)
    assert abs(error.mean) <= 100 * STEP_S / window_s / 10  # the ends of many windows cancel


def test_longer_windows_are_better_on_a_load_that_changes() -> None:
    """The load's peak draws 1.4 times its mean: a step misplaced there weighs as much more."""
    errors = [check_meter.error_of("a100-sxm4-80gb", "training", "counter", window_s, 60) for window_s in check_meter.WINDOWS_S]
    assert [error.p95 for error in errors] == sorted((error.p95 for error in errors), reverse=True)
    assert errors[2].worst <= 1.4 * 100 * STEP_S / (0.95 * 2.0)
    assert errors[3].worst <= 1.4 * 100 * STEP_S / (0.95 * 5.0)


def test_integrated_power_is_exact_on_a_steady_load_and_good_over_seconds() -> None:
    assert check_meter.error_of("a100-sxm4-80gb", "steady", "integrated instant power", 2.0, 20).worst == pytest.approx(0.0, abs=0.01)
    assert check_meter.error_of("a100-sxm4-80gb", "training", "integrated instant power", 5.0, 40).p95 < 5.0


def test_the_tool_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_meter.main(["--windows", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Figures are emulated." in lines
    assert len([line for line in lines if line.startswith("| ")]) == 1 + len(check_meter.MODELS) * 2 * len(check_meter.SOURCES)
