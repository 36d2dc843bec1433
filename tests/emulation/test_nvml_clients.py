"""Programs written for real GPUs, on emulated ones."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.emulation.physics import power_w
from tests.emulated_gpus import EmulatedNode


def load_file(path: Path) -> Any:
    """Run one file of a package without the package around it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def energy_monitor_file() -> Path | None:
    """Megatron's own energy monitor, where Megatron and torch are installed."""
    megatron = importlib.util.find_spec("megatron")
    if megatron is None or importlib.util.find_spec("torch") is None:
        return None
    files = [Path(folder) / "core" / "energy_monitor.py" for folder in megatron.submodule_search_locations or ()]
    return next((file for file in files if file.exists()), None)


def test_megatrons_energy_monitor_reads_emulated_joules(emulated: EmulatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    file = energy_monitor_file()
    if file is None:
        pytest.skip("needs torch and megatron-core")
    import torch

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monitor = load_file(file).EnergyMonitor()
    monitor.setup()
    emulated.gpus[2].set_load(0.5)
    emulated.clock.now_s += 1.0
    monitor.resume()
    emulated.clock.now_s += 10.0
    monitor.pause()
    emulated.clock.now_s += 5.0  # not measured
    monitor.resume()
    monitor.pause()
    monitor.shutdown()
    assert monitor._lap_energy == pytest.approx(10_000 * power_w(emulated.gpus[2].model, 1410, compute=0.5), abs=2)
