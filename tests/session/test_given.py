"""Plans and profiles that a user gives: contradictions and foreign ones are refused, and the run's own baseline has the last word."""

import dataclasses
import json
from pathlib import Path

import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.errors import UserError
from megatron_energy.pipeline.programs import program
from megatron_energy.planning.plan_file import load_plan
from megatron_energy.planning.policies import Solution
from megatron_energy.profiles.files import load_profile, save_profile
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.sizes import check_sizes
from megatron_energy.session import planner as planning
from megatron_energy.session.findings import IterationData
from megatron_energy.session.given import check_options
from megatron_energy.session.learning import LearningError
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planner import Planner
from tests.session.facts import job
from tests.session.simulated import SimulatedRun
from tests.session.small_job import FACTS, MODEL, OPTIONS, make

GPU = load("a100-sxm4-80gb")
BASELINE = 2
"""Iterations until a run with a plan or profile at hand begins to plan: the first, and one in the baseline."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made"))


def run(**options) -> SimulatedRun:
    """The small job, after its baseline."""
    done = SimulatedRun(dataclasses.replace(OPTIONS, **options), FACTS, FACTS.schedule("overlap"))
    done.iterate(BASELINE)
    return done


def scaled(made: Path, path: Path, time: float = 1.0, energy: float = 1.0, **changes) -> str:
    """The job's profile with other times and energies."""
    profile = load_profile(made / "profile.csv")
    curves = {key: Curve(c.clock_mhz, c.time_s * time, c.energy_j * energy) for key, c in profile.curves.items()}
    save_profile(dataclasses.replace(profile, curves=curves, **changes), path)
    return str(path)


def without_clock(made: Path, path: Path) -> tuple[str, int]:
    """The job's profile without one clock of the first stage's forwards, and that clock."""
    lines = (made / "profile.csv").read_text().splitlines()
    clock_mhz = sorted({int(float(line.split(",")[3])) for line in lines[1:] if line.startswith("0,0,forward,")})[0]
    path.write_text("\n".join(line for line in lines if not line.startswith(f"0,0,forward,{clock_mhz}")))
    return str(path), clock_mhz


def without(made: Path, path: Path, instruction: str) -> str:
    """The job's profile without some of its rows."""
    lines = (made / "profile.csv").read_text().splitlines()
    path.write_text("\n".join(line for line in lines if line.split(",")[2] != instruction))
    return str(path)


def test_a_clock_that_not_every_operation_was_measured_at_is_told(made: Path, tmp_path: Path) -> None:
    profile, clock_mhz = without_clock(made, tmp_path / "gap.csv")
    assert f"left out, as not every operation was measured there: {clock_mhz} MHz (no forward of stage 0" in run(profile=profile).said[0]


# The run's own baseline


def test_a_profile_that_fits_is_planned_from_and_what_it_leaves_unexplained_is_told(made):
    done = run(profile=str(made / "profile.csv"))
    assert done.coordinator.directives[0].phase == "planned"
    (said,) = done.said
    assert "% less energy (emulated) at +0.00% time (segments, " in said
    assert "; unexplained of the measured baseline: " in said


@pytest.mark.parametrize(("time", "energy"), [(1.02, 1.02), (0.98, 0.98), (1.0, 1.03)])
def test_a_profile_of_other_times_or_energies_is_no_ground_for_a_plan(time, energy, made, tmp_path):
    path = scaled(made, tmp_path / "other.csv", time, energy)
    done = run(profile=path)
    assert done.coordinator.directives[0].phase == "maximum" and done.coordinator.findings.planned is None
    (said,) = done.said
    assert said.startswith(f"maximum clocks from here on: the profile {path} does not explain the run (unexplained of the measured")


def test_a_profile_without_transfers_is_given_those_of_the_baseline(made, tmp_path):
    done = run(profile=without(made, tmp_path / "p.csv", "p2p"))
    assert done.coordinator.directives[0].phase == "planned"
    assert "; a transfer takes " in done.said[0] and " ms, fitted to the baseline; unexplained" in done.said[0]


