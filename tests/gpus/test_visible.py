import pytest

from megatron_energy.emulation.fault_rules import Fail
from megatron_energy.emulation.faults import inject
from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuLost
from megatron_energy.gpus.nvml import NvmlGpu
from megatron_energy.gpus.visible import VisibleDevice, all_gpus, gpu_by_uuid, gpu_for_cuda_device, parse_visible_devices, visible_gpus
from tests.emulated_gpus import EmulatedNode

UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000", "GPU-cccc4444-0000"]
MIG = {"MIG-5555-0": UUIDS[2], "MIG-6666-1": UUIDS[2]}


def indices(value: str | None) -> list[int]:
    return [UUIDS.index(device.gpu_uuid) for device in parse_visible_devices(value, UUIDS, MIG)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("0,2,-1,1", [0, 2]),  # the example of the CUDA Programming Guide
        ("1,9,0", [1]),
        ("-1", []),
        ("NoDevFiles", []),
        ("GPU-bbbb3333-0000,GPU-cccc", [2, 3]),
        ("gpu-AAAA2", [1]),
        ("GPU-aaaa", []),  # two GPUs begin like this
        ("GPU-", []),
        ("GPU-cccc,GPU-dddd,GPU-bbbb", [3]),
        ("MIG-6666-1", [2]),
        ("MIG-GPU-bbbb3333-0000/1/0", [2]),
        ("MIG-GPU-bbbb3333-0000", []),  # no instance
        ("MIG-7777", []),
    ],
)
def test_forms_of_cuda_visible_devices(value: str | None, expected: list[int]) -> None:
    assert indices(value) == expected


def test_mig_instances_keep_their_name() -> None:
    assert parse_visible_devices("MIG-5555,MIG-6666", UUIDS, MIG) == [
        VisibleDevice(UUIDS[2], "MIG-5555-0"),
        VisibleDevice(UUIDS[2], "MIG-6666-1"),
    ]


@pytest.mark.parametrize("value", ["1,1", "GPU-cccc,GPU-cccc4444", "3,GPU-cccc"])
def test_a_device_named_twice_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="twice"):
        indices(value)


def test_cuda_devices_map_to_gpus(emulated: EmulatedNode) -> None:
    everyone = [gpu.uuid for gpu in all_gpus()]
    assert everyone == [gpu.uuid for gpu in emulated.gpus]
    assert gpu_for_cuda_device(1, {"CUDA_VISIBLE_DEVICES": "3,2"}).index == 2
    assert gpu_for_cuda_device(1, {}).index == 1
    by_uuid = {"CUDA_VISIBLE_DEVICES": f"{everyone[2]},{everyone[0][:12]}"}
    assert [gpu.index for gpu in visible_gpus(by_uuid)] == [2, 0]


def test_a_cuda_device_that_is_not_there_is_named(emulated: EmulatedNode) -> None:
    with pytest.raises(UserError, match=r"no CUDA device 2 here: 2 visible \(CUDA_VISIBLE_DEVICES=3,2\)"):
        gpu_for_cuda_device(2, {"CUDA_VISIBLE_DEVICES": "3,2"})


def test_a_uuid_finds_its_gpu_as_torch_writes_it(emulated: EmulatedNode) -> None:
    uuid = emulated.gpus[3].uuid
    assert gpu_by_uuid(uuid.removeprefix("GPU-")).index == 3
    with pytest.raises(UserError, match="no GPU"):
        gpu_by_uuid("GPU-ffffffff")


def test_a_mig_instance_leads_to_its_gpu(emulated: EmulatedNode) -> None:
    import pynvml

    with emulated.node.edit(1) as record:
        record.mig_instances = 2
    gpu = pynvml.nvmlDeviceGetHandleByIndex(1)
    instance = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1))
    assert instance.startswith("MIG-")
    found = visible_gpus({"CUDA_VISIBLE_DEVICES": instance})
    assert [(gpu.index, gpu.mig_instance) for gpu in found] == [(1, instance)]


def test_a_gpu_that_does_not_answer_hides_no_other(emulated: EmulatedNode) -> None:
    """Seen as a driver shows a GPU that fell off the bus: it has an index, and nothing else."""
    uuids = [gpu.uuid for gpu in emulated.gpus]
    with inject(Fail("nvmlDeviceGetUUID", gpu=1, error="GPU_IS_LOST")):
        silent: dict[int, str] = {}
        assert [gpu.uuid for gpu in all_gpus(silent)] == [uuids[0], uuids[2], uuids[3]]
        assert list(silent) == [1] and "GPU is lost" in silent[1]
        with pytest.raises(GpuLost):
            all_gpus()
        assert gpu_for_cuda_device(0, {"CUDA_VISIBLE_DEVICES": uuids[3]}).uuid == uuids[3]
        for environment in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):  # CUDA leaves the lost one out, or does not start at all
            with pytest.raises(UserError, match=r"GPU 1 of this host does not answer .* set CUDA_VISIBLE_DEVICES to UUIDs"):
                visible_gpus(environment)


def test_cudas_numbers_of_different_models_are_refused_unless_in_bus_order(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's default order is by speed, which NVML does not know: CUDA's device 0 may be any of them."""
    uuids = [gpu.uuid for gpu in emulated.gpus]
    monkeypatch.setattr(NvmlGpu, "name", property(lambda gpu: "NVIDIA DGX Display" if gpu.uuid == uuids[1] else "NVIDIA A100"))
    with pytest.raises(UserError, match=r"CUDA sorts different GPUs \(NVIDIA A100 and NVIDIA DGX Display\) by speed"):
        visible_gpus({"CUDA_VISIBLE_DEVICES": "2,1"})
    assert [gpu.index for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": "2,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})] == [2, 1]
    assert [gpu.index for gpu in visible_gpus({"CUDA_VISIBLE_DEVICES": f"{uuids[2]},{uuids[1]}"})] == [2, 1]
