"""Who belongs together, from every rank's own facts."""

from dataclasses import replace

import pytest

from megatron_energy.emulation.settle import Wiring
from megatron_energy.parallel.layout import Layout
from megatron_energy.session.emulated import on_emulated_nodes, wiring
from megatron_energy.session.facts import JobFacts
from tests.session.facts import job


def test_lock_step_groups_by_hand():
    assert job(tensor=2, data=2, pipeline=2).lockstep_groups() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert job(context=2, data=2).lockstep_groups() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "sizes", [{"tensor": 2, "data": 4, "expert": 2, "pipeline": 2}, {"context": 2, "data": 4, "expert": 4}, {"data": 4, "expert": 2}]
)
def test_experts_join_replicas_as_the_layout_says(sizes):
    assert job(**sizes).lockstep_groups() == sorted(sorted(g) for g in Layout(**sizes).lockstep_groups())


def test_wiring_is_megatrons_grid():
    facts = on_emulated_nodes(job(tensor=2, data=2, pipeline=4).ranks, gpus_per_node=8)
    found, expected = wiring(facts), Wiring.grid(stages=4, tensor=2, data=2, gpus_per_node=8)
    for name in ("stage", "next_rank", "prev_rank"):
        assert list(getattr(found, name)) == list(getattr(expected, name))
    assert [list(g) for g in found.lock_step] == [list(g) for g in expected.lock_step]
    assert sorted(map(list, found.data_parallel)) == sorted(map(list, expected.data_parallel))
    assert found.node == ["node0"] * 8 + ["node1"] * 8


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ([f"n{rank // 4 + 1}" for rank in range(16)], [f"n{rank // 4 + 1}" for rank in range(16)]),  # a host per node
        (["vm"] * 16, [f"node{rank // 4}" for rank in range(16)]),  # all on one host
        ([f"n{rank // 8}" for rank in range(16)], [f"node{rank // 4}" for rank in range(16)]),  # two nodes on a host
        ([f"n{rank % 4}" for rank in range(16)], [f"node{rank // 4}" for rank in range(16)]),  # ranks dealt out to the hosts
    ],
)
def test_emulated_nodes_have_the_names_of_hosts_that_are_one(hosts, names):
    facts = [replace(r, node=host) for r, host in zip(job(tensor=2, data=2, pipeline=4).ranks, hosts, strict=True)]
    placed = on_emulated_nodes(facts, gpus_per_node=4).ranks
    assert [(r.node, r.local_rank) for r in placed] == [(name, rank % 4) for rank, name in enumerate(names)]


def test_a_fingerprint_changes_with_the_model_only():
    a = job(pipeline=2, layers=8, hidden_size=64)
    assert a.fingerprint() == job(pipeline=4, layers=8, hidden_size=64).fingerprint()
    other = type(a)(tuple(replace(r, hidden_size=128) for r in a.ranks))
    assert a.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("changed", [{"settings": "params_dtype=bfloat16"}, {"sequence_parallel": True}, {"sequence_length": 4096}])
def test_a_fingerprint_changes_with_what_changes_the_time_of_operations(changed):
    model = {"layers": 8, "settings": "params_dtype=float32", "sequence_length": 2048}
    assert job(**model).fingerprint() != job(**{**model, **changed}).fingerprint()


def test_replicas_are_the_ranks_that_pass_activations_to_each_other():
    assert job(tensor=2, data=2, pipeline=2).replicas() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_the_length_of_a_run_makes_no_other_job_of_it():
    assert job(iterations=5) == job(iterations=6)
    assert job(iterations=5).fingerprint() == job(iterations=6).fingerprint()


def test_the_warm_up_flush_belongs_to_overlapped_schedules_of_several_chunks():
    flushed = JobFacts(tuple(replace(rank, warmup_flush=True) for rank in job(pipeline=2, chunks=2, microbatches=4).ranks))
    assert [flushed.schedule(p2p).warmup_flush for p2p in ("ideal", "overlap", "overlap-wait")] == [False, True, True]
    plain = JobFacts(tuple(replace(rank, warmup_flush=True) for rank in job(pipeline=2, microbatches=4).ranks))
    assert not plain.schedule("overlap").warmup_flush
