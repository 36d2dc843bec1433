"""The planner on published measured profiles and runs: Markdown tables, printed or kept on a page.

    MEGATRON_ENERGY_DATA=FOLDER python tools/evaluate_published.py --table bounds segments [--write docs/evaluation.md]
        [--case "GPT-3 V2 M16" "Bloom ideal"] [--column "K 8"] [--missing] [--effort high]

With --write the cells that were computed replace those between the table's markers on the page, one row after the other: a long table can
be done in parts (--case, --column), in several processes, or go on after an interruption (--missing). Nothing else on the page changes.
"""

import argparse
import fcntl
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evaluate_baselines import BASELINES, ENVPIPE, ENVPIPE_WARMUP, FRONTIER_FILES
from evaluate_bounds import BOUNDS, IDEAL_IN_MODES, OPERATIONS, REAL_CLOCKS
from evaluate_others import GROUPS, OPTIMUM
from evaluate_scale import FRONTIER, LOWTIME, SPEED
from evaluate_switches import HIGH_EFFORT, LIMITS, SEGMENTS, STRAGGLERS
from evaluation import Request, Sheet, Update
from evaluation_page import Table, replace_section, section
from measured_table import MEASURED
from published import data_folder

from megatron_energy.errors import UserError

SHEETS: Mapping[str, Sheet] = {
    "bounds": BOUNDS,
    "ideal-in-modes": IDEAL_IN_MODES,
    "operations": OPERATIONS,
    "real-clocks": REAL_CLOCKS,
    "segments": SEGMENTS,
    "limits": LIMITS,
    "high": HIGH_EFFORT,
    "straggler": STRAGGLERS,
    "frontier-files": FRONTIER_FILES,
    "baselines": BASELINES,
    "envpipe": ENVPIPE,
    "envpipe-warmup": ENVPIPE_WARMUP,
    "optimum": OPTIMUM,
    "groups": GROUPS,
    "frontier": FRONTIER,
    "speed": SPEED,
    "lowtime": LOWTIME,
    "measured": MEASURED,
}
"""The tables."""


def on_page(page: Path, name: str) -> Table:
    """A table as the page has it."""
    table = SHEETS[name].empty()
    table.read(section(page, name).splitlines())
    return table


def put_on_page(page: Path, name: str, update: Update) -> None:
    """Replace cells of one row; several processes may do so at a time."""
    with _alone(page):
        table = on_page(page, name)
        table.put(*update)
        table.sort(SHEETS[name].order)
        replace_section(page, name, "\n".join(table.lines()) + "\n")


@contextmanager
def _alone(page: Path) -> Iterator[None]:
    with page.open(encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def evaluate(name: str, options: argparse.Namespace) -> Table:
    """Compute a table, or those of its cells that are wanted."""
    sheet = SHEETS[name]
    page: Path | None = options.write
    request = Request(
        folder=data_folder(),
        known=sheet.empty() if page is None else on_page(page, name),
        words=options.case,
        missing=options.missing,
        columns=options.column,
        effort=options.effort,
        scratch=options.scratch,
        limit_s=options.limit,
        other=lambda other: None if page is None else on_page(page, other),
    )
    table = sheet.empty()
    for update in sheet.fill(request):
        table.put(*update)
        if page is not None:
            put_on_page(page, name, update)
            print(f"{name}: {' '.join(update[0])}: {dict(update[1])}", file=sys.stderr, flush=True)
    table.sort(sheet.order)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print or write the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", nargs="+", choices=tuple(SHEETS), required=True, help="which tables")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put them between their markers on this page")
    parser.add_argument("--case", nargs="+", default=(), metavar="WORDS", help="only rows that have all of these words, or all of those")
    parser.add_argument("--column", nargs="+", default=(), metavar="NAME", help="only these columns, where cells are computed one by one")
    parser.add_argument("--missing", action="store_true", help="only cells that the page does not have yet")
    parser.add_argument("--effort", choices=("default", "high"), default="default", help="of searches (default: default)")
    parser.add_argument("--limit", type=float, default=60.0, metavar="S", help="seconds for a proof or another solver (default: 60)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="of lowtime: where its environment is or is to be made")
    options = parser.parse_args(arguments)
    try:
        for name in options.table:
            table = evaluate(name, options)
            if options.write is None:
                print("\n".join(table.lines()), end="\n\n", flush=True)
    except (OSError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
