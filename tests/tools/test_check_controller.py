"""The controller's check in a small form. How long things take is for a person to judge."""

import pytest

from tests.tools.loading import load_tool

check_controller = load_tool("check_controller")


def test_requests_stay_in_order_beside_busy_threads() -> None:
    found = check_controller.delays(requests=30, busy=2, switch_interval_s=0.001)
    assert found.in_order
    assert (found.counts.requested, found.counts.issued) == (30, 30)
    assert found.delay.median_s >= 0.0  # never before the GPU gets there


@pytest.mark.parametrize("polite", [False, True])
def test_all_processes_of_a_node_get_their_turn(polite: bool) -> None:
    runs = check_controller.node_runs(gpus=3, rounds=6, polite=polite)
    assert len(runs) == 3
    for run in runs:
        assert (run.counts.requested, run.counts.issued, run.counts.failures) == (6, 6, 0)
        assert run.latency.together_s is not None and run.latency.together_s.samples == 10
        assert len(run.raises_s) == len(run.lowers_s) == 2
