"""Faults injected under the real pynvml."""

import statistics
from pathlib import Path

import pynvml
import pytest

from megatron_energy.emulation.fault_rules import CounterReset, Delay, Disturb, Fail, Ignore, Rule, error_code, gpu_lost, rule_from_plain
from megatron_energy.emulation.faults import inject
from megatron_energy.emulation.install import install_from_environment, parse_faults, uninstall
from megatron_energy.emulation.nvml import EmulatedNvml
from megatron_energy.errors import UserError
from tests.emulated_gpus import EmulatedNode


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def outcomes(calls: int, index: int = 0) -> list[str]:
    """What reading the power ends in, call by call."""
    found = []
    for _ in range(calls):
        try:
            pynvml.nvmlDeviceGetPowerUsage(handle(index))
            found.append("ok")
        except pynvml.NVMLError as error:
            found.append(type(error).__name__.removeprefix("NVMLError_"))
    return found


@pytest.mark.parametrize(
    ("occasion", "expected"),
    [
        ({}, ["Timeout"] * 4),
        ({"times": 1}, ["Timeout", "ok", "ok", "ok"]),
        ({"from_call": 3, "times": 1}, ["ok", "ok", "Timeout", "ok"]),
        ({"from_call": 3}, ["ok", "ok", "Timeout", "Timeout"]),
        ({"gpu": 1}, ["ok"] * 4),
        ({"gpu": 0}, ["Timeout"] * 4),
        ({"probability": 0.0}, ["ok"] * 4),
    ],
)
def test_a_call_fails_when_its_rule_says_so(emulated: EmulatedNode, occasion: dict[str, int], expected: list[str]) -> None:
    with inject(Fail("nvmlDeviceGetPowerUsage", error="TIMEOUT", **occasion)):  # type: ignore[arg-type]
        assert outcomes(4) == expected
    assert outcomes(1) == ["ok"]


def test_every_error_of_nvml_comes_through_as_pynvmls_exception(emulated: EmulatedNode) -> None:
    names = [name for name in dir(pynvml) if name.startswith("NVML_ERROR_")]
    assert len(names) >= 30
    for name in names:
        with inject(Fail("nvmlDeviceGetPowerUsage", error=name)), pytest.raises(pynvml.NVMLError) as caught:
            pynvml.nvmlDeviceGetPowerUsage(handle())
        assert caught.value.value == getattr(pynvml, name) == error_code(name.removeprefix("NVML_ERROR_"))


def test_probabilities_are_seeded(emulated: EmulatedNode) -> None:
    def strikes(seed: int) -> list[str]:
        with inject(Fail("nvmlDeviceGetPowerUsage", error="TIMEOUT", probability=0.3), seed=seed):
            return outcomes(1000)

    assert strikes(1) == strikes(1) != strikes(2)
    assert strikes(1).count("Timeout") == pytest.approx(300, abs=45)  # three standard deviations


def test_one_field_value_fails_alone(emulated: EmulatedNode) -> None:
    with inject(Fail("nvmlDeviceGetFieldValues", error="NO_DATA", field=186)):
        values = pynvml.nvmlDeviceGetFieldValues(handle(), [185, 186])
    assert [value.nvmlReturn for value in values] == [0, pynvml.NVML_ERROR_NO_DATA]


def test_a_lost_gpu_stays_lost_and_the_others_answer(emulated: EmulatedNode) -> None:
    second = handle(2)
    with inject(gpu_lost(2, from_call=3)):
        assert outcomes(4, index=2) == ["ok", "GpuIsLost", "GpuIsLost", "GpuIsLost"]  # each looks up the handle and reads
        assert outcomes(2, index=1) == ["ok", "ok"]
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetTotalEnergyConsumption(second)
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetHandleByUUID(emulated.gpus[2].uuid)


def test_an_ignored_request_succeeds_and_does_nothing(emulated: EmulatedNode) -> None:
    with inject(Ignore(times=1)):
        pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 210, 900)
        assert emulated.node.gpu(0).locked_max_mhz == 0
        pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 210, 900)
        assert emulated.node.gpu(0).locked_max_mhz == 900


def test_a_latency_spike_takes_the_callers_time(emulated: EmulatedNode) -> None:
    begin_s = emulated.clock.now_s
    with inject(Delay("nvmlDeviceSetGpuLockedClocks", latency_s=0.2, from_call=2, times=1)):
        for _ in range(3):
            pynvml.nvmlDeviceSetGpuLockedClocks(handle(), 210, 900)
    assert emulated.clock.now_s - begin_s == pytest.approx(0.2 + 3 * 0.00575)


def test_the_counter_begins_anew(emulated: EmulatedNode) -> None:
    def counter_mj(index: int = 0) -> int:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(index)))

    emulated.clock.now_s += 10.0  # 600 J at idle
    with inject(CounterReset(gpu=0, from_call=2)):
        assert counter_mj() == pytest.approx(600_000, abs=10)
        assert counter_mj() == 0
        emulated.clock.now_s += 1.0
        assert counter_mj() == pytest.approx(60_000, abs=10)
        assert counter_mj(1) > 600_000
        assert pynvml.nvmlDeviceGetFieldValues(handle(), [83])[0].value.ullVal == counter_mj()


