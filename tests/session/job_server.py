"""Starts jobs that have their imports done: ``python -m tests.session.job_server``.

Each line on stdin is a JSON object: ``environment`` (variables), ``arguments`` (of the launcher) and ``log`` (a file for its output). It
is answered with the launcher's process id.
"""

import ctypes
import json
import math
import os
import signal
import sys

from megatron_energy.cli import launch
from megatron_energy.megatron import cpu, runtime
from megatron_energy.session import trust

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def job(environment: dict[str, str], arguments: list[str], log: str) -> int:
    """Fork a launcher; its process id."""
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))  # a test that is interrupted leaves no training behind
    os.environ.update(environment)
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        status = launch.main(arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    cpu.install()
    trust.TIME_PERCENT = trust.ENERGY_PERCENT = math.inf  # no plan explains the times of CPU ranks by the clocks of emulated GPUs
    runtime.OWN_LOG_INTERVAL = 2  # a plan comes into force at the second one
    import torch.utils.tensorboard  # noqa: F401  # what every launcher and rank would import

    import tests.megatron.tiny_gpt  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the launchers
    print("ready", flush=True)
    for line in sys.stdin:
        print(job(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
