"""What the scheduler costs a rank, as CPU time of its threads per iteration, and in bytes: a Markdown table.

    python tools/bench_iteration.py [--iterations 60] [--counted 20] [--out DIR] [--only off nvml emulated]

Three real trainings of 16 ranks (the quick start's: 2 tensor x 4 pipeline x 2 data, 2 chunks, 8 microbatches) on this host's CPU:

    off         without us; the same places are measured all the same, and what that costs is taken off the other two
    nvml        as on GPUs: hooks with events, a sampler and a controller in threads of their own, exchange and writing every 10 iterations;
                only the NVML library beneath is emulated, and its time is a row of its own
    emulated    the quick start's, which gathers and settles every iteration, and writes it

Counted are the last iterations, which are under a plan. CPU time grows with whatever else runs on the cores: Megatron's own, the last
row, tells by how much. A few minutes on two cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RANKS = 16
INTERVAL = {"off": 10, "nvml": 10, "emulated": 1}
FLAGS = {
    "off": "--energy-policy off",
    "nvml": "--energy-policy segments --energy-device nvml --energy-baseline-iterations 3 --energy-sweep-clocks 4",
    "emulated": "--energy-policy segments --energy-device emulated --energy-baseline-iterations 3 --energy-sweep-clocks 4",
}
NOT_OURS = ("stock", "measurement")
ONCE = ("home: picture, once", "thread planning")


@dataclass(frozen=True)
class RankCost:
    """Means per iteration of one rank.

    Attributes:
        main_ms: CPU time of its main thread, by owner.
        threads_ms: of Python's other threads, by name, without the emulated NVML.
        library_ms: of the emulated NVML in those.
        sent_bytes: to other ranks, by kind of exchange.
        iteration_s: wall time of an iteration.
    """

    main_ms: dict[str, float]
    threads_ms: dict[str, float]
    library_ms: float
    sent_bytes: dict[str, float]
    iteration_s: float


def rank_cost(found: dict[str, Any], counted: int) -> RankCost:
    """From a file of tools/iteration_costs.py: the difference of its clocks over the last ``counted`` iterations."""
    first, last = found["iterations"][-1 - counted], found["iterations"][-1]

    def grown(name: str) -> dict[str, float]:
        return {key: (value - first[name].get(key, 0)) / counted for key, value in last[name].items()}

    switches, spent, library = grown("switches"), grown("spent_ns"), grown("library_ns")
    return RankCost(
        main_ms={owner: (ns - switches[owner] * found["reading_ns"]) / 1e6 for owner, ns in spent.items()},
        threads_ms={name: (ns - library.get(name, 0.0)) / 1e6 for name, ns in grown("threads_ns").items()},
        library_ms=sum(ns for name, ns in library.items() if name != "MainThread") / 1e6,
        sent_bytes=grown("sent"),
        iteration_s=(last["wall_s"] - first["wall_s"]) / counted,
    )


def small_model() -> dict[str, list[str]]:
    """The arguments of scripts/lib/tiny_gpt.sh, by the name of their array."""
    names = ("layout", "model", "optimizer", "host", "emulated")
    code = f'. "$1"; for name in {" ".join(names)}; do declare -n words=$name; echo "${{words[*]}}"; done'
    done = subprocess.run(["bash", "-c", code, "bash", str(ROOT / "scripts/lib/tiny_gpt.sh")], check=True, capture_output=True, text=True)
    return {name: line.split() for name, line in zip(names, done.stdout.splitlines(), strict=True)}


def run(way: str, folder: Path, iterations: int) -> None:
    """One training, measured; see tools/iteration_costs.py."""
    corpus = folder.parent / "corpus.txt"
    if not corpus.exists():
        subprocess.run([sys.executable, str(ROOT / "scripts" / "make_corpus.py"), "--out", str(corpus)], check=True, capture_output=True)
    model = small_model()
    emulated = {"MEGATRON_ENERGY_EMULATED": f"a100-sxm4-80gb:{RANKS}", "MEGATRON_ENERGY_EMULATED_DIR": str(folder / "gpus")}
    command = [
        *(sys.executable, str(ROOT / "tools" / "iteration_costs.py"), str(folder / "costs"), "--nproc", str(RANKS)),
        *(str(ROOT / "scripts" / "pretrain_gpt.py"), *model["layout"], *model["model"], *model["optimizer"], *model["host"]),
        *("--train-text", str(corpus), "--train-iters", str(iterations), "--log-interval", str(INTERVAL[way])),
        *("--tensorboard-dir", str(folder / "tensorboard"), *FLAGS[way].split(), *(model["emulated"] if way == "emulated" else [])),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(emulated if way == "nvml" else {})}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("w") as log:
        done = subprocess.run(command, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"error: the training {way} failed, exit status {done.returncode}: see {folder / 'log'}")


def written_bytes(folder: Path, way: str, counted: int) -> dict[str, float]:
    """Bytes per iteration and GPU in RUN_DIR/iterations.jsonl, and of our tags in TensorBoard's file."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    lines = (folder / "tensorboard" / "energy" / "iterations.jsonl").read_text().splitlines()[-counted:]
    last, ours = json.loads(lines[-1])["iteration"], 0
    for file in (folder / "tensorboard").glob("events.*"):
        for raw in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(raw)
            is_ours = any("energy" in value.tag or value.tag == "power/gpu" for value in event.summary.value)
            if is_ours and event.step > last - counted and all(value.HasField("simple_value") for value in event.summary.value):
                ours += len(raw) + 16  # of a record's frame: length and two checksums
    return {
        "RUN_DIR (iterations.jsonl)": sum(len(line) + 1 for line in lines) / counted / RANKS,
        f"TensorBoard, every {INTERVAL[way]} iterations" if INTERVAL[way] > 1 else "TensorBoard, every iteration": ours / counted / RANKS,
    }


