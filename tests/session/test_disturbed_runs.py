"""Runs of real Megatron on 2 ranks that something disturbs: they end before the first step with one line, or go on at maximum clocks."""

import pytest

from megatron_energy.planning.plan_file import load_plan
from tests.megatron.launching import needs_megatron
from tests.session.launched import EMULATED, SHORT, UNTIL_PLAN, Done, Training, launch_all, results, training
from tests.session.small_job import LAYOUT, make

pytestmark = needs_megatron
RANKS = 2
ENERGY = ["--energy-policy", "segments", *EMULATED, *SHORT]
STEPS = UNTIL_PLAN + 4
DISTURBED = UNTIL_PLAN + 1
EVENTS = {"unknown-backward": DISTURBED, "twice": DISTURBED, "early": 1}
CASES = {
    name: Training([*LAYOUT, "--steps", str(STEPS)], {str(step): "twice" if name == "early" else name}) for name, step in EVENTS.items()
}
RAMP_UP = Training([*LAYOUT, "--steps", str(STEPS + 2)], {str(DISTURBED): "ramp-up"})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    folder = tmp_path_factory.mktemp("disturbed")
    short = Training([*LAYOUT, "--steps", "3"], {})
    deep = Training(["--pipeline", "2", "--virtual", "16", "--layers", "32", "--microbatches", "4", "--overlap"], {})
    other = Training([*LAYOUT[:4], "--microbatches", "6", *LAYOUT[6:]], {})
    plan = make(folder) / "plan.json"
    launches = {"off": training(folder / "off", RANKS, {**CASES, "ramp-up": RAMP_UP}, "--energy-policy", "off")}
    launches |= {name: training(folder / name, RANKS, {name: case}, *ENERGY) for name, case in {**CASES, "ramp-up": RAMP_UP}.items()}
    launches |= {
        "plan": training(folder / "plan", RANKS, {"short": short}, *ENERGY, "--energy-plan", plan),
        "other": training(folder / "other", RANKS, {"other": other}, *ENERGY, "--energy-plan", plan),
        "deep": training(folder / "deep", RANKS, {"deep": deep}, *ENERGY, "--energy-emulated-model", "gpt3-1.3b"),
        "dead": training(folder / "dead", RANKS, {"dead": Training(LAYOUT, {"1": "die"})}, *ENERGY),
        "odd": training(folder / "odd", RANKS, {"odd": Training(["--pipeline", "3"], {})}, *ENERGY),
    }
    return launch_all(folder, launches)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("other", "the plan was made for microbatches 4, this run has 6: make a plan for this schedule"),
        ("deep", "model 'gpt3-1.3b'"),
    ],
)
def test_what_only_the_layout_shows_ends_all_ranks_before_the_first_step(runs: dict[str, Done], name: str, said: str) -> None:
    done = runs[name]
    assert done.status == 2
    assert len(done.said) == 1 and done.said[0].startswith("error: ") and said in done.said[0]
    assert "Traceback" not in done.err + (done.directory / "logs" / "rank-0.log").read_text()
    assert not (done.directory / "iterations.jsonl").exists()


def test_a_fitting_plan_runs(runs: dict[str, Done]) -> None:
    assert (runs["plan"].status, runs["plan"].phases) == (0, ["baseline", "baseline", "planned"]), runs["plan"].err


@pytest.mark.parametrize("name", [*CASES, "ramp-up"])
def test_training_goes_on_unchanged(runs: dict[str, Done], name: str) -> None:
    assert runs[name].status == 0, runs[name].err
    folder = runs["off"].directory.parent
    assert results(folder / name, name, RANKS) == results(folder / "off", name, RANKS)


PLANNED_MHZ = 1270
"""Plans stay below. Where nothing is requested, the power cap holds forwards at about 1286 MHz."""

REASONS = {
    "unknown-backward": "a backward ran on an output that no recorded forward made",
    "twice": "two schedule calls without an optimizer step between them",
    "early": "two schedule calls without an optimizer step between them",
}


@pytest.mark.parametrize("name", CASES)
def test_clocks_go_to_maximum_with_one_line(runs: dict[str, Done], name: str) -> None:
    lines = [line for line in runs[name].said if not line.startswith("megatron-energy: plan ")]
    assert len(lines) == 1
    assert lines[0].startswith("megatron-energy: maximum clocks from here on: ") and REASONS[name] in lines[0]
    last = runs[name].iterations[-1]
    assert (last.phase, last.iteration) == ("maximum", STEPS)
    assert all(gpu.clock_mhz > PLANNED_MHZ for gpu in last.gpus)


def test_what_was_not_recorded_has_no_figures(runs: dict[str, Done]) -> None:
    for name in ("unknown-backward", "twice"):
        iterations = runs[name].iterations
        assert [i.iteration for i in iterations] == [n for n in range(1, STEPS + 1) if n != DISTURBED + 1]
        assert [i.phase for i in iterations[UNTIL_PLAN:]] == ["planned", "maximum", "maximum"]
    assert [i.iteration for i in runs["early"].iterations] == [1, *range(3, STEPS + 1)]


def test_every_number_of_microbatches_has_a_baseline_and_a_plan(runs: dict[str, Done]) -> None:
    run = runs["ramp-up"]
    iterations = run.iterations[UNTIL_PLAN:]
    assert [i.phase for i in iterations] == ["planned", "maximum", "baseline", "baseline", "planned", "planned"]
    assert [i.plan_version for i in iterations] == [1, 0, 0, 0, 3, 3]
    before, after = run.iterations[1], iterations[3]
    assert after.time_s > 1.5 * before.time_s
    assert all(gpu.clock_mhz > PLANNED_MHZ for i in iterations[1:4] for gpu in i.gpus)
    last = iterations[-1]
    assert last.slowdown_percent == pytest.approx(100 * (last.time_s / after.time_s - 1), abs=1e-9) and last.slowdown_percent <= 0.1
    assert last.saved_percent == pytest.approx(100 * (1 - last.energy_j / after.energy_j), abs=1e-9) and last.saved_percent > 1
    names = ("plan-4-microbatches.json", "plan.json")
    assert [load_plan(run.directory / name).schedule.microbatches for name in names] == [4, 8]
    assert "microbatches changed from 4 to 8: a new baseline at maximum clocks, then a plan for these" in run.said[1]
    summary = run.json("summary.json")
    assert (summary["baseline_iterations"], summary["planned_iterations"]) == (1, 1)
    assert "The number of microbatches changed during the run: figures are of the last iterations, with 8." in " ".join(run.out.split())


def test_a_dead_rank_ends_the_job_with_its_message(runs: dict[str, Done]) -> None:
    done = runs["dead"]
    assert done.status == 1
    assert "rank 0 failed with exit status 1" in done.err
    assert done.err.count("RuntimeError: this rank is asked to die") == 1


def test_what_megatron_refuses_is_megatrons_to_say(runs: dict[str, Done]) -> None:
    done = runs["odd"]
    assert done.status == 1 and done.said == []
    assert "world_size (2) is not divisible by" in done.err
