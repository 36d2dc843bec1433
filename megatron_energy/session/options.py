"""The ``--energy-*`` options of a training run.

One table, :data:`FLAGS`, feeds both the launcher, which takes the flags out of the command line (scripts with a parser of
their own never see them), and Megatron's own parser, which shows them in ``--help`` and keeps their values as plain types.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from megatron_energy.errors import UserError

Policy: TypeAlias = Literal["off", "measure", "dry-run", "segments", "operations", "uniform", "maximum"]
Device: TypeAlias = Literal["auto", "nvml", "emulated"]
Latency: TypeAlias = Literal["catalog", "zero"]

UNPLANNED = ("measure", "maximum")
"""Policies that leave the clocks as they are."""

PREFIX = "--energy-"


@dataclass(frozen=True)
class EnergyOptions:
    """What the user asked for. All values are plain types, so that a checkpoint may store them.

    Attributes:
        policy: how clocks are chosen; ``segments`` where another flag was given but not this one. None: no flag at all, nothing is
            installed.
        device: where the GPUs are; ``auto`` takes NVML and never emulates silently.
        emulated_gpu: catalog name of the emulated GPU.
        emulated_model: the named model whose times and powers the emulated GPUs take; None: the sizes of the model in training.
        emulated_micro_batch: samples per microbatch of the named model.
        emulated_latency: latency of clock requests on emulated GPUs.
        emulated_gpus_per_node: emulated GPUs that share a node and its driver lock.
        max_switches: clock switches allowed per GPU and iteration, counted cyclically.
        slowdown: allowed slowdown as a fraction of the baseline's iteration time.
        plan: a plan to run instead of making one.
        profile: a profile to plan from instead of learning one in the run.
        directory: RUN_DIR, as given.
        baseline_iterations: iterations measured with untouched clocks before anything is planned.
        sweep_clocks: clocks tried to learn the profile.
        recheck: iterations under the plan between two measurements of the baseline; 0: only where iterations look too long.
        tensorboard_dir: Megatron's --tensorboard-dir, where it was given.
        log_energy: whether Megatron's own --log-energy was given.
        given: fields that a flag of ours has set, in alphabetical order; all others are defaults.
    """

    policy: Policy | None = None
    device: Device = "auto"
    emulated_gpu: str = "a100-sxm4-80gb"
    emulated_model: str | None = None
    emulated_micro_batch: int = 1
    emulated_latency: Latency = "catalog"
    emulated_gpus_per_node: int = 8
    max_switches: int = 8
    slowdown: float = 0.0
    plan: str | None = None
    profile: str | None = None
    directory: str | None = None
    baseline_iterations: int = 3
    sweep_clocks: int = 8
    recheck: int = 500
    tensorboard_dir: str | None = None
    log_energy: bool = False
    given: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether anything of ours is to be installed."""
        return self.policy not in (None, "off")

    @property
    def run_dir(self) -> Path:
        """RUN_DIR: --energy-dir, else ``energy`` in the TensorBoard directory, else ``energy`` here."""
        if self.directory is not None:
            return Path(self.directory)
        return Path(self.tensorboard_dir or ".") / "energy"


def _at_least(minimum: float, convert: Callable[[str], float]) -> Callable[[str], float]:
    def check(text: str) -> float:
        value = convert(text)
        if not value >= minimum or value == float("inf"):
            raise ValueError(text)
        return value

    return check


def _whole(minimum: int) -> Callable[[str], float]:
    return _at_least(minimum, int)


