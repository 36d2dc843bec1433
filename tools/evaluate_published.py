"""The planner and its replay on published profiles and measured runs: Markdown tables.

    MEGATRON_ENERGY_DATA=FOLDER python tools/evaluate_published.py [--tables replay ...]

``replay``: 190 measured runs. With each run's own measured operation times, how far is the replayed iteration time from the measured one
(the rest is neither forward nor backward: transfers, optimizer, data loading)? And with curves fitted on a third of the runs, how far
are the ratios to the runs at the highest clock, which is what a plan promises, on the other two thirds?
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from measured_runs import Runs, every_third, load_runs, predict

from megatron_energy.errors import UserError
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


def replay_table(folder: Path) -> Iterator[str]:
    """Lines of the table on measured runs."""
    columns = (
        "model",
        "runs",
        "replayed against measured time: median, worst, spread",
        "fitted on, tested on",
        "time ratio off: median, worst",
        "energy ratio off: median, worst",
        "slowest / fastest run",
        "least / most energy",
    )
    yield f"| {' | '.join(columns)} |"
    yield f"| --- |{' ---: |' * (len(columns) - 1)}"
    for runs in load_runs(folder):
        errors = replay_errors(runs)
        median, worst = median_and_worst(errors)
        time, energy = ratio_errors(runs)
        energies_j = runs.energy_j.sum(axis=1)
        tested = len(time)
        cells = [
            runs.model,
            f"{len(errors)}",
            f"{median:+.2f}%, {worst:+.2f}%, {errors.std():.2f}%",
            f"{len(errors) - tested}, {tested}",
            *(f"{np.median(part):.2f}%, {part.max():.2f}%" for part in (time, energy)),
            f"{runs.iteration_s.max() / runs.iteration_s.min():.3f}",
            f"{energies_j.min() / energies_j.max():.3f}",
        ]
        yield f"| {' | '.join(cells)} |"


TABLES: Mapping[str, Callable[[Path], Iterator[str]]] = {"replay": replay_table}


def main(arguments: list[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=list(TABLES), help="which tables (default: all)")
    options = parser.parse_args(arguments)
    folder = os.environ.get("MEGATRON_ENERGY_DATA")
    if not folder:
        print("error: set MEGATRON_ENERGY_DATA to the folder with the published profiles", file=sys.stderr)
        return 2
    for name in options.tables:
        try:
            for line in TABLES[name](Path(folder)):
                print(line, flush=True)
        except (OSError, UserError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
