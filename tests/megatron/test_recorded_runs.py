"""Real megatron-core on CPU: numerics are untouched, and what is recorded is what the pipeline model says Megatron does."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from megatron_energy.megatron.configuration import COMBINED
from megatron_energy.megatron.recorder import UNKNOWN_OUTPUT
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Compute, GradSyncStart, Optimizer, Step
from tests.megatron.collector import from_plain
from tests.megatron.launching import needs_megatron, run_tiny_gpt
from tests.pipeline.releases import mode_in

pytestmark = needs_megatron

RANKS = 4
PIPELINE_4 = ["--pipeline", "4", "--microbatches", "8"]
INTERLEAVED = [*PIPELINE_4, "--virtual", "2"]
PIPELINE_2 = ["--pipeline", "2", "--virtual", "2", "--overlap"]
REDUCED = [*PIPELINE_2, "--overlap-grad", "--distributed-optimizer", "--microbatches", "4", "--steps", "3"]

UNHOOKED = {"unhooked-reduced": REDUCED, "unhooked-plain": [*PIPELINE_4, "--overlap-grad"]}
HOOKED = {
    "reduced": REDUCED,
    "plain": [*PIPELINE_4, "--overlap-grad", "--evaluate", "1"],
    "overlap": [*INTERLEAVED, "--overlap", "--evaluate", "1"],
    "overlap-keep": [*INTERLEAVED, "--overlap", "--keep-outputs"],
    "flush": [*INTERLEAVED, "--overlap", "--warmup-flush"],
    "flush-keep": [*INTERLEAVED, "--overlap", "--warmup-flush", "--keep-outputs"],
    "batched": [*INTERLEAVED, "--evaluate", "1"],
    "two-stages": [*PIPELINE_2, "--microbatches", "6"],
    "no-pipeline": ["--microbatches", "3", "--overlap-grad"],
    "tensor": ["--tensor", "2", "--pipeline", "2", "--sequence-parallel"],
    "experts": ["--pipeline", "2", "--experts", "4"],
    "combined": [*PIPELINE_2, "--experts", "4", "--moe-overlap", "--bf16", "--steps", "1"],
    "swapped": [*PIPELINE_4, "--swap-backward"],
    "long-groups": [*PIPELINE_4[:2], "--microbatches", "16", "--virtual", "2", "--group", "8", "--overlap", "--steps", "1"],
}
# Hooks stay installed in a process: runs without them come first.
CASES = {**UNHOOKED, **{name: [*words, "--record"] for name, words in HOOKED.items()}}

OTHER_CORES = [Path(folder) for folder in os.environ.get("MEGATRON_ENERGY_OTHER_CORES", "").split(os.pathsep) if folder]
Reports = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=[None, *(OTHER_CORES or ["others"])], ids=lambda core: Path(core).name if core else "installed")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """All trainings, in one start of the launcher per version of megatron-core."""
    if request.param == "others":
        pytest.skip("other versions of megatron-core are tested with MEGATRON_ENERGY_OTHER_CORES: folders named by version")
    return run_tiny_gpt(tmp_path_factory.mktemp("tiny"), RANKS, CASES, request.param)


def schedule_of(report: dict[str, Any], *, forward_only: bool = False) -> Schedule:
    """The schedule that a rank's facts describe, in the mode that its version of megatron-core has."""
    facts = report["facts"][0]
    mode = mode_in(facts["core_version"], overlap=facts["overlap_p2p"], deallocate=facts["deallocate_outputs"])
    return Schedule(
        facts["pipeline"], facts["microbatches"], facts["chunks"], facts["group_size"], mode, facts["warmup_flush"], forward_only
    )  # fmt: skip


def steps(report: dict[str, Any], iteration: int, leave_out: type[Any] | tuple[type[Any], ...] = GradSyncStart) -> list[Step]:
    """A recorded program, without the steps that the pipeline model does not place."""
    recorded = [from_plain(plain) for plain in report["programs"][iteration]["steps"]]
    return [step for step in recorded if not isinstance(step, leave_out)]


@pytest.mark.parametrize("name", ["reduced", "plain"])
def test_hooks_leave_numerics_untouched(reports: Reports, name: str) -> None:
    """Bit for bit: every loss, every gradient norm, all parameters, on every rank."""
    keys = ("losses", "grad_norms", "parameters")
    hooked = [{key: report[key] for key in keys} for report in reports[name]]
    assert hooked == [{key: report[key] for key in keys} for report in reports[f"unhooked-{name}"]]
    assert len({report["parameters"] for report in hooked}) > 1, "stages hold different parameters"


