"""Megatron's configurations, one by one: real runs of scripts/pretrain_gpt.py on 4 CPU ranks; prints a Markdown table.

    python tools/check_configurations.py [--only NAME ...] [--write docs/configurations.md]

Every configuration runs without us and under an energy policy that learns and plans in the run itself, on emulated GPUs; losses and
gradient norms have to be equal as printed. Exit status 1 where they are not. All of them take about ten minutes on 2 cores.
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from evaluation_page import Table, replace_section, section
from mistakes import told

from megatron_energy.planning.plan_file import load_plan
from tests.megatron.pretraining import MODEL, SCRIPT, write_text
from tests.session.launched import EMULATED, SHORT, Done, launch_all

RANKS = 4
SECTION = "configurations"
FIGURES = re.compile(r"(?:lm loss(?: value)?|grad norm): \S+")
MAXIMUM = "megatron-energy: maximum clocks from here on: "


@dataclass(frozen=True)
class Configuration:
    """Arguments of Megatron.

    Attributes:
        flags: beside :data:`MODEL`, as a user types them.
        rest: what they need on a CPU or to be short; not shown.
        without: arguments of the model with a value that contradict them.
    """

    flags: str
    rest: str = ""
    without: Sequence[str] = ()

    @property
    def words(self) -> list[str]:
        """All arguments."""
        model = list(MODEL)
        for option in self.without:
            at = model.index(option)
            del model[at : at + 2]
        return [*model, *([] if "--eval-interval" in self.rest else ["--eval-iters", "0"]), *_words(self.flags), *_words(self.rest)]


def _words(text: str) -> list[str]:
    """Arguments, some of them in quotes."""
    return [quoted or plain for quoted, plain in re.findall(r"'([^']*)'|(\S+)", text)]


PP2, PP4 = "--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 4"
CHUNKS = "--num-layers-per-virtual-pipeline-stage 1"
MOE = "--num-experts 4 --expert-model-parallel-size 2"
MOE_ON_CPU = "--moe-token-dispatcher-type alltoall --disable-bias-linear"
REDUCE = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
NO_NAN_CHECK = "--no-check-for-nan-in-loss-and-grad"
CONFIGURATIONS = {
    "plain 1F1B": Configuration(PP4),
    "interleaved": Configuration(f"{PP4} {CHUNKS}", "--num-layers 8"),
    "interleaved, no p2p overlap": Configuration(f"{PP4} {CHUNKS} --no-overlap-p2p-communication", "--num-layers 8"),
    "interleaved, warm-up flush": Configuration(f"{PP4} {CHUNKS} --overlap-p2p-communication-warmup-flush", "--num-layers 8"),
    "microbatch groups": Configuration(f"{PP2} {CHUNKS} --microbatch-group-size-per-virtual-pipeline-stage 4"),
    "no pipeline": Configuration(""),
    "tensor parallel": Configuration(f"{PP2} --tensor-model-parallel-size 2"),
    "sequence parallel": Configuration(f"{PP2} {CHUNKS} --tensor-model-parallel-size 2 --sequence-parallel"),
    "context parallel": Configuration(f"{PP2} --context-parallel-size 2"),
    "experts": Configuration(f"{PP2} {CHUNKS} {MOE}", MOE_ON_CPU),
    "experts, no pipeline": Configuration(MOE, MOE_ON_CPU),
    "experts with tensor parallelism": Configuration(
        f"{PP2} --tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1 {MOE}", MOE_ON_CPU
    ),
    "distributed optimizer": Configuration(f"{PP2} {CHUNKS} {REDUCE}"),
    "distributed optimizer, plain": Configuration(f"{PP2} {REDUCE}"),
    "recomputation": Configuration(f"{PP2} {CHUNKS} {RECOMPUTE}"),
    "selective recomputation": Configuration(f"{PP2} {CHUNKS} --recompute-granularity selective"),
    "bf16": Configuration(f"{PP2} {CHUNKS} --bf16"),
    "fp16": Configuration(f"{PP2} {CHUNKS} --fp16", "--initial-loss-scale 1024"),
    "all of these": Configuration(f"{PP2} {CHUNKS} --tensor-model-parallel-size 2 --sequence-parallel --bf16 {REDUCE} {RECOMPUTE}"),
    "grouped queries": Configuration(f"{PP2} {CHUNKS} --group-query-attention --num-query-groups 2"),
    "multi-token prediction": Configuration(f"{PP2} --mtp-num-layers 1", "--position-embedding-type rope"),
    "uneven stages": Configuration(f"{PP4} --decoder-first-pipeline-num-layers 1", "--num-layers 10"),
    "uneven stages, interleaved": Configuration(
        f"{PP2} --decoder-first-pipeline-num-layers 2 --num-virtual-stages-per-pipeline-rank 2", "--num-layers 8"
    ),
    "pipeline layout": Configuration(f"{PP2} --pipeline-model-parallel-layout 'Et*2|t*3|t*2|tL'", "--num-layers 8"),
    "batch size ramp-up": Configuration(
        f"{PP2} {CHUNKS} --step-batch-size-schedule '0:8 3072:16'", "--train-samples 240", ("--global-batch-size", "--train-iters")
    ),
    "evaluation and checkpoint in between": Configuration(f"{PP2} {CHUNKS}", "--eval-interval 3 --save-interval 4 --save FOLDER"),
    "combined 1F1B": Configuration(f"{PP2} {CHUNKS} {MOE} --overlap-moe-expert-parallel-comm", f"--bf16 {MOE_ON_CPU}"),
    "CUDA graph of the iteration": Configuration(f"{PP2} {CHUNKS} --cuda-graph-impl full_iteration", NO_NAN_CHECK),
}
"""By name. 4 ranks: what is not split over stages, tensor or context ranks is data parallel."""


def result(off: Done, on: Done) -> str:
    """What became of a configuration, from its run without us and its run with us."""
    figures = FIGURES.findall(off.out)
    if off.status:
        return f"does not run on a CPU: {_error(off)}"
    if on.status:
        return f"WRONG: exit status {on.status}: {(on.said or ['nothing was said'])[-1]}"
    if not figures or FIGURES.findall(on.out) != figures:
        return "WRONG: losses or gradient norms differ"
    given_up = [line.removeprefix(MAXIMUM) for line in on.said if line.startswith(MAXIMUM)]
    if given_up:
        return f"measured only: {given_up[0]}"
    return _planned(on)


def _error(done: Done) -> str:
    """What an exception said that ended a run."""
    said = re.findall(r"^(?:\[rank\d+\]: )?\w*Error: (.+)", done.err, re.MULTILINE)
    own = [text for text in said if "gloo" not in text]  # the others lost the rank that failed
    return str([*own, *said, f"exit status {done.status}"][0]).replace("|", "\\|")


def _planned(on: Done) -> str:
    """Of a run whose last iteration ran under a plan."""
    last = [phase for phase in on.phases if phase != "evaluation"][-1]
    if last != "planned":
        return f"WRONG: the last iteration is of phase {last}"
    files = [*sorted(on.directory.glob("plan-*-microbatches.json")), on.directory / "plan.json"]
    plans = [load_plan(file) for file in files]
    mode = f"p2p {plans[0].schedule.p2p}" if plans[0].schedule.interleaved else ""
    counts = [str(plan.schedule.microbatches) for plan in plans]
    several = f"a plan each for {' and '.join(counts)} microbatches" if len(plans) > 1 else ""
    return ", ".join(part for part in ("plan", mode, several) if part)


def check(names: Sequence[str], folder: Path) -> Table:
    """The table of these configurations."""
    words = ["--nproc", str(RANKS), str(SCRIPT)]
    text = ["--train-text", str(write_text(folder))]
    launches: dict[str, list[str | Path]] = {}
    for number, name in enumerate(names):
        plain = [word.replace("FOLDER", str(folder / f"saved-{number}")) for word in [*words, *CONFIGURATIONS[name].words, *text]]
        launches[f"{number}-off"] = list(plain)
        launches[f"{number}-on"] = [*plain, "--energy-policy", "segments", *EMULATED, *SHORT]
    done = launch_all(folder, launches)
    table = _empty()
    for number, name in enumerate(names):
        table.put(_key(name), {"result": result(done[f"{number}-off"], done[f"{number}-on"])})
    return table


def _empty() -> Table:
    return Table(("configuration", "Megatron's flags"), ("result",))


def _key(name: str) -> tuple[str, str]:
    flags = CONFIGURATIONS[name].flags.replace("|", "\\|")
    return name, f"`{flags}`" if flags else "none"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS), metavar="NAME")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the rows into the table of this page")
    options = parser.parse_args(argv)
    whole = _empty()
    if options.write is not None:
        whole.read(section(options.write, SECTION).splitlines())
    with tempfile.TemporaryDirectory(prefix="megatron-configurations-") as folder:
        table = check(options.only, Path(folder))
    print("\n".join(table.lines()))
    if options.write is not None:
        whole.cells.update(table.cells)
        whole.sort(_key(name) for name in CONFIGURATIONS)
        replace_section(options.write, SECTION, "\n".join(whole.lines()) + "\n")
    return 1 if any("WRONG" in row["result"] for row in table.cells.values()) else 0


if __name__ == "__main__":
    sys.exit(told(main))
