"""Kills training jobs under a plan, in several ways, and measures how long it takes until their GPUs are as found.

    python tools/check_kills.py [--kills 3] [--ranks 4]

Real Megatron on CPU ranks, emulated GPUs in wall time; prints a Markdown table. With clockd, and without it (then a watchdog process
per rank restores). Beside the job that is killed, another one runs on other GPUs of the node. Exit status 1 where a clock or a power
limit was not restored, or the other job's GPUs were touched.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.clockd.host import Host
from tests.session.job_kills import WAYS, Jobs

HEADER = (
    "| clocks are set | killed with SIGKILL | times | restored after, median / worst / s | neighbour untouched |\n|---|---|---|---|---|"
)


def kills(clockd: bool, count: int, ranks: int) -> list[str]:
    """Rows of the table: every way to kill, ``count`` times."""
    with tempfile.TemporaryDirectory(prefix="check-kills-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        host = Host(folder, gpus=2 * ranks)
        jobs = Jobs(host, ranks)
        try:
            if clockd:
                host.start()
            jobs.wait_for_plan(jobs.start("neighbour", range(ranks, 2 * ranks), clockd))
            return [_row(jobs, way, clockd, count) for way in WAYS]
        finally:
            jobs.close()
            host.close()


def _row(jobs: Jobs, way: str, clockd: bool, count: int) -> str:
    ranks, took_s, untouched = jobs.count, [], True
    for number in range(count):
        job = jobs.start(f"{way.replace(' ', '-')}-{number}", range(ranks), clockd)
        jobs.wait_for_plan(job)
        before = [jobs.host.gpu(index).locks_set for index in range(ranks, 2 * ranks)]
        took_s.append(jobs.kill(job, way))
        untouched &= before == [jobs.host.gpu(index).locks_set for index in range(ranks, 2 * ranks)]
        untouched &= all(jobs.is_lowered(index) for index in range(ranks, 2 * ranks))
    how = "through clockd" if clockd else "by the ranks, with watchdogs"
    times = f"{statistics.median(took_s):.2f} / {max(took_s):.2f}"
    return f"| {how} | {way} | {count} | {times} | {'yes' if untouched else 'NO'} |"


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=3, help="of every kind (default: %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="of a job, one emulated GPU each (default: %(default)s)")
    args = parser.parse_args(argv)
    print(f"Jobs of {args.ranks} ranks under a plan, emulated GPUs in wall time\n\n{HEADER}")
    rows = [row for clockd in (True, False) for row in kills(clockd, args.kills, args.ranks)]
    print("\n".join(rows))
    return int(any("| NO |" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