def rows(costs: Sequence[RankCost], control: Sequence[RankCost]) -> dict[str, list[float]]:
    """By part, ms per iteration of every rank; the hooks without what measuring them costs."""
    measuring = statistics.mean(cost.main_ms["hooks"] for cost in control) if control else 0.0
    owners = sorted({owner for cost in costs for owner in cost.main_ms if owner not in NOT_OURS and owner != "emulated NVML"})
    found = {owner: [cost.main_ms.get(owner, 0.0) for cost in costs] for owner in owners}
    found["hooks"] = [ms - measuring for ms in found["hooks"]]
    for name in ("gpu-sampler", "clock-controller", "planning"):
        if any(name in cost.threads_ms for cost in costs):
            found[f"thread {name}"] = [cost.threads_ms.get(name, 0.0) for cost in costs]
    return found


def table(way: str, costs: Sequence[RankCost], control: Sequence[RankCost]) -> Iterable[str]:
    """Rows of a Markdown table: the mean of all ranks but the home rank, and the home rank."""
    found = rows(costs, control)
    yield f"| {way}: CPU time, ms per iteration | ranks 0 to {RANKS - 2}, mean | home rank |\n| --- | ---: | ---: |"
    for name, values in found.items():
        yield f"| {name} | {statistics.mean(values[:-1]):.2f} | {values[-1]:.2f} |"
    sums = [sum(values[rank] for name, values in found.items() if name not in ONCE) for rank in range(RANKS)]
    yield f"| **all, but for what happens once** | **{statistics.mean(sums[:-1]):.2f}** | **{sums[-1]:.2f}** |"
    main = [sum(v[rank] for name, v in found.items() if name not in ONCE and not name.startswith("thread")) for rank in range(RANKS)]
    yield f"| of this, on the main thread | {statistics.mean(main[:-1]):.2f} | {main[-1]:.2f} |"
    yield f"| emulated NVML in threads | {statistics.mean(c.library_ms for c in costs[:-1]):.2f} | {costs[-1].library_ms:.2f} |"
    stock = [cost.main_ms["stock"] for cost in costs]
    yield f"| Megatron's own, main thread | {statistics.mean(stock[:-1]):.1f} | {stock[-1]:.1f} |"
    yield f"\nAn iteration took {statistics.mean(cost.iteration_s for cost in costs):.2f} s.\n"


def sent(costs: Sequence[RankCost]) -> float:
    """Bytes per iteration and GPU between ranks, both ways."""
    total: Counter[str] = Counter()
    for cost in costs:
        total.update(cost.sent_bytes)  # type: ignore[arg-type]
    return sum(total.values()) / RANKS


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--counted", type=int, default=20, help="so many of them, the last, are counted")
    parser.add_argument("--only", nargs="+", choices=list(FLAGS), default=list(FLAGS))
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the runs here; those that are there already are not run again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = (options.out or Path(scratch)).resolve()
        costs: dict[str, list[RankCost]] = {}
        for way in options.only:
            if not (folder / way / "costs").exists():
                run(way, folder / way, options.iterations)
            files = [folder / way / "costs" / f"rank-{rank}.json" for rank in range(RANKS)]
            costs[way] = [rank_cost(json.loads(file.read_text()), options.counted) for file in files]
        for way in [way for way in options.only if way != "off"]:
            for line in table(way, costs[way], costs.get("off", [])):
                print(line)
            for name, size in {**written_bytes(folder / way, way, options.counted), "between ranks": sent(costs[way])}.items():
                print(f"- {name}: {size:,.0f} bytes per iteration and GPU")
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
