"""Do other people's NVML programs read the same energy on emulated GPUs as our meter? Wall time, emulated A100s under constant load.

    python -m venv ENV && ENV/bin/pip install zeus nvitop . && ENV/bin/python tools/check_clients.py [--seconds 6]

ZeusMonitor (zeus), nvitop's Device, and our meter measure the same GPU over the same window; what the emulated GPU drew is known.
Nothing of zeus or nvitop is needed by the product, so they belong into an environment of their own.
"""

import argparse
import os
import subprocess
import sys
import time

GPU, LOAD = "a100-sxm4-80gb", 0.5
STEP_S = 0.1  # of the emulated energy counter, as on the real one


def measured(seconds: float) -> None:
    """Inside an emulated host: the joules of GPU 1 in one window, as each program sees them."""
    from nvitop import Device
    from zeus.monitor import ZeusMonitor

    from megatron_energy.gpus.library import open_nvml
    from megatron_energy.gpus.meter import meter_for
    from megatron_energy.gpus.nvml import NvmlGpu

    open_nvml()
    theirs, device = ZeusMonitor(gpu_indices=[1]), Device(1)
    meter = meter_for(NvmlGpu(device.uuid()))
    meter.open()
    theirs.begin_window("window", sync_execution=False)
    begin_mj, begin_s = device.total_energy_consumption(), time.monotonic()
    meter.lap()
    time.sleep(seconds)
    lap = meter.lap()
    nvitop_j, window_s = (device.total_energy_consumption() - begin_mj) / 1e3, time.monotonic() - begin_s
    zeus_j = theirs.end_window("window", sync_execution=False).gpu_energy[1]
    power_w = device.power_usage() / 1e3
    ours_j = lap.energy_j if lap is not None and lap.energy_j is not None else float("nan")
    print(
        f"GPU 1 of an emulated host, {power_w:.1f} W for {window_s:.2f} s (emulated); a step of the counter is {power_w * STEP_S:.1f} J\n"
    )
    print("| program | J |\n| --- | ---: |")
    for name, energy_j in (("power x time", power_w * window_s), ("our meter", ours_j), ("ZeusMonitor", zeus_j), ("nvitop", nvitop_j)):
        print(f"| {name} | {energy_j:.1f} |")
    worst_j = max(abs(energy_j - power_w * window_s) for energy_j in (ours_j, zeus_j, nvitop_j))
    print(f"\nat most {worst_j:.1f} J off, allowed are two steps of the counter")
    sys.exit(worst_j > 2 * STEP_S * power_w)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    if "MEGATRON_ENERGY_CHECKED" in os.environ:
        measured(options.seconds)
    else:
        command = [sys.executable, "-m", "megatron_energy.emulation", "--gpu", GPU, "--count", "2", "--load", str(LOAD), *sys.argv]
        sys.exit(subprocess.run(command, env={**os.environ, "MEGATRON_ENERGY_CHECKED": "1"}, check=False).returncode)
