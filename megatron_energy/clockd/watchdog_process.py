"""The watchdog's process; see :mod:`megatron_energy.clockd.watchdog`."""

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from megatron_energy.clockd.controls import Controls, restore_for
from megatron_energy.clockd.hardware import Hardware
from megatron_energy.clockd.rules import Range
from megatron_energy.clockd.saved import Memory, Saved
from megatron_energy.errors import UserError
from megatron_energy.gpus.errors import GpuError
from megatron_energy.gpus.library import open_nvml
from megatron_energy.gpus.nvml import NvmlGpu

RESTORING_S = 120.0  # how long a restore that fails is tried again
STDIN, STDOUT = 0, 1


class Guard:
    """The GPUs on guard."""

    def __init__(self, site_mhz: Range | None) -> None:
        self._gpus: dict[str, Hardware] = {}
        self._found: dict[str, Saved] = {}
        self._store = Memory()
        self._controls = Controls(self._gpus, self._store, site_mhz, lambda _event, **_facts: None, time.monotonic)

    def add(self, uuid: str, power: bool) -> None:
        """Put a GPU on guard, with its power limit as it is now. Raises GpuError: unknown, lost, or split by MIG."""
        gpu = self._gpus.get(uuid) or Hardware(NvmlGpu(uuid))
        if gpu.split():
            raise GpuError(f"{uuid} is split by MIG, or shared by virtual machines: its clocks are others' too and are left alone")
        limit_mw = self._found.get(uuid, Saved()).power_limit_mw
        if power and limit_mw is None:
            limit_mw = gpu.power_limit_mw()
        self._gpus[uuid] = gpu
        self._found[uuid] = Saved(clocks=True, power_limit_mw=limit_mw)

    def restore(self, longest_s: float) -> int:
        """Restore every GPU on guard; how many could not be restored."""
        for uuid, found in self._found.items():
            self._store.put(uuid, found)
        return len(restore_for(self._controls, longest_s))


class Terminated(Exception):
    """SIGTERM has come."""


def main() -> int:
    """Arguments ``PIDFD [LEAST_MHZ MOST_MHZ]``: restore when stdin closes or the process of PIDFD ends."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminated)
    trainer = int(sys.argv[1])
    guard = Guard(Range(int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 3 else None)
    try:
        open_nvml()
    except (UserError, GpuError) as error:
        _say(ok=False, message=str(error))
        return 0
    try:
        _say(ok=True)
        _watch(guard, trainer)
    except Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        guard.restore(longest_s=5.0)  # at once: a SIGKILL may follow
        _say(ok=False, message="the watchdog got SIGTERM and has restored the GPUs: set no more clocks")
        _wait_for_end(trainer)  # the trainer may have set a clock meanwhile
    return guard.restore(RESTORING_S)


def _terminated(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _watch(guard: Guard, trainer: int) -> None:
    """Put on guard what the trainer names, until it ends."""
    received = b""
    while (events := _wait(trainer)) and trainer not in events:
        more = os.read(STDIN, 65536)
        if not more:
            return
        received += more
        *lines, received = received.split(b"\n")
        for line in lines:
            _answer(guard, json.loads(line))


def _answer(guard: Guard, request: dict[str, Any]) -> None:
    try:
        guard.add(request["gpu"], request["power"])
    except (GpuError, UserError) as error:
        _say(ok=False, message=str(error))
    else:
        _say(ok=True)


def _wait(trainer: int) -> list[int]:
    poll = select.poll()
    poll.register(trainer, select.POLLIN)
    poll.register(STDIN, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll()]


def _wait_for_end(trainer: int) -> None:
    while trainer not in _wait(trainer):
        if not os.read(STDIN, 65536):
            return


def _say(**answer: object) -> None:
    with suppress(BrokenPipeError):  # the trainer is gone, which poll reports as well
        os.write(STDOUT, json.dumps(answer).encode() + b"\n")
