import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_energy.errors import UserError
from megatron_energy.pipeline import build
from megatron_energy.pipeline.build import build_graph, draft_of
from megatron_energy.pipeline.draft import Draft
from megatron_energy.pipeline.graph import Vertex
from megatron_energy.pipeline.order import operations, roles
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Compute, Post, Wait
from tests.pipeline.schedules import schedules

CASES = settings(derandomize=True, deadline=None, max_examples=80)


def named_edges(graph):
    """Edges as text: 0F1 is the forward of microbatch 1 on stage 0."""
    names = [f"{v.unit}{v.kind[0].upper()}{v.microbatch}" for v in graph.vertices]
    return {(names[a], names[b]) for a, b in graph.edges.tolist()}


def test_ideal_graph_by_hand():
    """Chain edges and one data edge per transfer; what a data edge implies together with the chains is left out."""
    graph = build_graph(Schedule(2, 2, p2p="ideal"))
    chains = {("0F0", "0F1"), ("0F1", "0B0"), ("0B0", "0B1"), ("1F0", "1B0"), ("1B0", "1F1"), ("1F1", "1B1")}
    assert named_edges(graph) == chains | {("0F0", "1F0"), ("0F1", "1F1"), ("1B0", "0B0"), ("1B1", "0B1")}
    assert graph.lag_s.tolist() == [0.0] * 10


def test_plain_graph_by_hand():
    """The blocking exchange after stage 0's F1 joins with the one after stage 1's B0: B0 of stage 0 and F1 of stage 1 start together."""
    graph = build_graph(Schedule(2, 2))
    chains = {("0F0", "0F1"), ("0F1", "0B0"), ("0B0", "0B1"), ("1F0", "1B0"), ("1B0", "1F1"), ("1F1", "1B1")}
    assert named_edges(graph) == chains | {("0F0", "1F0"), ("0F1", "1F1"), ("1B0", "0B0"), ("1B1", "0B1")}


def test_a_transfer_takes_time_after_both_ends_are_ready():
    graph = build_graph(Schedule(2, 1), transfer_s=0.5)
    lags = {
        (graph.vertices[a].kind, graph.vertices[b].kind, float(lag)) for (a, b), lag in zip(graph.edges.tolist(), graph.lag_s, strict=True)
    }
    # The first stage sends (0.5 s), and only then asks for the gradient (0.5 s), even if the gradient were ready.
    assert lags == {("forward", "forward", 0.5), ("forward", "backward", 0.0), ("forward", "backward", 1.0), ("backward", "backward", 0.5)}


@CASES
@given(schedules(), st.integers(1, 3), st.booleans())
def test_chains_hold_the_operations_in_order(schedule, replicas, tail):
    tail = tail and not schedule.forward_only
    graph = build_graph(schedule, replicas=replicas, grad_sync=tail, optimizer=tail)
    edges = {tuple(edge) for edge in graph.edges.tolist()}
    assert len(edges) == len(graph.edges)

    def leads_to(a, b):
        """Directly, or over the join of all replicas."""
        return (a, b) in edges or any((a, j) in edges and (j, b) in edges for j, v in enumerate(graph.vertices) if v.kind == "join")

    for unit, chain in zip(graph.units, graph.chains, strict=True):
        vertices = [graph.vertices[i] for i in chain]
        assert all(graph.units[v.unit] == unit for v in vertices)
        computes = [v for v in vertices if v.kind in ("forward", "backward")]
        assert [Compute(v.kind, v.chunk, v.microbatch) for v in computes] == operations(schedule, unit.stage)
        assert [v.role for v in computes] == roles(schedule, unit.stage)
        assert [v.kind for v in vertices if v.kind in ("grad-sync", "optimizer")] == (["grad-sync", "optimizer"] if tail else [])
        assert all(leads_to(a, b) for a, b in itertools.pairwise(chain.tolist()))
    assert sorted(i for chain in graph.chains for i in chain.tolist()) == list(range(len(graph.vertices)))


