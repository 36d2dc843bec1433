"""A profile learned from records of a live run: times from spans, powers from the steps of the energy counter.

A GPU's energy counter advances in steps of tens of milliseconds, too coarse for the joules of one operation. So the powers
of all activities of a GPU at one clock are estimated together: between two updates of the counter, the energy difference is
the sum over activities of (time spent in it) x (its power). Many such windows make an over-determined linear system, solved
by non-negative least squares (scipy.optimize.nnls). Operations are assumed to draw one constant power each.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.records.iteration import RankIteration, Span

FloatArray = npt.NDArray[np.float64]
Key = tuple[str, int]
"""(activity, chunk): what powers and times are learned for; chunk -1 where it does not apply."""

Series = Sequence[RankIteration]
"""Consecutive iterations of one rank at one requested clock. Counter samples on both sides of an iteration's end show what its
short last steps draw, so two iterations tell more than twice as much as one."""

IDLE: Key = ("idle", -1)
WAIT: Key = ("wait", -1)


class LearningError(Exception):
    """The records do not determine a profile; the message says what is missing."""


@dataclass(frozen=True)
class Measurement:
    """One kind of operation of one GPU at one requested clock: mean seconds and watts over ``samples`` spans."""

    time_s: float
    power_w: float
    samples: int


def _key(span: Span) -> Key:
    return (span.activity, span.chunk if span.activity in ("forward", "backward") else -1)


def steady_spans(series: Series, clock_mhz: int) -> list[Span]:
    """The spans from the first moment on at which all later ones ran at the requested clock.

    A throttled span counts: the clock was requested, and the GPU's power cap is part of what the request gives.
    """
    spans: list[Span] = []
    for span in reversed([span for record in series for span in record.spans]):
        at_request = span.throttled or abs(span.clock_mhz - clock_mhz) < 0.5
        if not (span.steady_clock and at_request):
            break
        spans.append(span)
    return spans[::-1]


def _windows(series: Series, spans: Sequence[Span], keys: dict[Key, int]) -> tuple[FloatArray, FloatArray]:
    """Rows of overlap seconds per key, and joules, one per pair of neighbouring counter samples within the spans."""
    if not spans:
        return np.zeros((0, len(keys))), np.zeros(0)
    begin_s = spans[0].start_s
    samples = [(t, mj) for record in series for t, mj in record.energy_samples if begin_s <= t <= series[-1].end_s]
    if len(samples) < 2:
        return np.zeros((0, len(keys))), np.zeros(0)
    times = np.array([t for t, _ in samples])
    joules = np.diff([mj for _, mj in samples]) / 1e3
    seconds = np.zeros((len(joules), len(keys)))
    for span in spans:
        overlap = np.minimum(times[1:], span.end_s) - np.maximum(times[:-1], span.start_s)
        seconds[:, keys[_key(span)]] += np.maximum(overlap, 0.0)
    seconds[:, keys[IDLE]] = np.maximum(np.diff(times) - seconds.sum(axis=1), 0.0)
    known = ~_across_gaps(series, times)
    return seconds[known], joules[known]


def _across_gaps(series: Series, times_s: FloatArray) -> npt.NDArray[np.bool_]:
    """Which windows between neighbouring samples contain something between two iterations of the series, such as an evaluation."""
    across = np.zeros(len(times_s) - 1, dtype=np.bool_)
    for before, after in itertools.pairwise(series):
        if after.start_s > before.end_s:
            across |= (times_s[:-1] < after.start_s) & (times_s[1:] > before.end_s)
    return across


def powers_w(pairs: Sequence[tuple[Series, Sequence[Span]]]) -> dict[Key, float]:
    """Watts of every activity in the given spans of like GPUs at one clock, by non-negative least squares.

    A short activity that no window covers or tells apart from the others, such as a grad-sync that always shares its window with the
    optimizer, is missing in the result; of the joules it is given the power of waiting.

    Raises:
        LearningError: there are no counter samples to learn from.
    """
    names = sorted({_key(span) for _, spans in pairs for span in spans})
    keys = {name: i for i, name in enumerate([*names, IDLE])}
    blocks = [_windows(series, spans, keys) for series, spans in pairs]
    seconds = np.concatenate([b[0] for b in blocks]) if blocks else np.zeros((0, 1))
    joules = np.concatenate([b[1] for b in blocks]) if blocks else np.zeros(0)
    if len(joules) == 0:
        raise LearningError("the energy counter did not advance during the sweep: iterations are shorter than its update period")
    _check_determined(seconds)
    watts = _solved(seconds, joules)
    waiting = keys.get(WAIT)
    while waiting is not None and np.isfinite(watts[waiting]):
        undetermined = _undetermined(seconds, watts, fixed=(waiting, keys[IDLE]))
        if undetermined is None:
            break
        joules = joules - seconds[:, undetermined] * watts[waiting]
        seconds[:, undetermined] = 0.0
        watts = _solved(seconds, joules)
    return {name: float(watts[i]) for name, i in keys.items() if np.isfinite(watts[i])}


def _solved(seconds: FloatArray, joules: FloatArray) -> FloatArray:
    """(activities,) watts by non-negative least squares; NaN where no window covers an activity."""
    seen = seconds.sum(axis=0) > 0
    watts = np.full(seconds.shape[1], np.nan)
    watts[seen] = nnls(seconds[:, seen], joules)[0]
    return watts


def _undetermined(seconds: FloatArray, watts: FloatArray, fixed: tuple[int, ...]) -> int | None:
    """The shortest of the short activities whose power the windows do not tell; ``fixed`` ones are not asked about."""
    total = seconds.sum(axis=0)
    for column in map(int, np.argsort(total)):
        if column in fixed or not 0 < total[column] < MAIN_SHARE * seconds.sum():
            continue
        if watts[column] <= 0 or not _distinct(seconds, column):
            return column
    return None


def _distinct(seconds: FloatArray, column: int) -> bool:
    """Whether the windows tell an activity apart from all others together."""
    own, others = seconds[:, column], np.delete(seconds, column, axis=1)
    left = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
    return bool(np.linalg.norm(left) >= DISTINCT * np.linalg.norm(own))


MAIN_SHARE = 0.02
"""Activities with at least this share of the time have to be told apart; errors in shorter ones hardly matter."""

DISTINCT = 0.1
"""Share of a short activity's pattern over the windows that no mix of the others explains, at least, for its power to be told."""

