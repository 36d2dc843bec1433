"""The emulated GPUs of one node, in one file that all processes of the node share.

Real GPUs live in the driver, outside every process; emulated ones live in a memory-mapped file: a header and one
fixed-size record per GPU. Writers hold a lock on the record (a POSIX range lock between processes, a thread lock within
one), so a state survives its processes, as a real GPU's does: clocks locked by a crashed process stay locked.
"""

import fcntl
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from enum import IntFlag
from pathlib import Path
from typing import Literal, TypeAlias

from megatron_energy.errors import UserError

TimeSource: TypeAlias = Literal["wall", "virtual"]
_TIME_SOURCES: tuple[TimeSource, ...] = ("wall", "virtual")

_MAGIC = b"MEGPUS02"  # ends in the layout's version
_HEADER = struct.Struct("<8sIII64s64s")  # magic, GPUs, time source, control allowed, GPU model, node name
_RECORD_OFFSET = 256
_UUID_NAMESPACE = uuid.UUID("6d656761-7472-6f6e-8065-6e6572677900")  # "megatron" "energy": UUIDs of emulated GPUs derive from it

_thread_locks: dict[Path, threading.RLock] = defaultdict(threading.RLock)
os.register_at_fork(after_in_child=_thread_locks.clear)  # a lock held by a thread that the child does not have


class Fault(IntFlag):
    """What can be wrong with an emulated GPU, for tests and rehearsals."""

    NONE = 0
    LOST = 1  # every request fails: GPU is lost
    NO_ENERGY_COUNTER = 2  # as on GPUs before Volta
    NO_INSTANT_POWER = 4  # as on drivers before 530
    IGNORES_LOCKS = 8  # setting clocks succeeds and does nothing


@dataclass(slots=True)
class GpuRecord:
    """State of one emulated GPU. Times are seconds on the node's time source.

    ``energy_mj`` is the energy used up to ``since_s``; ``counter_mj`` is what the energy counter last showed: the two
    differ because the counter steps. A lock takes effect at ``pending_at_s``; until then the ``active_*`` range holds.
    Ranges of (0, 0) mean: not locked. In virtual time the settled values are simply stored here.
    """

    since_s: float = 0.0
    energy_mj: float = 0.0
    counter_mj: int = 0
    power_w: float = 0.0  # virtual time: as settled
    average_power_w: float = -1.0  # wall time: mean of the last second (or of the sensor's window) at since_s; below 0: as the power
    window_power_w: float = -1.0  # wall time: mean over the sensor's window at since_s; below 0: as the power
    shown_average_w: float = -1.0  # wall time: what the sensors last showed of the two
    shown_instant_w: float = -1.0
    clock_mhz: int = 0  # virtual time: as settled
    compute: float = 0.0  # load, 0 to 1; virtual time: utilisation
    memory: float = 0.0
    reasons: int = 0  # virtual time: event reasons as settled
    active_min_mhz: int = 0
    active_max_mhz: int = 0
    locked_min_mhz: int = 0
    locked_max_mhz: int = 0
    pending_at_s: float = 0.0
    power_limit_mw: int = 0
    memory_used_bytes: int = 0
    temperature_c: float = 0.0
    owner_pid: int = 0
    persistence: int = 1
    mig_instances: int = 0  # 0: MIG is off
    faults: int = 0
    locks_set: int = 0  # how many times clocks were set or reset: what a test counts


_RECORD = struct.Struct("<" + "".join("d" if field.type is float else "q" for field in fields(GpuRecord)))
_WORD = struct.Struct("<q")
_FAULTS_OFFSET = [field.name for field in fields(GpuRecord)].index("faults") * _WORD.size