@pytest.mark.parametrize("p2p", ["overlap", "overlap-wait", "batched"])
def test_interleaved_graphs_stay_small(p2p):
    """The LP has a row per edge. Blocking exchanges contract completely; the data edges alone are 984."""
    graph = build_graph(Schedule(8, 16, 2, p2p=p2p))
    assert len(graph.vertices) == 2 * 2 * 8 * 16
    assert 984 < len(graph.edges) < 1.25 * 984


def draft(units, edges, joins=()):
    """One vertex per unit, numbered alike."""
    made = Draft(chains=[[] for _ in range(units)])
    for unit in range(units):
        made.add(Vertex(unit, "join" if unit in joins else "forward"))
    for a, b, lag_s in edges:
        made.connect(a, b, lag_s)
    return made


def edges_of(made):
    return {(a, b, lag) for a, after in enumerate(made.after) for b, lag in after.items()}


def test_a_join_with_two_sides_of_two_is_contracted_and_lags_add_up():
    made = draft(5, [(0, 2, 0.1), (1, 2, 0.2), (2, 3, 0.0), (2, 4, 0.4)], joins=[2])
    made.contract_joins()
    assert edges_of(made) == {(0, 3, 0.1), (0, 4, 0.1 + 0.4), (1, 3, 0.2), (1, 4, 0.2 + 0.4)}
    assert made.chains[2] == []


def test_a_join_that_would_cost_edges_stays():
    edges = [(0, 3, 0.0), (1, 3, 0.0), (2, 3, 0.0), (3, 4, 0.0), (3, 5, 0.0)]
    made = draft(6, edges, joins=[3])
    made.contract_joins()
    assert edges_of(made) == set(edges)


def test_a_join_that_nobody_follows_goes():
    made = draft(2, [(0, 1, 0.0)], joins=[1])
    made.contract_joins()
    assert edges_of(made) == set()


def test_implied_edges_are_dropped_unless_their_lag_is_longer():
    """Unit 0 runs a then b, unit 1 runs c then d."""
    made = Draft(chains=[[], []])
    a = made.add(Vertex(0, "forward"))
    b = made.add(Vertex(0, "forward"), a)
    c = made.add(Vertex(1, "forward"))
    d = made.add(Vertex(1, "forward"), c)
    made.connect(b, c)
    made.connect(a, c)  # implied by b to c
    made.connect(a, d, 1.0)  # not implied: the lag is longer
    made.connect(b, d)  # implied by b to c
    made.drop_implied_edges()
    assert edges_of(made) == {(a, b, 0.0), (c, d, 0.0), (b, c, 0.0), (a, d, 1.0)}


def blocking(transfer):
    return [Post(transfer, 0), Wait(transfer, 0)]


def test_a_deadlock_is_reported(monkeypatch):
    """Both stages send first and block: neither ever posts its receive."""
    forward, backward = Compute("forward", 0, 0), Compute("backward", 0, 0)
    programs = [
        [forward, *blocking("send_next"), *blocking("recv_next"), backward],
        [forward, *blocking("send_prev"), *blocking("recv_prev"), backward],
    ]
    monkeypatch.setattr(build, "program", lambda schedule, stage, **_: programs[stage])
    with pytest.raises(UserError, match="Megatron would deadlock"):
        build_graph(Schedule(2, 1))


def test_a_wait_that_nobody_answers_is_an_error():
    programs = [[Compute("forward", 0, 0)], [*blocking("recv_prev"), Compute("forward", 0, 0)]]
    with pytest.raises(ValueError, match=r"stage 1 waits for .* stage 0 never posts its send_next 0"):
        draft_of(programs, [["steady"], ["steady"]], 0.0)


def test_an_evaluation_has_no_optimizer():
    with pytest.raises(ValueError, match="evaluation"):
        build_graph(Schedule(2, 2, forward_only=True), optimizer=True)
