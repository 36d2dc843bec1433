"""The same script with and without the scheduler, under torchrun and as forks: equal losses, an equal log, nothing imported without flags.

    python tools/check_dropin.py [--ranks 16] [--iterations 4] [--starts STARTS] [--out DIR] [--json]

Runs scripts/pretrain_gpt.py (TP2 x PP4 x 2 chunks x DP2 on 16 ranks) on the CPU in up to five ways. `bare` is torchrun without the
launcher: on a host without CUDA a wrapper lends it the CPU shims and nothing else. 16 ranks under torchrun import Megatron 16 times:
about a minute each on 2 cores. Ends with status 1 where anything differs.
"""

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_LAUNCHER = """
megatron_energy megatron_energy.cli megatron_energy.cli.launch megatron_energy.errors megatron_energy.megatron
megatron_energy.megatron.flags megatron_energy.megatron.folders megatron_energy.megatron.stopping megatron_energy.session
megatron_energy.session.options
"""
LAUNCHER = _LAUNCHER.split()
"""What a run without flags imports of ours; ``megatron_energy.run`` itself runs as ``__main__``."""
ON_A_CPU = tuple(f"megatron_energy.megatron.{name}" for name in ("cpu", "fork", "preload", "imports"))
"""Beginnings of the names of what --cpu and --nproc add."""

TEXT = "".join(f"{n} times {n} is {n * n}. " for n in range(3000))  # some 60 kB to learn from
SCRIPT = ROOT / "scripts" / "pretrain_gpt.py"
TOLD = """
import os, sys
with open(os.path.join({folder!r}, os.environ["RANK"] + ".modules"), "w") as file:
    print(*sorted(name for name in sys.modules if name.partition(".")[0] == "megatron_energy"), file=file)
"""
WRAPPER = "import runpy\nrunpy.run_path({script!r}, run_name='__main__')\n" + TOLD
SHIMS = "import torch\nif not torch.cuda.is_available():\n    from megatron_energy.megatron import cpu\n    cpu.install()\n"
_MODEL = """
--num-layers 8 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1
--lr 1e-2 --min-lr 1e-2 --lr-decay-style constant --make-vocab-size-divisible-by 8 --global-batch-size 16 --num-workers 0
--distributed-backend gloo --transformer-impl local --use-cpu-initialization --position-embedding-type learned_absolute
--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
--no-gradient-accumulation-fusion --hidden-dropout 0 --attention-dropout 0 --eval-iters 0 --eval-interval 1000 --log-interval 1
--num-layers-per-virtual-pipeline-stage 1 --disable-gloo-process-groups
"""
LAYOUTS = {
    16: ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "4"],
    4: ["--pipeline-model-parallel-size", "4"],
}
_ENERGY = """
--energy-policy segments --energy-device emulated --energy-emulated-model gpt3-13b --energy-emulated-micro-batch 4
--energy-baseline-iterations 1 --energy-sweep-clocks 2
"""
STARTS = ("bare", "torchrun", "torchrun-energy", "fork", "fork-energy")
FIGURES = re.compile(r"iteration +(\d+)/.*lm loss: (\S+) .*grad norm: (\S+)")
VARYING = (
    (re.compile(r"\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\]?"), "TIME"),
    (re.compile(r"elapsed time per iteration \(ms\): [\d.]+"), "elapsed"),
    (re.compile(r"\([\d.]+, [\d.]+\)|0x[0-9a-f]+|(?<=:)\d{4,5}\b"), "#"),
    (re.compile(r"\b(time|seconds?|ms|took|compil\w*)\b([^\d]*)[\d.]+", re.IGNORECASE), r"\1\2#"),
)
"""What differs between any two runs of a log: times, addresses and ports."""


@dataclass(frozen=True)
class Run:
    """One start of the script.

    Attributes:
        status: exit status.
        wall_s: how long it took.
        figures: iteration, loss and gradient norm, as Megatron prints them.
        log: what every rank printed to stdout (as forks: the last rank), line by line, without what differs between any two runs.
        modules: of ours, imported on any rank by the end.
    """

    status: int
    wall_s: float
    figures: list[tuple[str, ...]]
    log: list[list[str]]
    modules: list[str]


def plain(line: str) -> str:
    """A line of a log without what differs between any two runs."""
    for pattern, instead in VARYING:
        line = pattern.sub(instead, line)
    return line.strip()