WORST_CONDITION = 100.0
"""Of the main activities' columns, scaled to length 1: errors of the counter (one step in a window) may grow by this factor."""


def _check_determined(seconds: FloatArray) -> None:
    """Whether the windows of the counter tell the main activities apart.

    Raises:
        LearningError: they do not.
    """
    share = seconds.sum(axis=0) / seconds.sum()
    main = seconds[:, share >= MAIN_SHARE]
    if len(main) < main.shape[1] or np.linalg.cond(main / np.linalg.norm(main, axis=0)) > WORST_CONDITION:
        raise LearningError("the steps of the energy counter do not tell the operations apart: operations are too short against its period")


def measure(ranks: Sequence[Series], clock_mhz: int) -> dict[Key, Measurement]:
    """Times and powers of like GPUs (ranks of one stage) in iterations at one requested clock.

    A step too short for the windows of the counter to tell its power (a grad-sync of a few milliseconds) is given the power of
    waiting: that is what most of it is, and little energy is at stake.

    Raises:
        LearningError: no counter samples.
    """
    pairs = [(series, steady_spans(series, clock_mhz)) for series in ranks]
    watts = powers_w(pairs)
    waiting_w = watts.get(WAIT)
    lengths: dict[Key, list[list[float]]] = defaultdict(list)  # per rank that has the activity
    for _, spans in pairs:
        mine: dict[Key, list[float]] = defaultdict(list)
        for span in spans:
            mine[_key(span)].append(span.end_s - span.start_s)
        for key, seconds in mine.items():
            lengths[key].append(seconds)
    found = {key: (watts.get(key, waiting_w), values) for key, values in lengths.items()}
    return {
        key: Measurement(_typical(key, values), power_w, sum(map(len, values)))
        for key, (power_w, values) in found.items()
        if power_w is not None
    }


