"""The table on 190 measured runs.

With each run's own measured operation times, how far is the replayed iteration time from the measured one (the rest is neither forward nor
backward: transfers, optimizer, data loading)? And with curves fitted on a third of the runs, how far are the ratios to the runs at the
highest clock, which is what a plan promises, on the other two thirds?
"""

from collections.abc import Iterator

import numpy as np
from evaluation import Request, Sheet, Update
from measured_runs import MODELS, Runs, every_third, load_runs, predict

from megatron_energy.pipeline.graph import FloatArray


def median_and_worst(errors: FloatArray) -> tuple[float, float]:
    """(median, the one furthest from zero) of errors in percent, signs kept."""
    return float(np.median(errors)), float(errors[np.abs(errors).argmax()])


def replay_errors(runs: Runs) -> FloatArray:
    """(R,) percent by which the replay of measured operation times differs from the measured iteration time."""
    return np.asarray(100 * (runs.replayed_s(runs.time_s) / runs.iteration_s - 1), dtype=np.float64)


def ratio_errors(runs: Runs) -> tuple[FloatArray, FloatArray]:
    """Percent by which predicted (time, energy) ratios to the highest clock are off, runs that no curve was fitted on, absolute."""
    fitted = every_third(runs)
    found = predict(runs, fitted)
    pairs = ((found.iteration_s, runs.iteration_s), (found.energy_j, runs.energy_j.sum(axis=1)))
    time, energy = (np.abs(100 * (runs.ratio(ours) / runs.ratio(measured) - 1))[~fitted] for ours, measured in pairs)
    return np.asarray(time, dtype=np.float64), np.asarray(energy, dtype=np.float64)


COLUMNS = (
    "runs",
    "replayed against measured time: median, worst, spread",
    "fitted on, tested on",
    "time ratio off: median, worst",
    "energy ratio off: median, worst",
    "slowest / fastest run",
    "least / most energy",
)


def row(runs: Runs) -> dict[str, str]:
    """Cells of one model."""
    errors = replay_errors(runs)
    median, worst = median_and_worst(errors)
    time, energy = ratio_errors(runs)
    energies_j, tested = runs.energy_j.sum(axis=1), len(time)
    cells = [
        f"{len(errors)}",
        f"{median:+.2f}%, {worst:+.2f}%, {errors.std():.2f}%",
        f"{len(errors) - tested}, {tested}",
        *(f"{np.median(part):.2f}%, {part.max():.2f}%" for part in (time, energy)),
        f"{runs.iteration_s.max() / runs.iteration_s.min():.3f}",
        f"{energies_j.min() / energies_j.max():.3f}",
    ]
    return dict(zip(COLUMNS, cells, strict=True))


def _measured(request: Request) -> Iterator[Update]:
    for runs in load_runs(request.folder):
        if request.wants_row((runs.model,)):
            yield (runs.model,), row(runs)


MEASURED = Sheet(("model",), COLUMNS, [(model,) for model in MODELS], _measured)