class NodeState:
    """The emulated GPUs of one node. Open it in as many processes as needed; a forked child may go on using it."""

    def __init__(self, path: Path) -> None:
        """Open an existing state. Raises UserError when ``path`` is no state file."""
        self.path = path.resolve()
        _ = _thread_locks[self.path], _thread_locks[self.path / "driver"]  # made here, by one thread
        try:
            self._file = self.path.open("r+b")
        except FileNotFoundError:
            raise UserError(f"no emulated node at {path}: create it with `python -m megatron_energy.emulation`") from None
        try:
            self._map = mmap.mmap(self._file.fileno(), 0)
            magic, self.count, time_source, self.control, model, node = _HEADER.unpack_from(self._map, 0)
        except (ValueError, struct.error):
            magic = b""
        if magic != _MAGIC:
            raise UserError(f"{path} is no emulated node of this version: remove it and start again")
        self.time_source: TimeSource = _TIME_SOURCES[time_source]
        self.model = model.rstrip(b"\0").decode()
        self.node = node.rstrip(b"\0").decode()

    @classmethod
    def create(
        cls,
        path: Path,
        gpu: str,
        count: int,
        *,
        node: str | None = None,
        time_source: TimeSource = "wall",
        control: bool = True,
        replace: bool = True,
        initial: GpuRecord | None = None,
    ) -> "NodeState":
        """Make a node with ``count`` GPUs of catalog model ``gpu`` and open it.

        With ``replace`` False, a node that is already there is opened as it is (of several processes one wins).
        ``initial`` is the state of every GPU at the start (default: idle from now on).
        ``control``: whether callers may set clocks and limits.
        """
        if not 1 <= count <= 64:
            raise UserError(f"{count} emulated GPUs per node: give 1 to 64")
        path.parent.mkdir(parents=True, exist_ok=True)
        record = initial or GpuRecord(since_s=time.monotonic() if time_source == "wall" else 0.0)
        name = (node or node_name()).encode()[:63]
        content = _HEADER.pack(_MAGIC, count, _TIME_SOURCES.index(time_source), control, gpu.encode(), name).ljust(_RECORD_OFFSET, b"\0")
        content += _RECORD.pack(*astuple(record)) * count
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            file.write(content)
        temporary = Path(file.name)
        try:
            if replace:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)  # fails when the node exists, atomically
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
        return cls(path)

    def close(self) -> None:
        """Unmap the file; the GPUs stay as they are."""
        with _thread_locks[self.path]:  # closing drops all of this process's range locks on the file
            self._map.close()
            self._file.close()

    def gpu(self, index: int) -> GpuRecord:
        """A copy of one GPU's state."""
        with _thread_locks[self.path]:  # the same as _locked(), without the cost of two generators: this is the hot path
            offset = self._offset(index)
            fcntl.lockf(self._file, fcntl.LOCK_EX, _RECORD.size, offset)
            try:
                return GpuRecord(*_RECORD.unpack_from(self._map, offset))
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, _RECORD.size, offset)

    def faults(self, index: int) -> Fault:
        """What is wrong with one GPU (a single aligned word, read without the lock)."""
        return Fault(_WORD.unpack_from(self._map, self._offset(index) + _FAULTS_OFFSET)[0])

    @contextmanager
    def edit(self, index: int) -> Iterator[GpuRecord]:
        """Change one GPU's state; nobody else sees or changes it meanwhile. Nothing is written when the block raises."""
        with self._locked(index):
            record = GpuRecord(*_RECORD.unpack_from(self._map, self._offset(index)))
            yield record
            _RECORD.pack_into(self._map, self._offset(index), *astuple(record))

    def advance(
        self,
        index: int,
        *,
        now_s: float,
        energy_mj: int,
        clock_mhz: float,
        power_w: float,
        utilisation: float = 1.0,
        reasons: int = 0,
    ) -> None:
        """Move one GPU on in virtual time, after its iteration was settled.

        ``energy_mj`` is the counter's new reading since the node was created (not a difference); ``reasons`` are NVML's
        event reasons. Raises ValueError in wall time, or when time or counter would fall.
        """
        if self.time_source != "virtual":
            raise ValueError("only a node in virtual time can be advanced; this one follows the wall clock")
        with self.edit(index) as record:
            if now_s < record.since_s or energy_mj < record.counter_mj:
                raise ValueError(
                    f"GPU {index} cannot go back: time {record.since_s} -> {now_s} s, counter {record.counter_mj} -> {energy_mj} mJ"
                )
            record.since_s, record.counter_mj, record.energy_mj = now_s, energy_mj, float(energy_mj)
            record.clock_mhz, record.power_w, record.average_power_w = round(clock_mhz), power_w, power_w
            record.compute, record.reasons = utilisation, reasons

    def uuid(self, index: int) -> str:
        """UUID of one GPU: the same for the same node name, model and index, different between nodes."""
        return f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{self.node}/{self.model}/{index}')}"

    @contextmanager
    def driver_lock(self) -> Iterator[None]:
        """The node-wide lock that a real driver holds while it sets clocks: requests of all GPUs queue here."""
        with _thread_locks[self.path / "driver"], self._range_lock(0, _RECORD_OFFSET):
            yield

    @contextmanager
    def _locked(self, index: int) -> Iterator[None]:
        with _thread_locks[self.path], self._range_lock(self._offset(index), _RECORD.size):
            yield

    @contextmanager
    def _range_lock(self, offset: int, size: int) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX, size, offset)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, size, offset)

    def _offset(self, index: int) -> int:
        if not 0 <= index < self.count:
            raise IndexError(f"GPU {index} of {self.count}")
        return _RECORD_OFFSET + index * _RECORD.size


def node_name(environment: Mapping[str, str] | None = None) -> str:
    """Slurm's name of this node where there is one, so that emulated nodes on one host stay apart; else the host's."""
    return (os.environ if environment is None else environment).get("SLURMD_NODENAME") or socket.gethostname()


def state_path(directory: Path, node: str | None = None) -> Path:
    """Where the state of a node lies."""
    return directory / f"node-{node or node_name()}.state"