def test_noise_drift_and_quantisation_of_power(emulated: EmulatedNode) -> None:
    emulated.gpus[0].set_load(0.5)
    emulated.clock.now_s += 1.0
    true_w = emulated.gpus[0].power_w()

    def readings_w(number: int) -> list[float]:
        return [pynvml.nvmlDeviceGetPowerUsage(handle()) / 1000 for _ in range(number)]

    with inject(Disturb(noise_share=0.05)):
        noisy_w = readings_w(2000)
        assert pynvml.nvmlDeviceGetFieldValues(handle(), [186])[0].value.uiVal / 1000 != pytest.approx(true_w, abs=0.002)
    assert statistics.mean(noisy_w) == pytest.approx(true_w, rel=0.005)
    assert statistics.stdev(noisy_w) == pytest.approx(0.05 * true_w, rel=0.1)
    with inject(Disturb(quantum_w=25.0)):
        assert readings_w(1) == [25.0 * round(true_w / 25.0)]
    with inject(Disturb(drift_per_hour=0.1)):
        emulated.clock.now_s += 1800.0
        assert readings_w(1)[0] == pytest.approx(1.05 * true_w, rel=1e-4)


def test_the_environment_injects_too(tmp_path: object) -> None:
    variables = {
        "MEGATRON_ENERGY_EMULATED": "a100-sxm4-80gb:2",
        "MEGATRON_ENERGY_EMULATED_DIR": str(tmp_path),
        "MEGATRON_ENERGY_EMULATED_FAULTS": '[{"fault": "fail", "function": "nvmlDeviceGetPowerUsage", "error": "IN_USE", "gpu": 1}]',
    }
    try:
        install_from_environment(variables)
        pynvml.nvmlInit()
        assert outcomes(2, index=1) == ["InUse"] * 2
        assert outcomes(2, index=0) == ["ok"] * 2
    finally:
        uninstall()


def test_every_kind_of_rule_has_a_json_form() -> None:
    assert rule_from_plain({"fault": "delay", "latency_s": 0.1, "probability": 0.5}) == Delay(latency_s=0.1, probability=0.5)
    for kind, rule in (
        ("fail", Fail()),
        ("ignore", Ignore()),
        ("delay", Delay()),
        ("counter-reset", CounterReset()),
        ("disturb", Disturb()),
    ):
        assert rule_from_plain({"fault": kind}) == rule
    assert parse_faults("[]") is None
    faults = parse_faults('{"seed": 3, "rules": [{"fault": "fail"}]}')
    assert faults is not None and faults.strikes == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("3", "write a list of rules"),
        ('["fail"]', "write a list of rules"),
        ('[{"fault": "explode"}]', "set 'fault' to one of fail, ignore, delay, counter-reset, disturb"),
        ('[{"fault": "fail", "error": "BOOM"}]', "NVML has no error BOOM"),
        ('[{"fault": "fail", "function": "nvmlDeviceGetPowerUse"}]', "no emulated NVML function is called nvmlDeviceGetPowerUse"),
        ('[{"fault": "fail", "from_call": 0}]', "calls count from 1"),
        ('[{"fault": "fail", "chance": 0.5}]', "unexpected keyword argument 'chance'"),
        ('[{"fault": "ignore", "function": "nvmlDeviceGetPowerUsage"}]', "cannot be ignored"),
        ('[{"fault": "disturb", "quantum_w": 0}]', "quantum_w is above 0"),
        ('[{"fault": "disturb", "noise_share": NaN}]', "noise_share is 0 or more"),
        ('[{"fault": "disturb", "noise_share": "a lot"}]', "noise_share must be a number"),
        ('[{"fault": "fail", "error": 7}]', "error must be a text"),
        ('[{"fault": "fail", "from_call": "3"}]', "from_call must be a whole number"),
        ('[{"fault": "fail", "probability": true}]', "probability must be a number"),
        ('[{"fault": "fail", "gpu": -1}]', "gpu an index"),
        ('[{"fault": "fail", "times": 0}]', "times is 1 or more"),
        ('[{"fault": "delay", "latency_s": -1}]', "latency_s is 0 to 3600"),
        ('{"seed": "x", "rules": []}', "write a list of rules"),
        ('{"rule": []}', "write a list of rules"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_mistakes_are_told_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_faults(text)
    assert "\n" not in str(caught.value)


def test_a_rule_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    environment = {
        "MEGATRON_ENERGY_EMULATED": "a100-sxm4-80gb:2",
        "MEGATRON_ENERGY_EMULATED_DIR": str(tmp_path),
        "MEGATRON_ENERGY_EMULATED_FAULTS": '[{"fault": "fail", "gpu": 2}]',
    }
    try:
        with pytest.raises(UserError, match=r"names GPU 2, but there are 2 \(0 to 1\)"):
            install_from_environment(environment)
    finally:
        uninstall()


def test_real_gpus_are_never_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", object())
    with pytest.raises(UserError, match="only be injected into emulated GPUs"), inject(Rule()):
        pass


def test_injections_nest(emulated: EmulatedNode) -> None:
    library = pynvml.nvmlLib
    assert isinstance(library, EmulatedNvml)
    with inject(Fail("nvmlDeviceGetPowerUsage", error="TIMEOUT")) as outer:
        with inject():
            assert outcomes(1) == ["ok"]
        assert outcomes(1) == ["Timeout"]
        assert outer.strikes == [1]
    assert library.faults is None
