"""A task that takes its GPU and lowers its clock, says so, and sleeps: python hold_clocks.py FOLDER.

Tasks with an even number on their node do it as they should, through clockd; the others lock the clock around it and tell nobody.
"""

import os
import sys
import time
from pathlib import Path

import pynvml

from megatron_energy.clockd.client import ClockdClient
from megatron_energy.emulation.install import install_from_environment

LOCKED_MHZ = 1005
LIMIT_W = 300.0


def main() -> None:
    """Hold the GPU of this task."""
    install_from_environment()
    local = int(os.environ["SLURM_LOCALID"])
    index = int(os.environ["CUDA_VISIBLE_DEVICES"].split(",")[local])
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    if local % 2 == 0:
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        client = ClockdClient.connect()
        lease = client.lease([uuid], ttl_s=600)
        lease.set_max_clock(uuid, LOCKED_MHZ)
        lease.set_power_limit(uuid, LIMIT_W)
    else:
        pynvml.nvmlDeviceSetGpuLockedClocks(handle, 210, LOCKED_MHZ)
    ready = Path(sys.argv[1]) / f"{os.environ['SLURM_PROCID']}.ready"
    ready.with_suffix(".tmp").write_text(f"{os.environ['SLURMD_NODENAME']} {os.getpid()} {os.getppid()}")
    ready.with_suffix(".tmp").rename(ready)
    time.sleep(600)


if __name__ == "__main__":
    main()
