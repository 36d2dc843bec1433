"""Profiles as CSV files: ``stage,chunk,instruction,frequency,time,energy``, times in s and energies in J of one GPU.

``chunk`` is optional: without it (or left blank) a row stands for the whole stage and is split evenly over its chunks. The files
that Zeus' Perseus writes load as they are. Instructions: ``forward``, ``backward``; ``blocking`` (energy / time is the power in W of a
GPU that waits in communication); ``grad-sync``, ``optimizer``, ``p2p`` (time of one transfer) and other names. A frequency of 0 or
blank means that the clock does not matter.

Optional columns: ``position`` (rows of the first and last microbatch are left out: the plan needs the steady ones), ``rank``
(the slowest rank's time, as ranks of a stage run in lock-step; the mean energy; :func:`load_rank_profiles` keeps the ranks apart),
``memory_frequency`` (only the highest is used), ``throttled`` (counted in the provenance), ``time_std``, ``energy_std``, ``samples``
(checked, not used). A further column that says the same in every row is kept as a fact in the profile's provenance; one that varies
is named under ``ignored_columns``.
"""

import csv
import io
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np

from megatron_energy.atomic import write_whole
from megatron_energy.errors import UserError
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.ranks import RankProfiles
from megatron_energy.profiles.rows import Row, read_rows

_Key = tuple[int, int, str]
_COLUMNS = ("stage", "chunk", "instruction", "frequency", "time", "energy")


