"""A job under a plan is killed: its GPUs are as found again, and nobody else's are touched. In full: tools/check_kills.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clockd.host import Host
from tests.conftest import is_installed

if not (is_installed("torch") and is_installed("megatron.core")):
    pytest.skip("needs torch and megatron-core, which are extras", allow_module_level=True)

from tests.session.job_kills import Jobs

RANKS = 2
FIRST, SECOND = range(RANKS), range(RANKS, 2 * RANKS)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    host = Host(tmp_path, gpus=2 * RANKS)
    started = Jobs(host, RANKS)
    try:
        yield started
    finally:
        started.close()
        host.close()


def test_a_killed_job_gives_its_gpus_back_and_leaves_its_neighbour_alone(jobs: Jobs) -> None:
    """Two jobs on one node: the first has clockd, the second changes clocks itself and has watchdogs."""
    host = jobs.host
    host.start()
    first, second = jobs.start("first", FIRST), jobs.start("second", SECOND, clockd=False)
    jobs.wait_for_plan(first)
    jobs.wait_for_plan(second)
    assert "clocks are set through clockd" in first.said and "a watchdog process restores them" in second.said
    changes = [host.gpu(index).locks_set for index in SECOND]
    jobs.kill(first)
    assert all(jobs.is_lowered(index) for index in SECOND)
    assert [host.gpu(index).locks_set for index in SECOND] == changes
    restored = [host.gpu(index).locks_set for index in FIRST]
    jobs.kill(second)
    assert [host.gpu(index).locks_set for index in FIRST] == restored
    assert {event["gpu"] for event in host.events("restored")} == {host.uuids[index] for index in FIRST}
