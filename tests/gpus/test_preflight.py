from pathlib import Path

import pytest

from megatron_energy.emulation.state import Fault
from megatron_energy.gpus import preflight as subject
from megatron_energy.gpus.preflight import control_permission, effective_capabilities, in_user_namespace, preflight
from megatron_energy.gpus.visible import all_gpus
from tests.emulated_gpus import EmulatedNode


def test_everything_is_possible_on_a_healthy_gpu(emulated: EmulatedNode) -> None:
    result = preflight(all_gpus())
    assert [one.uuid for one in result] == [gpu.uuid for gpu in emulated.gpus]
    assert all(one.energy.possible and one.clocks.possible for one in result)
    assert result[0].energy.reason == "energy counter of the GPU"


def test_each_obstacle_has_its_reason(emulated: EmulatedNode) -> None:
    gpus = all_gpus()
    for index, changes in enumerate(({"mig_instances": 1}, {"faults": Fault.NO_ENERGY_COUNTER}, {"faults": Fault.LOST})):
        with emulated.node.edit(index) as record:
            for name, value in changes.items():
                setattr(record, name, value)
    split, no_counter, lost, healthy = preflight(gpus)
    assert not split.clocks.possible and "MIG" in split.clocks.reason and split.energy.possible
    assert no_counter.energy.possible and "power is integrated" in no_counter.energy.reason
    assert not lost.energy.possible and not lost.clocks.possible and "lost" in lost.energy.reason
    assert healthy.clocks.possible


def test_preflight_sets_nothing(emulated: EmulatedNode) -> None:
    preflight(all_gpus())
    assert all(emulated.node.gpu(index).locks_set == 0 for index in range(4))


def test_no_permission_is_reported(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRON_ENERGY_EMULATED_CONTROL", "no")
    assert [one.clocks.possible for one in preflight(all_gpus())] == [False] * 4


@pytest.mark.parametrize(
    ("capabilities", "namespace", "possible", "words"),
    [
        (1 << 21, False, True, "CAP_SYS_ADMIN is effective"),
        (1 << 21, True, False, "rootless container"),
        (0, False, False, "--cap-add SYS_ADMIN"),
    ],
)
def test_permission_on_a_real_host(monkeypatch: pytest.MonkeyPatch, capabilities: int, namespace: bool, possible: bool, words: str) -> None:
    monkeypatch.setattr(subject, "emulated_library", lambda: None)
    monkeypatch.setattr(subject, "effective_capabilities", lambda: capabilities)
    monkeypatch.setattr(subject, "in_user_namespace", lambda: namespace)
    permission = control_permission()
    assert permission.possible is possible
    assert words in permission.reason


def test_capabilities_are_read_from_the_kernels_file(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nCapPrm:\t0000000000000000\nCapEff:\t0000000000200000\n")
    assert effective_capabilities(status) == 1 << 21
    assert effective_capabilities(tmp_path / "absent") is None


def test_user_namespaces_are_recognised(tmp_path: Path) -> None:
    uid_map = tmp_path / "uid_map"
    uid_map.write_text("         0          0 4294967295\n")
    assert not in_user_namespace(uid_map)
    uid_map.write_text("         0       1000          1\n         1     100000      65536\n")
    assert in_user_namespace(uid_map)
