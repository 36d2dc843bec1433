"""RUN_DIR/iterations.jsonl: one line per iteration, kept for as long as the run is of interest.

The first line names the schema. A ``gpus`` line says which GPUs the following lines speak of; it is repeated only when
they change, so that an iteration of a thousand GPUs costs its measurements and nothing else::

    {"schema": "megatron-energy/iterations", "version": 1}
    {"gpus": [{"rank": 0, "node": "node0", "gpu": 0, "uuid": "GPU-...", "stage": 0, "tensor": 0, "data": 0}, ...]}
    {"iteration": 1, "phase": "baseline", "time_s": 12.3, ..., "energy_j": [3712.5, ...], "power_w": [301.8, ...], ...}

The lists of an iteration have one value per GPU, in the order of the ``gpus`` line. null stands for a missing value.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from megatron_energy.errors import UserError
from megatron_energy.observe.plain import plain
from megatron_energy.records.summary import GpuSummary, IterationSummary

FILE_NAME = "iterations.jsonl"
SCHEMA = "megatron-energy/iterations"
SCHEMA_VERSION = 1

_IDENTITY = ("rank", "node", "gpu", "uuid", "stage", "tensor", "data")
_MEASURED = tuple(f.name for f in fields(GpuSummary) if f.name not in _IDENTITY)
_JOB = tuple(f.name for f in fields(IterationSummary) if f.name != "gpus")


class Journal:
    """Writer and reader of the iterations of one run.

    Example::

        with Journal(run_dir) as journal:
            journal.append(summary)
        summaries = Journal(run_dir).read()

    A job that is started again from a checkpoint is another run, with a journal of its own;
    :func:`~megatron_energy.observe.run_directory.read_job` reads all of them.

    Args:
        run_dir: directory of the run's records; it is made when the first iteration is appended.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir) / FILE_NAME
        self._file: TextIO | None = None
        self._gpus: list[dict[str, Any]] | None = None

    def append(self, summary: IterationSummary) -> None:
        """Write one iteration and hand it to the operating system, so that a crash of this process cannot lose it.

        Raises:
            UserError: the file is there and is not ours, or was written by a newer version.
        """
        file = self._file or self._open()
        gpus = [{name: getattr(g, name) for name in _IDENTITY} for g in summary.gpus]
        if gpus != self._gpus:
            file.write(_line({"gpus": gpus}))
            self._gpus = gpus
        record: dict[str, Any] = {name: getattr(summary, name) for name in _JOB}
        for name in _MEASURED:
            record[name] = [getattr(g, name) for g in summary.gpus]
        file.write(_line(record))
        file.flush()

    def read(self) -> list[IterationSummary]:
        """All complete iterations in the order they were written; an unfinished last line is left out.

        Where a file holds several starts of a job, the iterations that a later one repeats are those of the later one.

        Raises:
            UserError: no such file, not ours, written by a newer version, or damaged before its last line.
        """
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}; give the run directory (--energy-dir) of a run") from error
        return without_repeats(self._summaries(text))

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._file is not None:
            self._file.close()
        self._file, self._gpus = None, None

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _open(self) -> TextIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        if not fresh:
            self._drop_torn_line()
            with self.path.open(encoding="utf-8", errors="replace") as existing:
                first = existing.readline()
            fresh = not first
            if first:
                self._check_header(first)
        self._file = self.path.open("a", encoding="utf-8")
        if fresh:
            self._file.write(_line({"schema": SCHEMA, "version": SCHEMA_VERSION}))
        return self._file

    def _drop_torn_line(self) -> None:
        """Cut what a crash left after the last complete line: a new line must not be glued to it."""
        with self.path.open("rb+") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)

    def _check_header(self, line: str) -> None:
        header = _parse(line)
        if header is None or header.get("schema") != SCHEMA:
            raise UserError(f"{self.path} is not a record of iterations: move it away or choose another --energy-dir")
        if header.get("version") != SCHEMA_VERSION:
            raise UserError(
                f"{self.path} has schema version {header.get('version')}, this release knows {SCHEMA_VERSION}: "
                "use the release that wrote it, or another --energy-dir"
            )

    def _summaries(self, text: str) -> Iterator[IterationSummary]:
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        if not lines:
            return
        self._check_header(lines[0])
        gpus: list[dict[str, Any]] = []
        for number, line in enumerate(lines[1:], start=2):
            record = _parse(line)
            if record is None:
                raise UserError(f"{self.path} line {number} is damaged: remove that line to read the rest")
            if "iteration" in record:
                yield _summary(record, gpus)
            elif "gpus" in record:
                gpus = record["gpus"]


def is_journal(path: Path) -> bool:
    """Whether a file is a record of iterations, of whatever version."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            header = _parse(file.readline())
    except OSError:
        return False
    return header is not None and header.get("schema") == SCHEMA


def without_repeats(summaries: Iterable[IterationSummary]) -> list[IterationSummary]:
    """Of iterations that were repeated from an earlier checkpoint on, the later ones."""
    kept: list[IterationSummary] = []
    latest = 0  # training iteration
    for summary in summaries:
        if summary.phase != "evaluation":
            if summary.iteration <= latest:
                kept = [s for s in kept if s.iteration < summary.iteration]
            latest = summary.iteration
        kept.append(summary)
    return kept


def _line(record: dict[str, Any]) -> str:
    return json.dumps(plain(record), separators=(",", ":"), allow_nan=False) + "\n"


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _summary(record: dict[str, Any], gpus: list[dict[str, Any]]) -> IterationSummary:
    # Fields that a later minor release adds are left out, fields that an earlier one lacked keep their defaults.
    measured = [name for name in _MEASURED if name in record]
    rows = []
    for i, gpu in enumerate(gpus):
        values: dict[str, Any] = {name: math.nan if record[name][i] is None else record[name][i] for name in measured}
        rows.append(GpuSummary(**gpu, **values))
    return IterationSummary(**{name: record[name] for name in _JOB if name in record}, gpus=rows)
