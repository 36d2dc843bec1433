"""README and docs: every command runs or parses, every flag exists and is explained, every link leads somewhere."""

import argparse
import contextlib
import functools
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_energy.cli import launch
from megatron_energy.cli.main import build_parser, main
from megatron_energy.cli.plan import POLICIES
from megatron_energy.emulation import __main__ as emulation
from megatron_energy.pipeline.schedule import P2P_MODES
from megatron_energy.session.options import FLAGS
from tests import documents
from tests.documents import PAGES, Block, Command
from tests.source_tree import ROOT

COMMANDS = [command for page in PAGES for command in documents.commands(page)]
PLAN_PAGE = ROOT / "docs" / "plan.md"

SYSTEM = {"cp", "docker", "enroot", "export", "install", "sbatch", "scancel", "systemctl", "tensorboard"}
"""Programs that are not ours: only the shell's syntax and the files of ours that they name are checked."""

SCRIPTS = ("pretrain_gpt.py", "train.py")
"""Training scripts of the reader's own, as the pages call them."""
OTHERS_FLAGS = {
    # Megatron-LM
    "--log-energy", "--no-overlap-p2p-communication", "--microbatch-group-size-per-virtual-pipeline-stage", "--tensorboard-dir",
    "--overlap-moe-expert-parallel-comm", "--overlap-p2p-communication-warmup-flush",
    "--exit-signal-handler", "--use-distributed-optimizer", "--rampup-batch-size", "--step-batch-size-schedule", "--wandb-project",
    # torchrun, TensorBoard, mypy, pip, Slurm, systemd, nvidia-smi, containers
    "--nproc-per-node", "--nnodes", "--logdir", "--strict", "--ignore-requires-python", "--no-deps", "--gpu-freq", "--now", "--gpu-reset",
    "--cap-add", "--batch", "--build-arg", "--cpus-per-task", "--gpu-bind", "--gpus-per-node", "--gpus-per-task", "--kill-on-bad-exit",
    "--nodes", "--ntasks-per-node", "--output", "--signal", "--tag", "--time",
}  # fmt: skip


@functools.cache
def example_profile(page: Path) -> str:
    """The profile that a page shows, else that of docs/plan.md."""
    shown = [block.text for block in documents.blocks(page) if block.kind == "csv"]
    return shown[0] if shown else example_profile(PLAN_PAGE)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of someone who follows the documentation in a checkout, with a training script of his own."""
    for name in ("docs", "scripts", "tests", "tools", "megatron_energy"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in (*SCRIPTS, "program.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@functools.cache
def printed(page: Path, *arguments: str) -> str:
    """What an offline command prints in the current folder (the same on every page that shows the same profile)."""
    Path("profile.csv").write_text(example_profile(page), encoding="utf-8")
    if arguments[0] == "replay":
        Path("plan.json").write_text(example_plan(), encoding="utf-8")
    if "--graph" in arguments:
        graph = next(block.text for block in documents.blocks(page) if block.kind == "json")
        Path("graph.json").write_text(graph, encoding="utf-8")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(arguments) == 0
    return output.getvalue()


@functools.cache
def example_plan() -> str:
    """The plan file that docs/plan.md makes first."""
    first = next(command for command in COMMANDS if command.page == PLAN_PAGE)
    printed.__wrapped__(PLAN_PAGE, *first.words[1:])  # not from the cache: the file is wanted
    return Path("plan.json").read_text(encoding="utf-8")


def doctor(*arguments: str, **variables: str) -> None:
    """A process of its own: emulated GPUs stay in it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, "-m", "megatron_energy", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def run_offline(command: Command, desk: Path) -> None:
    """Doctor, plan, frontier and replay run; the rest would need a clock daemon or change the host, and is parsed."""
    name = command.words[1]
    if name == "doctor":
        doctor(*command.words[1:], **dict(command.variables))
    elif name in ("plan", "frontier", "replay"):
        page = command.page if "csv" in {block.kind for block in documents.blocks(command.page)} else PLAN_PAGE
        assert printed(page, *command.words[1:])
    else:
        build_parser().parse_args(command.words[1:])


def parse_launch(command: Command, desk: Path) -> None:
    """The launcher accepts what follows it: the script is there, and every --energy-* flag has a value that is allowed."""
    rest = command.words[command.words.index("megatron_energy.run") + 1 :]
    parsed = launch.parse(rest)
    assert parsed.script.name in SCRIPTS
    assert not [word for word in parsed.arguments if word.startswith("--energy")]


def parse_emulation(command: Command, desk: Path) -> None:
    """The same for programs with emulated GPUs."""
    options = emulation._parser().parse_args(command.words[command.words.index("megatron_energy.emulation") + 1 :])
    assert options.module or Path(options.program).is_file()


def parse_clockd(command: Command, desk: Path) -> None:
    """The daemon alone has the options of ``megatron-energy clockd``."""
    build_parser().parse_args(["clockd", *command.words[command.words.index("megatron_energy.clockd") + 1 :]])


def check_torchrun(command: Command, desk: Path) -> None:
    """A trainer that attaches the scheduler by itself."""
    assert command.words[-1] in SCRIPTS


def check_own_script(command: Command, desk: Path) -> None:
    """A script of the repository: it can be run and knows the options."""
    path = desk / next(word for word in command.words if "/" in word)
    assert path.suffix == ".py" or os.access(path, os.X_OK)
    text = path.read_text(encoding="utf-8")
    assert not [word for word in command.words if word.startswith("--") and word not in text]


