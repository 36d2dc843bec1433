import json
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest

from megatron_energy.emulation import catalog
from megatron_energy.emulation.catalog import GpuModel, known, load
from megatron_energy.errors import UserError

FILES = sorted((Path(catalog.__file__).parent / "gpus").glob("*.json"))


def test_both_gpus_are_there():
    assert {"a100-sxm4-80gb", "h100-sxm5-80gb"} <= set(known())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_figure_has_a_source(file):
    entries = json.loads(file.read_text())
    entries.pop("name")
    assert set(entries) == {field.name for field in fields(GpuModel)} - {"key", "name", "sources"}
    for name, entry in entries.items():
        assert set(entry) == {"value", "source"}, name
        # An estimate has to say how it was made, a reference has to name something.
        text = entry["source"].removeprefix("estimate")
        assert len(text.strip(" :")) >= 15, name


@pytest.mark.parametrize("key", known())
def test_figures_are_consistent(key):
    gpu = load(key)
    clocks = gpu.sm_clocks_mhz
    assert clocks[0] == gpu.sm_clock_max_mhz
    assert clocks[-1] == gpu.sm_clock_min_mhz
    assert {high - low for high, low in pairwise(clocks)} == {gpu.sm_clock_step_mhz}
    assert gpu.power_limit_min_w < gpu.power_limit_default_w <= gpu.power_limit_max_w
    assert gpu.idle_power_w < gpu.blocking_power_w < gpu.power_limit_min_w * 2
    assert gpu.request_median_s < gpu.request_p99_s
    assert gpu.sm_clock_min_mhz < gpu.knee_mhz < gpu.sm_clock_max_mhz
    assert all(0 < share <= 1 for share in (gpu.gemm_efficiency, gpu.memory_efficiency, gpu.link_efficiency, gpu.link_clock_share))
    assert gpu.ambient_c + gpu.celsius_per_w * gpu.power_limit_max_w < gpu.slowdown_c


def test_peak_is_that_of_the_tensor_cores():
    # White papers: SMs x dense BF16 FLOP per SM and clock.
    a100, h100 = load("a100-sxm4-80gb"), load("h100-sxm5-80gb")
    assert a100.peak_bf16_flop_s == pytest.approx(108 * 2048 * a100.peak_clock_mhz * 1e6, rel=1e-3)
    assert h100.peak_bf16_flop_s == pytest.approx(132 * 4096 * h100.peak_clock_mhz * 1e6, rel=1e-3)


def test_supported_clock_rounds_down_and_clamps():
    gpu = load("a100-sxm4-80gb")
    asked = [5000, 1410, 1409, 1395.0, 1080, 1079.9, 211, 0]
    assert [gpu.supported_clock_mhz(clock) for clock in asked] == [1410, 1410, 1395, 1395, 1080, 1065, 210, 210]


def test_request_lead_covers_all_gpus_of_the_node():
    gpu = load("a100-sxm4-80gb")
    # 13 ms call, 8 turns of 5.75 ms at the driver lock, 5 ms until in force.
    assert gpu.request_lead_s(8) == pytest.approx(0.013 + 0.046 + 0.005)


def test_load_ignores_case_and_names_the_known_ones():
    assert load("A100-SXM4-80GB").key == "a100-sxm4-80gb"
    with pytest.raises(UserError, match=r"unknown emulated GPU 'tpu': choose one of a100-sxm4-80gb, h100-sxm5-80gb"):
        load("tpu")


def test_a_figure_without_source_is_refused():
    entries = json.loads(FILES[0].read_text())
    entries["idle_power_w"] = {"value": 60, "source": ""}
    with pytest.raises(ValueError, match="'idle_power_w' has no source"):
        catalog._parse("broken", entries)


def test_a_missing_figure_is_refused():
    entries = json.loads(FILES[0].read_text())
    del entries["knee_mhz"]
    with pytest.raises(ValueError, match="knee_mhz"):
        catalog._parse("broken", entries)