def test_communication_modes_compute_the_same(reports: Reports) -> None:
    """Sent memory is safe in every mode: with deallocated outputs and overlapped sends, gloo would read freed memory."""
    names = ("overlap", "overlap-keep", "flush", "flush-keep", "batched")
    trained = [[(report["losses"], report["parameters"]) for report in reports[name]] for name in names]
    assert all(one == trained[0] for one in trained)
    assert float.fromhex(trained[0][-1][0][1]) < float.fromhex(trained[0][-1][0][0]), "the loss falls"


MODELLED = ["plain", "overlap", "overlap-keep", "flush", "flush-keep", "batched", "two-stages", "no-pipeline", "tensor", "long-groups"]


@pytest.mark.parametrize("name", [*MODELLED, "reduced", "experts"])
def test_recorded_programs_are_the_modelled_ones(reports: Reports, name: str) -> None:
    for rank, report in enumerate(reports[name]):
        expected = program(schedule_of(report), report["facts"][0]["stage"], grad_sync=True, optimizer=True)
        training = [i for i, one in enumerate(report["programs"]) if not one["evaluation"]]
        assert training, f"rank {rank} recorded no iteration"
        assert report["broken"] == []
        for iteration in training:
            assert steps(report, iteration) == expected, f"rank {rank}, iteration {iteration}"


@pytest.mark.parametrize("name", ["plain", "overlap", "batched"])
def test_evaluation_is_an_iteration_of_its_own(reports: Reports, name: str) -> None:
    for report in reports[name]:
        assert [one["evaluation"] for one in report["programs"]] == [False, False, True]
        expected = program(schedule_of(report, forward_only=True), report["facts"][0]["stage"])
        assert steps(report, 2) == expected


def computes(recorded: Sequence[Step], kind: str) -> list[tuple[int, int]]:
    """Chunk and microbatch of the operations of a kind, in order."""
    return [(step.chunk, step.microbatch) for step in recorded if isinstance(step, Compute) and step.kind == kind]


def test_backwards_are_told_by_their_outputs_not_by_a_table(reports: Reports) -> None:
    """Megatron is made to run two backwards in exchanged order: the recording must show it, and so differ from the schedule."""
    first, *others = reports["swapped"]
    expected = program(schedule_of(first), 0, grad_sync=True, optimizer=True)
    recorded = steps(first, 0)
    assert recorded != expected
    assert computes(recorded, "backward")[:3] == [(0, 1), (0, 0), (0, 2)]
    assert computes(recorded, "forward") == computes(expected, "forward")
    assert first["broken"] == []
    assert steps(others[0], 0) == program(schedule_of(first), 1, grad_sync=True, optimizer=True)


def test_combined_forward_and_backward_is_refused_with_the_reason(reports: Reports) -> None:
    for report in reports["combined"]:
        if "cannot" in report:
            pytest.skip(report["cannot"])
        assert report["broken"] == [COMBINED]
        assert UNKNOWN_OUTPUT not in report["broken"]
        assert [type(step) for step in steps(report, 0)] == [Optimizer]


def test_facts_tell_where_a_rank_stands(reports: Reports) -> None:
    facts = [report["facts"] for report in reports["tensor"]]
    assert [len(f) for f in facts] == [1] * RANKS, "told once: nothing changed"
    assert [(f[0]["rank"], f[0]["stage"], f[0]["tensor_rank"]) for f in facts] == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    one = facts[0][0]
    sizes = ("tensor", "context", "expert", "data", "pipeline", "chunks", "microbatches", "layers", "hidden_size", "ffn_hidden_size")
    assert [one[name] for name in sizes] == [2, 1, 1, 1, 2, 1, 4, 8, 32, 128]
    assert (one["attention_heads"], one["vocabulary"], one["sequence_length"], one["microbatch_size"]) == (4, 64, 16, 1)
    assert one["sequence_parallel"] and one["group_size"] is None and one["core_version"]
    expert = reports["experts"][3]["facts"][0]
    assert (expert["expert"], expert["data"], expert["data_rank"], expert["stage"]) == (2, 2, 1, 1)


def starts(recorded: Sequence[Step]) -> list[tuple[int, Step]]:
    """Overlapped reductions: the chunk, and the operation before."""
    found, last = [], recorded[0]
    for step in recorded:
        if isinstance(step, GradSyncStart):
            found.append((step.chunk, last))
        elif isinstance(step, Compute):
            last = step
    return found


def test_overlapped_reductions_are_placed(reports: Reports) -> None:
    """Without a pipeline and on the plain schedule's first stage inside the last backward, elsewhere after it."""
    for name, last in (("no-pipeline", 2), ("plain", 7)):
        for report in reports[name]:
            assert starts(steps(report, 0, leave_out=())) == [(0, Compute("backward", 0, last))]
    stages = [starts(steps(report, 0, leave_out=())) for report in reports["reduced"]]
    assert [[chunk for chunk, _ in found] for found in stages] == [[1, 0]] * RANKS
    assert stages[0][0][1] == Compute("backward", 1, 3), "stage 0 starts when its own chunk is done"