def load_profile(path: str | os.PathLike[str], scale: float = 1.0) -> Profile:
    """Read a profile; ``scale`` multiplies its times and energies.

    Raises:
        UserError: unreadable file or bad content, naming file, line and column.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise UserError(f"profile scale must be above zero, not {scale}")
    path = Path(path)
    further, rows = read_rows(path)
    provenance = _facts(further, rows)
    provenance.setdefault("source", path.name)
    used = _chosen(path, rows, provenance)
    curves = {key: _curve(path, key, group, scale) for key, group in sorted(_grouped(used).items())}
    _check_chunks(path, curves)
    return Profile(curves, _blocking_power(curves), provenance)


def load_rank_profiles(path: str | os.PathLike[str], stage_of_rank: Sequence[int], scale: float = 1.0) -> RankProfiles:
    """Read the profile of every GPU of a job from a file with a column ``rank``; rows with a blank rank hold for all others.

    Args:
        path: the file.
        stage_of_rank: pipeline stage of every rank of the job.
        scale: multiplies times and energies.

    Raises:
        UserError: as :func:`load_profile`; also where a rank does not belong to the job, or has no rows.
    """
    everyone = load_profile(path, scale)
    path = Path(path)
    rows = _chosen(path, read_rows(path)[1], {})
    _check_ranks(path, rows, stage_of_rank)
    by_rank: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_rank[row.rank].append(row)
    shared = {key: _curve(path, key, group, scale) for key, group in _grouped(by_rank.pop(-1, [])).items()}
    profiles = [replace(everyone, curves=shared)]
    index: dict[tuple[object, ...], int] = {}  # GPUs with the same curves share a profile
    of_rank = [0] * len(stage_of_rank)
    for rank, own in sorted(by_rank.items()):
        curves = shared | {key: _curve(path, key, group, scale) for key, group in _grouped(own).items()}
        content = tuple((key, *(part.tobytes() for part in astuple(curve))) for key, curve in sorted(curves.items()))
        of_rank[rank] = index.setdefault(content, len(profiles))
        if of_rank[rank] == len(profiles):
            profiles.append(replace(everyone, curves=curves))
    return RankProfiles(tuple(profiles), tuple(of_rank))


def _check_ranks(path: Path, rows: list[Row], stage_of_rank: Sequence[int]) -> None:
    shared = {row.stage for row in rows if row.rank < 0}
    measured = {row.rank for row in rows}
    for row in rows:
        if row.rank >= len(stage_of_rank):
            raise UserError(f"{path}, line {row.line}, column rank: {row.rank} is not a rank of this job, which has {len(stage_of_rank)}")
        if row.rank >= 0 and stage_of_rank[row.rank] != row.stage:
            raise UserError(
                f"{path}, line {row.line}, column rank: rank {row.rank} is in stage {stage_of_rank[row.rank]} of this job, not {row.stage}"
            )
    for rank, stage in enumerate(stage_of_rank):
        if rank not in measured and stage not in shared:
            raise UserError(f"{path} has no rows for rank {rank}: measure it too, or leave the rank blank in rows that hold for the others")


def save_profile(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write a profile that :func:`load_profile` reads back equal; provenance becomes columns with one value.

    The file appears complete or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    facts = {name: value for name, value in profile.provenance.items() if name not in _COLUMNS}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS, *facts])
    told = list(facts.values())
    for (stage, chunk, instruction), curve in sorted(profile.curves.items()):
        for clock, time_s, energy_j in zip(curve.clock_mhz.tolist(), curve.time_s.tolist(), curve.energy_j.tolist(), strict=True):
            writer.writerow([stage, "" if chunk < 0 else chunk, instruction, clock, repr(time_s), repr(energy_j), *told])
    has_blocking = any(instruction == "blocking" for _, _, instruction in profile.curves)
    if profile.blocking_power_w is not None and not has_blocking:
        writer.writerow([0, "", "blocking", 0, 1.0, repr(float(profile.blocking_power_w)), *told])
    _write(Path(path), text.getvalue())


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as problem:
        raise UserError(f"profile {path} cannot be written: {problem}") from problem


def _facts(further: tuple[str, ...], rows: list[Row]) -> dict[str, str | float | bool]:
    """Provenance from further columns: those with one value in all rows."""
    facts: dict[str, str | float | bool] = {}
    ignored = []
    for column, name in enumerate(further):
        values = {row.facts[column] for row in rows}
        if len(values) > 1:
            ignored.append(name)
            if name == "emulated":  # in part is enough
                facts[name] = any(_fact(value) is True for value in values)
        else:
            facts[name] = _fact(values.pop())
    if ignored:
        facts["ignored_columns"] = " ".join(ignored)
    return facts


def _fact(text: str) -> str | float | bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text  # JSON knows no nan


def _chosen(path: Path, rows: list[Row], provenance: dict[str, str | float | bool]) -> list[Row]:
    """Rows that make the curves; what was left out is told in the provenance."""
    steady = [row for row in rows if row.position in ("", "steady")]
    if not steady:
        raise UserError(f"{path}, column position: no row is steady or blank; measure microbatches between the first and the last too")
    top = max(row.memory_clock_mhz for row in steady)
    used = [row for row in steady if row.memory_clock_mhz in (-1, top)]
    for name, count in (
        ("rows_of_first_or_last_microbatch", len(rows) - len(steady)),
        ("rows_at_lower_memory_clocks", len(steady) - len(used)),
        ("throttled_rows", sum(row.throttled for row in used)),
    ):
        if count:
            provenance[name] = float(count)
    return used


def _grouped(rows: list[Row]) -> dict[_Key, list[Row]]:
    groups: dict[_Key, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.stage, row.chunk, row.instruction].append(row)
    return groups


def _curve(path: Path, key: _Key, rows: list[Row], scale: float) -> Curve:
    by_clock: dict[int, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        other = by_clock[row.clock_mhz].setdefault(row.rank, row)
        if (other.time_s, other.energy_j) != (row.time_s, row.energy_j):
            raise UserError(
                f"{path}, line {row.line}, column {'time' if other.time_s != row.time_s else 'energy'}: "
                f"{key[2]} of stage {key[0]} at {row.clock_mhz} MHz disagrees with line {other.line}: keep one of the two"
            )
    clocks = sorted(by_clock, reverse=True)
    times = [max(row.time_s for row in by_clock[clock].values()) for clock in clocks]
    energies = [float(np.mean([row.energy_j for row in by_clock[clock].values()])) for clock in clocks]
    return Curve(np.array(clocks, dtype=np.int64), np.array(times) * scale, np.array(energies) * scale)


def _check_chunks(path: Path, curves: dict[_Key, Curve]) -> None:
    for stage, chunk, instruction in curves:
        if chunk >= 0 and (stage, -1, instruction) in curves:
            raise UserError(f"{path}, column chunk: {instruction} of stage {stage} has rows with and without a chunk: keep one of the two")


def _blocking_power(curves: dict[_Key, Curve]) -> float | None:
    """Mean over stages (W), each at its highest measured clock."""
    powers = [curve.energy_j[0] / curve.time_s[0] for (_, _, instruction), curve in curves.items() if instruction == "blocking"]
    return float(np.mean(powers)) if powers else None