def check_system_command(command: Command, desk: Path) -> None:
    """Files of the repository that it names are there; checked for every command."""


Rule = tuple[Callable[[Command], bool], Callable[[Command, Path], None]]
RULES: tuple[Rule, ...] = (
    (lambda command: command.words[0] == "megatron-energy", run_offline),
    (lambda command: "megatron_energy.run" in command.words, parse_launch),
    (lambda command: command.words[0] == "torchrun", check_torchrun),
    (lambda command: "megatron_energy.emulation" in command.words, parse_emulation),
    (lambda command: "megatron_energy.clockd" in command.words, parse_clockd),
    (lambda command: bool(re.match(r"(python3? )?(\./)?(scripts|tools)/", " ".join(command.words))), check_own_script),
    (lambda command: command.words[0] in SYSTEM, check_system_command),
)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_run_or_parse(command: Command, desk: Path) -> None:
    subprocess.run(["bash", "-n", "-c", command.text], check=True)
    missing = [
        word for word in command.words if re.match(r"(\./)?(docs|megatron_energy|scripts|tests|tools)/", word) and not Path(word).exists()
    ]
    assert not missing
    checks = [check for applies, check in RULES if applies(command)]
    assert checks, f"no rule for {command}: add one, or write it as text"
    checks[0](command, desk)


def skeleton(text: str) -> list[str]:
    """The lines above the table of clocks, without numbers and spaces: a better planner may change those."""
    above = re.split(r"^stage ", text, flags=re.MULTILINE)[0]
    return ["".join(re.sub(r"[-+]?\d[\d.,]*", "#", line).split()) for line in above.splitlines()]


def percents(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([-+]?\d+\.\d+)%", text.partition("bound")[0])]


OUTPUTS = [pytest.param(*pair, id=str(pair[0])) for page in PAGES for pair in documents.shown_outputs(page)]


@pytest.mark.parametrize(("command", "block"), OUTPUTS)
def test_shown_output_is_real(command: Command, block: Block, desk: Path) -> None:
    """If not, ``python tools/refresh_docs.py`` puts the real output there."""
    real = printed(command.page, *command.words[1:])
    assert skeleton(real) == skeleton(block.text)
    # How late a plan is in another mode depends on its details, which change more than its saving does.
    assert percents(real) == pytest.approx(percents(block.text), abs=1.0 if command.words[1] == "plan" else 5.0)
    baseline = r"^(?:iteration|energy|this|all)[^.]*?([\d,]+\.\d+)"  # depends on the profile alone
    assert re.findall(baseline, real, flags=re.MULTILINE) == re.findall(baseline, block.text, flags=re.MULTILINE)


def test_the_outputs_of_the_plan_page_are_checked() -> None:
    assert len(OUTPUTS) >= 3


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every long option of a parser and of its subcommands."""
    found: set[str] = set()
    for action in parser._actions:
        found |= {option for option in action.option_strings if option.startswith("--")}
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for sub in action.choices.values() for option in options_of(sub)}
    return found


def own_flags() -> set[str]:
    folders = ("scripts", "scripts/slurm", "tools")
    scripts = [path for folder in folders for path in (ROOT / folder).glob("*.*") if path.suffix in (".py", ".sh")]
    in_scripts = {flag for path in scripts for flag in documents.flags(path.read_text(encoding="utf-8"))}
    energy = {flag.option for flag in FLAGS}
    return energy | options_of(build_parser()) | options_of(launch._parser()) | options_of(emulation._parser()) | in_scripts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_exists(page: Path) -> None:
    assert documents.flags(page.read_text(encoding="utf-8")) - own_flags() - OTHERS_FLAGS == set()


@functools.cache
def documented() -> str:
    """What docs/ says, without the README, which only introduces."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "docs")


def test_every_option_is_documented() -> None:
    promised = {flag.option for flag in FLAGS} | options_of(build_parser()) | options_of(launch._parser()) | options_of(emulation._parser())
    assert promised - documents.flags(documented()) - {"--help", "--version"} == set()


def test_every_choice_is_documented() -> None:
    choices = {choice for flag in FLAGS for choice in flag.choices} | set(POLICIES) | set(P2P_MODES)
    assert {choice for choice in choices if f"`{choice}`" not in documented()} == set()


def test_the_readme_shows_the_choices_there_are() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    by_option = {flag.option: set(flag.choices) for flag in FLAGS}
    shown = re.findall(r"(--energy-[a-z-]+) \{([a-z,-]+)\}", text)
    assert shown
    for option, choices in shown:
        assert set(choices.split(",")) == by_option[option], option


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    for file, anchor in documents.links(page):
        target = page.parent / file if file else page
        assert target.exists(), file
        assert not anchor or anchor in documents.anchors(target), f"{file}#{anchor}"
    for name in documents.named_files(page):
        assert list(ROOT.glob(name)), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_other_code_parses(page: Path) -> None:
    for block in documents.blocks(page):
        if block.kind == "python":
            compile(block.text, str(block), "exec")
        elif block.kind == "script":
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
        elif block.kind == "synopsis":
            assert documents.flags(block.text) <= own_flags(), block
        else:
            assert block.kind in ("commands", "csv", "ini", "json", "text"), f"{block}: {block.kind}"