def test_a_given_transfer_time_is_kept(made):
    done = run(profile=str(made / "profile.csv"))
    assert "fitted" not in done.said[0]
    kept = load_profile(made / "profile.csv").curves[0, -1, "p2p"].time_s[0]
    assert done.coordinator.findings.profile.curves[0, -1, "p2p"].time_s[0] == kept


def test_a_plan_that_expects_another_baseline_is_not_run(made, tmp_path):
    body = json.loads((made / "plan.json").read_text())
    body["expected"]["baseline_energy_j"] *= 1.05
    body["expected"]["energy_j"] *= 1.05
    (tmp_path / "plan.json").write_text(json.dumps(body))
    done = run(plan=str(tmp_path / "plan.json"))
    assert done.coordinator.directives[0].phase == "maximum"
    assert done.said[0].startswith(f"maximum clocks from here on: the plan {tmp_path / 'plan.json'} does not explain the run")


def test_a_counter_that_did_not_answer_is_no_baseline(made):
    done = SimulatedRun(dataclasses.replace(OPTIONS, profile=str(made / "profile.csv")), FACTS, FACTS.schedule("overlap"))
    done.iterate(1)
    data = done.settler.settle(done.programs, 2)
    for record in data:
        record.energy_j = float("nan")
    done.coordinator.advance(IterationData(data, done.programs))
    assert done.coordinator.directives[0].phase == "maximum"
    assert "the baseline's energy was not measured" in done.said[0]


# What else the plan is made of


def test_a_missing_blocking_power_is_told(made, tmp_path):
    done = run(profile=without(made, tmp_path / "p.csv", "blocking"))
    assert f"; blocking power {GPU.blocking_power_w:g} W of the catalog, as the profile has none" in done.said[0]


def test_on_a_real_gpu_a_missing_blocking_power_is_refused(made, tmp_path):
    options = dataclasses.replace(OPTIONS, device="nvml", profile=without(made, tmp_path / "p.csv", "blocking"))
    with pytest.raises(UserError, match="the profile has no blocking power: add a row `blocking`"):
        Planner(options, FACTS, GPU.sm_clocks_mhz, 0.03, GPU.name, print).check()


def test_a_search_that_ran_out_of_time_is_told(made, monkeypatch):
    def hurried(*args, solve=planning.solve, **settings) -> Solution:
        return dataclasses.replace(solve(*args, **settings), complete=False)

    monkeypatch.setattr(planning, "solve", hurried)
    assert run(profile=str(made / "profile.csv")).said[0].endswith("; the search ran out of time, so a longer one may save more")


# Other pipelines, models, GPUs


def sized(stages: int, chunks: int = 1) -> Profile:
    chunk_of = range(chunks) if chunks > 1 else (-1,)
    return Profile({(s, c, kind): None for s in range(stages) for c in chunk_of for kind in ("forward", "backward")})


def test_profiles_of_larger_pipelines_are_refused():
    check_sizes(sized(4), 4, 2)  # rows of whole stages hold for any number of chunks
    check_sizes(sized(4, 2), 4, 2)
    with pytest.raises(UserError, match="the profile has 8 stages, this pipeline 4: take a profile"):
        check_sizes(sized(8), 4, 1)
    with pytest.raises(UserError, match="the profile has 4 chunks per stage, this pipeline 2: take a profile"):
        check_sizes(sized(4, 4), 4, 2)


def start(made: Path, facts=FACTS, gpu_name: str = GPU.name, **options) -> None:
    settings = dataclasses.replace(OPTIONS, profile=str(made / "profile.csv"), **options)
    Planner(settings, facts, GPU.sm_clocks_mhz, 0.03, gpu_name, print).check()


def test_a_profile_is_for_the_pipeline_it_was_learned_in(made):
    start(made)
    with pytest.raises(UserError, match="the profile has 2 stages, this pipeline 1"):
        start(made, job(pipeline=1, microbatches=4, **MODEL))


