"""Every NVML function that gpus/ calls x every NVML error: what comes of it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatron_energy.emulation.fault_rules import Fail
from megatron_energy.emulation.faults import inject
from megatron_energy.gpus.errors import GpuError, NotSupported
from megatron_energy.gpus.meter import EnergyMeter
from tests.emulated_gpus import EmulatedNode, emulated_node
from tests.gpus.error_table import BUSY, ERRORS, OPERATIONS, Outcome, faults_of, functions_used, gpu_of, outcome, prepare
from tests.source_tree import PACKAGE, ROOT

OWN_KINDS = {"GpuError", "GpuLost", "NoDriver", "NoPermission", "NotFound", "NotSupported", "UserError"}

FALL_BACKS = {
    "nvmlDeviceGetCurrentClocksThrottleReasons",  # asked where its newer name is missing
    "nvmlDeviceGetPowerUsage",  # asked where there is no instant power field
}


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[EmulatedNode]:
    with emulated_node(tmp_path) as node:
        prepare(node)
        yield node


def called_by_source() -> set[str]:
    """The functions of pynvml that the package's gpus/ names."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / PACKAGE / "gpus").glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "pynvml"}
    return {name for name in names if name.startswith("nvml") and name != "nvmlLib"}


def test_the_operations_reach_every_function_that_is_called(prepared: EmulatedNode) -> None:
    reached = set().union(*(functions_used(operation, prepared) for operation in OPERATIONS.values()))
    missing = [name for name in called_by_source() - FALL_BACKS if not any(used.startswith(name) for used in reached)]
    assert len(called_by_source()) >= 25
    assert not missing


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_error_has_an_outcome(name: str, prepared: EmulatedNode) -> None:
    """Raises for a wrong number and for an exception that is not ours."""
    operation = OPERATIONS[name]
    expected = operation(prepared).value
    moving = name in ("energy counter", "meter: lap")  # other numbers as time goes by: the clean answer is taken each time
    failing = 0
    for function in sorted(functions_used(operation, prepared)):
        for error in ERRORS:
            for fault in faults_of(function, error):
                if moving:
                    expected = operation(prepared).value
                with inject(fault):
                    found = outcome(operation, prepared, expected)
                assert found.kind in {"same", "degrades", *OWN_KINDS}, (function, error, found)
                assert found.kind == "same" or (found.reason and "\n" not in found.reason), (function, error, found)
                failing += found.kind != "same"
    assert failing, "no error made a difference: the operation does not reach NVML"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(
    ("name", "newer", "older"),
    [
        ("event reasons", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        ("power", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"),
    ],
)
def test_so_has_every_error_of_what_older_drivers_have_instead(
    name: str, newer: str, older: str, error: str, prepared: EmulatedNode
) -> None:
    found = end_of(name, prepared, Fail(newer, error="FUNCTION_NOT_FOUND"), Fail(older, error=error))
    assert found.kind in OWN_KINDS
    assert found.reason and "\n" not in found.reason


def end_of(name: str, node: EmulatedNode, *faults: Fail) -> Outcome:
    operation = OPERATIONS[name]
    expected = operation(node).value
    with inject(*faults):
        return outcome(operation, node, expected)


def test_what_degrades_says_why(prepared: EmulatedNode) -> None:
    no_counter = Fail("nvmlDeviceGetTotalEnergyConsumption", error="NOT_SUPPORTED")
    assert "no energy counter" in end_of("meter: open", prepared, no_counter).reason
    assert "no energy counter" in end_of("preflight", prepared, no_counter).reason
    assert end_of("meter: lap", prepared, no_counter) == Outcome("degrades", "the energy counter did not answer")
    no_instant = Fail("nvmlDeviceGetFieldValues", error="NOT_SUPPORTED", field=186)
    assert "no instant power field" in end_of("power", prepared, no_instant).reason
    no_permission = Fail("nvmlDeviceSetGpuLockedClocks", error="NO_PERMISSION")
    assert "clock control stopped: " in end_of("controller", prepared, no_permission).reason
    assert end_of("set and reset clocks", prepared, no_permission).kind == "NoPermission"


def test_a_passing_error_of_the_power_sensor_does_not_change_the_sensor(prepared: EmulatedNode) -> None:
    gpu = gpu_of(prepared)
    with inject(Fail("nvmlDeviceGetFieldValues", error="TIMEOUT", field=186, times=1)):
        with pytest.raises(GpuError, match="instant power field: Timeout"):
            gpu.power_w()
        assert gpu.power_source.startswith("instant power")
    with inject(Fail("nvmlDeviceGetFieldValues", error="NOT_SUPPORTED", field=186)), pytest.raises(NotSupported, match="instant power"):
        gpu.power_w()  # it was there before: never silently another sensor


@pytest.mark.parametrize("error", ERRORS)
def test_one_failed_reading_is_one_gap(error: str, prepared: EmulatedNode) -> None:
    meter = EnergyMeter(gpu_of(prepared), prepared.clock, background=False)
    meter.open()
    laps = []
    with inject(Fail("nvmlDeviceGetTotalEnergyConsumption", error=error, from_call=2, times=1)):
        for _ in range(5):
            prepared.clock.now_s += 2.0
            laps.append(meter.lap())
    power_w = prepared.gpus[BUSY].power_w()
    energies_j = [lap.energy_j if lap is not None else None for lap in laps]
    assert energies_j == [pytest.approx(2 * power_w, rel=1e-4), None, None, *[pytest.approx(2 * power_w, rel=1e-4)] * 2]
    assert meter.gaps == 2


@pytest.mark.parametrize("error", ERRORS)
def test_one_failed_request_is_retried_or_stops_control(error: str, prepared: EmulatedNode) -> None:
    fault = Fail("nvmlDeviceSetGpuLockedClocks", error=error, from_call=2, times=1)  # the raise
    found = end_of("controller", prepared, fault)
    final = error.removeprefix("NVML_ERROR_") in {
        "NO_PERMISSION", "NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "GPU_IS_LOST", "RESET_REQUIRED",
        "UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND",
    }  # fmt: skip
    assert found.kind == "degrades"
    assert found.reason.startswith("clock control stopped") == final
    assert prepared.node.gpu(BUSY).locked_max_mhz == 0  # either way the clock is the GPU's own in the end