def _typical(key: Key, by_rank: Sequence[Sequence[float]]) -> float:
    """The slowest rank's median: it sets the pace of the replicas and of its lock-step group.

    For collectives the minimum over all: on a real GPU a collective's kernel also contains the wait for the last member.
    """
    if key[0] in ("grad-sync", "optimizer"):
        return min(min(seconds) for seconds in by_rank)
    return float(max(np.median(seconds) for seconds in by_rank))


def learn_profile(
    sweep: Mapping[int, Sequence[Sequence[RankIteration]]],
    stage_of_rank: Sequence[int],
    transfer_s: float,
    provenance: dict[str, str | float | bool],
) -> Profile:
    """Profile of all stages from iterations at several clocks.

    Args:
        sweep: requested clock in MHz -> the consecutive iterations run at it, each with all ranks' records by rank.
        stage_of_rank: pipeline stage by rank.
        transfer_s: seconds of one p2p transfer.
        provenance: facts to keep with the profile.

    Raises:
        LearningError: an operation kind was not seen at some clock.
    """
    clocks = sorted(sweep, reverse=True)
    stages = sorted(set(stage_of_rank))
    table: dict[tuple[int, Key], list[tuple[int, Measurement]]] = defaultdict(list)
    blocking: list[float] = []
    for clock in clocks:
        for stage in stages:
            ranks = [rank for rank, its_stage in enumerate(stage_of_rank) if its_stage == stage]
            found = measure([[iteration[rank] for iteration in sweep[clock]] for rank in ranks], clock)
            for key, value in found.items():
                table[stage, key].append((clock, value))
            if WAIT in found:
                blocking.append(found[WAIT].power_w)
    curves = {}
    for (stage, (activity, chunk)), values in table.items():
        if activity in ("wait", "other", "idle"):
            continue
        if len(values) != len(clocks):
            missing = sorted(set(clocks) - {clock for clock, _ in values})
            raise LearningError(f"no clean {activity} of stage {stage} at {missing} MHz: iterations are too short to try a clock in")
        curves[stage, chunk, activity] = Curve(
            np.array([clock for clock, _ in values], dtype=np.int64),
            np.array([m.time_s for _, m in values]),
            np.array([m.time_s * m.power_w for _, m in values]),
        )
    profile = Profile(curves, float(np.median(blocking)) if blocking else None, provenance)
    return with_transfer_time(profile, transfer_s) if transfer_s > 0 else profile


def with_transfer_time(profile: Profile, transfer_s: float) -> Profile:
    """The profile with this time for a p2p transfer."""
    clocks = max((curve.clock_mhz for curve in profile.curves.values()), key=len)
    curve = Curve(clocks, np.full(len(clocks), transfer_s), np.zeros(len(clocks)))
    kept = {key: value for key, value in profile.curves.items() if key[2] != "p2p"}
    return replace(profile, curves={**kept, (0, -1, "p2p"): curve})


def transfer_time_s(records: Iterable[RankIteration]) -> float:
    """Seconds of one p2p transfer: the shortest wait that was a wait at all.

    A send whose receiver already waits completes after exactly one transfer; waits behind computation are longer. Transfers
    that overlap with computation may show as shorter waits, so the figure is a lower estimate. 0 without any wait.
    """
    waits = [s.end_s - s.start_s for r in records for s in r.spans if s.activity == "wait" and s.end_s > s.start_s]
    return min(waits, default=0.0)