def command(start: str, ranks: int, wrapper: Path, words: Sequence[str], told: Path) -> list[str]:
    """The command line of one start; it leaves its records and the output of ranks under torchrun in the folder ``told``."""
    python = [sys.executable, "-m"]
    torchrun = ["torch.distributed.run", "--nproc-per-node", str(ranks), "--redirects", "3", "--log-dir", str(told / "logs")]
    energy = [*_ENERGY.split(), "--energy-dir", str(told / "energy")] if start.endswith("-energy") else []
    if start == "bare":
        return [*python, *torchrun, str(wrapper), *words]
    if start.startswith("torchrun"):
        return [*python, *torchrun, "-m", "megatron_energy.run", "--cpu", str(wrapper), *words, *energy]
    return [*python, "megatron_energy.run", "--nproc", str(ranks), str(wrapper), *words, *energy]


def run(start: str, ranks: int, iterations: int, folder: Path) -> Run:
    """Start the script in one of the :data:`STARTS`."""
    told = folder / start
    told.mkdir()
    wrapper = folder / f"{start}.py"
    wrapper.write_text((SHIMS if start == "bare" else "") + WRAPPER.format(script=str(SCRIPT), folder=str(told)), encoding="utf-8")
    words = [*_MODEL.split(), *LAYOUTS[ranks], "--train-iters", str(iterations), "--train-text", str(folder / "corpus.txt")]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    begin_s = time.monotonic()
    done = subprocess.run(
        command(start, ranks, wrapper, words, told),
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
    files = sorted((told / "logs").rglob("stdout.log"), key=lambda path: int(path.parent.name))
    outputs = [path.read_text(encoding="utf-8") for path in files] or [done.stdout]
    modules = {name for path in told.glob("*.modules") for name in path.read_text(encoding="utf-8").split()}
    log = [[plain(line).replace(start, "START") for line in output.splitlines()] for output in outputs]
    return Run(done.returncode, time.monotonic() - begin_s, FIGURES.findall(outputs[-1]), log, sorted(modules))


def stray(found: Run) -> list[str]:
    """Modules of ours that a run without flags should not have imported."""
    return [name for name in found.modules if name not in LAUNCHER and not name.startswith(ON_A_CPU)]


def differences(runs: dict[str, Run], iterations: int) -> list[str]:
    """What is not as it should be, in words."""
    wrong = [f"{start}: exit status {found.status}" for start, found in runs.items() if found.status]
    first_name, first = next(iter(runs.items()))
    for start, found in runs.items():
        if len(found.figures) != iterations:
            wrong.append(f"{start}: {len(found.figures)} iterations logged instead of {iterations}")
        if found.figures != first.figures:
            wrong.append(f"{start}: losses or gradient norms differ from {first_name}: {found.figures} and {first.figures}")
        if start in ("torchrun", "fork") and stray(found):
            wrong.append(f"{start}: imported without flags: {', '.join(stray(found))}")
    if {"bare", "torchrun"} <= runs.keys():
        for rank, (one, other) in enumerate(zip(runs["bare"].log, runs["torchrun"].log, strict=True)):
            changes = [line for line in difflib.ndiff(one, other) if line[0] in "+-"]
            wrong += [f"torchrun: the log of rank {rank} differs from bare: {line}" for line in changes]
    return wrong


def show(runs: dict[str, Run]) -> None:
    """One line per start, and what the last one printed for its figures."""
    print("start            s  iterations  lines  modules of ours without the CPU's")
    for start, found in runs.items():
        ours = [name for name in found.modules if not name.startswith(ON_A_CPU)]
        print(f"{start:15} {found.wall_s:4.0f} {len(found.figures):7} {sum(map(len, found.log)):9}  {len(ours)}")
    for iteration, loss, norm in next(iter(runs.values())).figures:
        print(f"iteration {iteration}: loss {loss}, gradient norm {norm}")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, choices=sorted(LAYOUTS), default=16)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--starts", default=",".join(STARTS), help="some of " + ",".join(STARTS))
    parser.add_argument("--out", type=Path, help="keep scripts, records and the corpus here (a folder that does not exist yet)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    starts = options.starts.split(",")
    if not set(starts) <= set(STARTS):
        parser.error(f"--starts {options.starts}: give some of {','.join(STARTS)}")
    if options.out is not None and options.out.exists():
        parser.error(f"--out {options.out}: there is one already: name a folder that does not exist yet")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "runs" if options.out is None else options.out.resolve()
        folder.mkdir(parents=True)
        (folder / "corpus.txt").write_text(TEXT, encoding="ascii")
        runs = {start: run(start, options.ranks, options.iterations, folder) for start in starts}
    wrong = differences(runs, options.iterations)
    if options.json:
        print(json.dumps({"runs": {start: asdict(found) for start, found in runs.items()}, "wrong": wrong}))
    else:
        show(runs)
        print("\n".join(wrong) or "all equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