@dataclass(frozen=True)
class Flag:
    """One option: ``--energy-<name>`` sets ``EnergyOptions.<field>``."""

    name: str
    field: str
    kind: Callable[[str], object]
    wanted: str  # completes "... must be"
    help: str
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The flag as typed."""
        return PREFIX + self.name

    @property
    def default(self) -> object:
        """Value without the flag."""
        return next(f.default for f in dataclasses.fields(EnergyOptions) if f.name == self.field)

    def parse(self, text: str) -> object:
        """The value of ``text``; UserError says what is allowed."""
        if self.choices and text not in self.choices:
            raise UserError(f"{self.option} {text}: choose one of {', '.join(self.choices)}")
        try:
            return self.kind(text)
        except ValueError:
            raise UserError(f"{self.option} {text}: must be {self.wanted}") from None


def _choice(name: str, field: str, choices: tuple[str, ...], help: str) -> Flag:
    return Flag(name, field, str, "one of " + ", ".join(choices), help, choices)


FLAGS: tuple[Flag, ...] = (
    _choice(
        "policy",
        "policy",
        get_args(Policy),
        "how clocks are chosen (default: segments once any --energy flag is given, else nothing is installed)",
    ),
    _choice("device", "device", get_args(Device), "auto: NVML; emulated: emulated GPUs in virtual time"),
    Flag("emulated-gpu", "emulated_gpu", str, "a GPU name", "emulated GPU, by catalog name"),
    Flag(
        "emulated-model",
        "emulated_model",
        str,
        "a model name",
        "named model whose times the emulated GPUs take (default: the model in training)",
    ),
    Flag("emulated-micro-batch", "emulated_micro_batch", _whole(1), "a whole number >= 1", "samples per microbatch of the named model"),
    _choice("emulated-latency", "emulated_latency", get_args(Latency), "latency of clock requests on emulated GPUs"),
    Flag("emulated-gpus-per-node", "emulated_gpus_per_node", _whole(1), "a whole number >= 1", "emulated GPUs per node"),
    Flag("max-switches", "max_switches", _whole(0), "a whole number >= 0", "clock switches allowed per GPU and iteration"),
    Flag(
        "slowdown",
        "slowdown",
        _at_least(0.0, float),
        "a fraction >= 0, such as 0.02",
        "allowed slowdown, as a fraction of the baseline's time",
    ),
    Flag("plan", "plan", str, "a file", "run this plan instead of making one"),
    Flag("profile", "profile", str, "a file", "plan from this profile instead of learning one in the run"),
    Flag("dir", "directory", str, "a directory", "where run records go (default: <tensorboard-dir>/energy, else ./energy)"),
    Flag("baseline-iterations", "baseline_iterations", _whole(1), "a whole number >= 1", "iterations measured before anything is planned"),
    Flag("sweep-clocks", "sweep_clocks", _whole(2), "a whole number >= 2", "clocks tried to learn the profile"),
    Flag(
        "recheck",
        "recheck",
        _whole(0),
        "a whole number >= 0",
        "iterations under the plan between two measurements of the baseline (0: only where iterations look too long)",
    ),
)

_BY_OPTION = {flag.option: flag for flag in FLAGS}


def split_arguments(argv: Sequence[str]) -> tuple[EnergyOptions, list[str]]:
    """Take the ``--energy-*`` flags out of ``argv``.

    Every flag has one value, as ``--energy-slowdown 0.02`` or ``--energy-slowdown=0.02``; a later one wins. Nothing is taken
    after ``--``.

    Returns:
        The options, and the other arguments in their order.

    Raises:
        UserError: an unknown flag, a missing value, a value that is not allowed, or two flags of which one would be ignored.
    """
    values: dict[str, Any] = {}  # each has passed its flag
    rest: list[str] = []
    index = 0
    while index < len(argv):
        word = argv[index]
        if word == "--":
            rest.extend(argv[index:])
            break
        index += 1
        if not word.startswith(PREFIX):
            rest.append(word)
            continue
        option, equals, text = word.partition("=")
        flag = _flag(option)
        if not equals:
            if index >= len(argv) or argv[index].startswith("--"):
                raise UserError(f"{option} needs a value: {flag.wanted}")
            text = argv[index]
            index += 1
        values[flag.field] = flag.parse(text)
    if {"plan", "profile"} <= values.keys():
        raise UserError("--energy-plan and --energy-profile: a given plan needs no profile, so give one of them")
    values["given"] = tuple(sorted(values))
    values["tensorboard_dir"] = _value_of("--tensorboard-dir", rest)
    if values["given"]:
        values.setdefault("policy", "segments")
    return EnergyOptions(**values, log_energy="--log-energy" in rest), rest


def _flag(option: str) -> Flag:
    try:
        return _BY_OPTION[option]
    except KeyError:
        raise UserError(f"unknown option {option}: choose one of {', '.join(_BY_OPTION)}") from None


def _value_of(option: str, argv: Sequence[str]) -> str | None:
    """The value of another program's option in its arguments, if it is there."""
    for index, word in enumerate(argv):
        if word == option and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(option + "="):
            return word.partition("=")[2]
    return None
