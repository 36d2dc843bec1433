import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megatron_energy.emulation.state import GpuRecord, NodeState, node_name, state_path
from megatron_energy.errors import UserError

MODEL = "a100-sxm4-80gb"


@pytest.fixture
def node(tmp_path: Path) -> NodeState:
    return NodeState.create(state_path(tmp_path, "n1"), MODEL, 3, node="n1", time_source="virtual")


def add(path: Path, times: int) -> None:
    state = NodeState(path)
    for _ in range(times):
        with state.edit(1) as record:
            record.energy_mj += 1.0
            record.locks_set += 1


def test_a_node_is_what_it_was_created_as(node: NodeState, tmp_path: Path) -> None:
    again = NodeState(tmp_path / "node-n1.state")
    assert (again.model, again.count, again.node, again.time_source, bool(again.control)) == (MODEL, 3, "n1", "virtual", True)
    assert again.gpu(2) == GpuRecord()


def test_a_change_is_seen_through_every_opening(node: NodeState) -> None:
    other = NodeState(node.path)
    with node.edit(1) as record:
        record.locked_max_mhz, record.power_w = 1080, 123.456
    assert other.gpu(1) == GpuRecord(locked_max_mhz=1080, power_w=123.456)
    assert other.gpu(0) == other.gpu(2) == GpuRecord()


def test_a_failed_change_writes_nothing(node: NodeState) -> None:
    with pytest.raises(ZeroDivisionError), node.edit(0) as record:
        record.power_w = 1 / 0
    assert node.gpu(0) == GpuRecord()


def test_changes_of_several_processes_do_not_get_lost(node: NodeState) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=add, args=(node.path, 300)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert (node.gpu(1).energy_mj, node.gpu(1).locks_set) == (900.0, 900)


def test_changes_of_several_threads_do_not_get_lost(node: NodeState) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: add(node.path, 300), range(3)))
    assert node.gpu(1).locks_set == 900


def test_a_forked_child_shares_the_state(node: NodeState) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            add(node.path, 5)
            with node.edit(1) as record:
                record.owner_pid = os.getpid()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert (node.gpu(1).locks_set, node.gpu(1).owner_pid) == (5, child)


def test_virtual_time_advances(node: NodeState) -> None:
    node.advance(2, now_s=1.5, energy_mj=450_000, clock_mhz=1079.6, power_w=300.0, utilisation=0.8, reasons=4)
    record = node.gpu(2)
    assert (record.since_s, record.counter_mj, record.clock_mhz, record.power_w) == (1.5, 450_000, 1080, 300.0)
    assert (record.compute, record.reasons) == (0.8, 4)


@pytest.mark.parametrize("step", [{"now_s": 1.0, "energy_mj": 11}, {"now_s": 3.0, "energy_mj": 9}])
def test_virtual_time_and_counter_never_go_back(node: NodeState, step: dict[str, int]) -> None:
    node.advance(0, now_s=2.0, energy_mj=10, clock_mhz=1410, power_w=1.0)
    with pytest.raises(ValueError, match="cannot go back"):
        node.advance(0, clock_mhz=1410, power_w=1.0, **step)
    assert node.gpu(0).counter_mj == 10


def test_a_wall_clock_node_is_not_advanced(tmp_path: Path) -> None:
    node = NodeState.create(tmp_path / "s", MODEL, 1)
    with pytest.raises(ValueError, match="wall clock"):
        node.advance(0, now_s=1.0, energy_mj=1, clock_mhz=1410, power_w=1.0)


def test_uuids_differ_between_gpus_and_nodes_and_stay_the_same(node: NodeState, tmp_path: Path) -> None:
    other = NodeState.create(tmp_path / "other", MODEL, 3, node="n2")
    uuids = {state.uuid(index) for state in (node, other) for index in range(3)}
    assert len(uuids) == 6
    assert node.uuid(1) == NodeState(node.path).uuid(1)


def test_creating_again_keeps_or_replaces(node: NodeState) -> None:
    with node.edit(0) as record:
        record.locked_max_mhz = 900
    kept = NodeState.create(node.path, MODEL, 3, node="n1", replace=False)
    assert kept.gpu(0).locked_max_mhz == 900
    replaced = NodeState.create(node.path, MODEL, 3, node="n1")
    assert replaced.gpu(0).locked_max_mhz == 0
    assert [path.name for path in node.path.parent.iterdir()] == ["node-n1.state"]


def test_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, content in (("text", b"not a state" * 100), ("short", b"x"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="no emulated node of this version"):
            NodeState(tmp_path / name)
    with pytest.raises(UserError, match="no emulated node at"):
        NodeState(tmp_path / "absent")
    with pytest.raises(UserError, match="give 1 to 64"):
        NodeState.create(tmp_path / "many", MODEL, 65)


def test_gpus_that_are_not_there(node: NodeState) -> None:
    for index in (-1, 3):
        with pytest.raises(IndexError):
            node.gpu(index)


def test_nodes_are_named_by_slurm_where_it_runs() -> None:
    assert node_name({"SLURMD_NODENAME": "gpu-042"}) == "gpu-042"
    assert node_name({}) == os.uname().nodename
    assert state_path(Path("d"), "gpu-042") == Path("d/node-gpu-042.state")