def test_a_learned_profile_is_for_its_model_its_sizes_and_its_gpu(made):
    for changed in (
        job(pipeline=2, chunks=2, microbatches=4, **{**MODEL, "hidden_size": 64}),
        job(2, pipeline=2, chunks=2, microbatches=4, **MODEL),
    ):
        with pytest.raises(
            UserError, match=r"the profile was learned on model [0-9a-f]{12}-gpt3-13bx4 tp1 cp1 ep1 pp2, this run is model "
        ):
            start(made, changed)
    with pytest.raises(UserError, match="the profile was learned on NVIDIA A100-SXM4-80GB, this run is NVIDIA H100"):
        start(made, gpu_name="NVIDIA H100")
    start(made, job(pipeline=2, data=2, chunks=2, microbatches=4, **MODEL))  # more replicas: the operations are the same


def test_a_file_from_elsewhere_tells_nothing_to_compare(made, tmp_path):
    path = scaled(made, tmp_path / "p.csv", provenance={"gpu": "another name of it", "source": "zeus"})
    Planner(dataclasses.replace(OPTIONS, profile=path), FACTS, GPU.sm_clocks_mhz, 0.03, GPU.name, print).check()


# Flags beside a plan


def beside(made: Path, given: tuple[str, ...] = (), **options) -> None:
    check_options(EnergyOptions(given=given, **options), load_plan(made / "plan.json"))


def test_flags_that_say_the_same_as_the_plan_may_stay(made):
    beside(made, ("max_switches", "policy", "slowdown"), policy="segments", max_switches=8, slowdown=0.0)
    beside(made, ("policy",), policy="dry-run")
    beside(made, (), policy="segments", max_switches=2)  # a default is no wish


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("policy", {"policy": "uniform"}, "--energy-policy uniform, but the plan was made with segments: leave"),
        ("policy", {"policy": "measure"}, "--energy-policy measure leaves the clocks as they are: leave out --energy-plan or this policy"),
        ("max_switches", {"policy": "segments", "max_switches": 2}, "--energy-max-switches 2, but the plan was made with 8: leave"),
        ("slowdown", {"policy": "segments", "slowdown": 0.02}, "--energy-slowdown 0.02, but the plan was made with 0.0: leave"),
    ],
)
def test_flags_that_contradict_the_plan(given, options, said, made):
    with pytest.raises(UserError) as refused:
        beside(made, (given,), **options)
    assert said in str(refused.value)


def test_a_plan_brings_its_own_slowdown_and_policy(made, tmp_path):
    body = json.loads((made / "plan.json").read_text())
    body["slowdown"], body["policy"] = 0.03, "operations"
    (tmp_path / "plan.json").write_text(json.dumps(body))
    done = run(plan=str(tmp_path / "plan.json"))
    assert (done.coordinator.options.slowdown, done.coordinator.findings.planned.policy) == (0.03, "operations")
    assert "(emulated)" in done.said[0] and "(operations, " in done.said[0]


# Every replica


def test_every_replica_has_to_run_the_schedule():
    facts = job(pipeline=2, tensor=2, data=2, chunks=2, microbatches=4)
    made = Planner(OPTIONS, facts, GPU.sm_clocks_mhz, 0.03, GPU.name, print)
    schedule = facts.schedule("overlap")
    programs = [program(schedule, stage) for stage in facts.stage_of_rank]
    assert made.schedule(programs).p2p == "overlap"
    for rank in (1, 7):  # of replica 0, the other tensor rank; of replica 1, stage 1
        odd = list(programs)
        odd[rank] = [*programs[rank][:3], programs[rank][4], programs[rank][3], *programs[rank][5:]]
        with pytest.raises(LearningError, match=rf"^rank {rank} does not run what rank {0 if rank == 1 else 4} runs \(mode overlap: stage"):
            made.schedule(odd)
