import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import Graph, Unit, Vertex
from megatron_energy.pipeline.levels import CycleError, Levels
from megatron_energy.pipeline.order import operations
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.replay import busy_s, critical_path, energy_j, makespans, replay, waiting_s
from megatron_energy.pipeline.schedule import Schedule
from tests.pipeline.schedules import schedules
from tests.pipeline.simulator import simulate

CASES = settings(derandomize=True, deadline=None, max_examples=80)


def random_durations(graph, seed):
    """Seconds per vertex, joins 0; some operations take no time at all."""
    rng = random.Random(seed)
    return np.array([0.0 if v.kind == "join" else rng.choice([0.0, rng.random(), 3 * rng.random()]) for v in graph.vertices])


def timed(graph):
    """Per unit, its vertices that take time, in order."""
    return [[i for i in chain.tolist() if graph.vertices[i].kind != "join"] for chain in graph.chains]


def simulated(schedule, graph, duration, transfer_s=0.0, **tail):
    programs = {(unit.stage, unit.replica): program(schedule, unit.stage, **tail) for unit in graph.units}
    durations = {unit: iter(duration[vertices].tolist()) for unit, vertices in zip(programs, timed(graph), strict=True)}
    return simulate(programs, durations, transfer_s)


@CASES
@given(schedules(modes=("overlap", "overlap-wait", "batched")), st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))
def test_replay_equals_an_execution_of_the_programs(schedule, seed, transfer_s):
    graph = build_graph(schedule, transfer_s=transfer_s)
    duration = random_durations(graph, seed)
    result = replay(graph, duration)
    spans, end = simulated(schedule, graph, duration, transfer_s)
    for unit, vertices in zip(graph.units, timed(graph), strict=True):
        expected = np.array(spans[unit.stage, unit.replica])
        assert result.start_s[vertices] == pytest.approx(expected[:, 0])
        assert result.end_s[vertices] == pytest.approx(expected[:, 1])
    assert result.makespan_s == pytest.approx(end)


@CASES
@given(schedules(modes=("overlap", "overlap-wait", "batched")), st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_replicas_meet_at_grad_sync_and_optimizer(schedule, seed, replicas, grad_sync):
    if schedule.forward_only:
        return
    graph = build_graph(schedule, grad_sync=grad_sync, optimizer=True, replicas=replicas)
    assert graph.units == tuple(Unit(stage, replica) for replica in range(replicas) for stage in range(schedule.stages))
    duration = random_durations(graph, seed)
    result = replay(graph, duration)
    spans, end = simulated(schedule, graph, duration, grad_sync=grad_sync, optimizer=True)
    for unit, vertices in zip(graph.units, timed(graph), strict=True):
        assert result.start_s[vertices] == pytest.approx([start for start, _ in spans[unit.stage, unit.replica]])
    assert result.makespan_s == pytest.approx(end)


def ideal_ends(schedule, durations, transfer_s):
    """{(kind, stage, chunk, microbatch): end} from the data dependencies alone, by recursion."""
    order = [operations(schedule, stage) for stage in range(schedule.stages)]
    layers = schedule.stages * schedule.chunks
    ends = {}

    def end(kind, stage, chunk, microbatch):
        key = (kind, stage, chunk, microbatch)
        if key not in ends:
            layer = chunk * schedule.stages + stage
            place = next(i for i, o in enumerate(order[stage]) if (o.kind, o.chunk, o.microbatch) == (kind, chunk, microbatch))
            start = 0.0
            if place:
                before = order[stage][place - 1]
                start = end(before.kind, stage, before.chunk, before.microbatch)
            source = layer - 1 if kind == "forward" else layer + 1
            if 0 <= source < layers:
                start = max(start, end(kind, source % schedule.stages, source // schedule.stages, microbatch) + transfer_s)
            ends[key] = start + durations[key]
        return ends[key]

    return {key: end(*key) for key in durations}


@CASES
@given(schedules(modes=("ideal",)), st.integers(0, 10**6), st.sampled_from([0.0, 0.3]))
def test_ideal_mode_has_data_dependencies_only(schedule, seed, transfer_s):
    graph = build_graph(schedule, transfer_s=transfer_s)
    assert all(v.kind in ("forward", "backward") for v in graph.vertices)
    duration = random_durations(graph, seed)
    keys = [(v.kind, v.unit, v.chunk, v.microbatch) for v in graph.vertices]
    expected = ideal_ends(schedule, dict(zip(keys, duration.tolist(), strict=True)), transfer_s)
    assert replay(graph, duration).end_s == pytest.approx([expected[key] for key in keys])


@CASES
@given(schedules(modes=("overlap",)), st.integers(0, 10**6))
def test_modes_only_add_waiting(schedule, seed):
    """Waits of a mode come on top of the data dependencies, and waiting for sends at once on top of waiting for them later."""
    times = {}
    for p2p in ("ideal", "overlap", "overlap-wait"):
        flush = schedule.warmup_flush and p2p != "ideal"
        sizes = (schedule.stages, schedule.microbatches, schedule.chunks, schedule.group)
        mode = Schedule(*sizes, p2p, flush, schedule.forward_only)
        graph = build_graph(mode)
        rng = random.Random(seed)
        drawn = {key: rng.random() for key in sorted((v.kind, v.unit, v.chunk, v.microbatch) for v in graph.vertices if v.kind != "join")}
        duration = np.array([drawn.get((v.kind, v.unit, v.chunk, v.microbatch), 0.0) for v in graph.vertices])
        times[p2p] = replay(graph, duration).makespan_s
    assert times["ideal"] <= times["overlap"] + 1e-9
    assert times["overlap"] <= times["overlap-wait"] + 1e-9


def test_plain_pipeline_by_hand():
    """Two stages, two microbatches, F 1 s, B 2 s: F0 F1 on stage 0, B0 on stage 1 ends at 4, B1 of stage 0 ends at 9."""
    graph = build_graph(Schedule(2, 2))
    duration = np.array([{"forward": 1.0, "backward": 2.0, "join": 0.0}[v.kind] for v in graph.vertices])
    result = replay(graph, duration)
    assert result.makespan_s == 9.0
    assert waiting_s(graph, result).tolist() == [3.0, 3.0]
    assert waiting_s(graph, result, horizon_s=10.0).tolist() == [4.0, 4.0]
    assert busy_s(graph, duration).tolist() == [6.0, 6.0]
    path = [(v.unit, v.kind, v.microbatch) for v in (graph.vertices[i] for i in critical_path(graph, result)) if v.kind != "join"]
    assert path == [(0, "forward", 0), (1, "forward", 0), (1, "backward", 0), (1, "forward", 1), (1, "backward", 1), (0, "backward", 1)]


@pytest.mark.parametrize(("p2p", "held_back"), [("batched", True), ("overlap", False)])
def test_batched_mode_holds_a_forward_back_until_the_backward_of_its_pair_is_done(p2p, held_back):
    graph = build_graph(Schedule(4, 8, 2, p2p=p2p))
    slow_first_stage = {"forward": 1.0, "backward": 10.0}
    duration = np.array([slow_first_stage[v.kind] if v.unit == 0 else 1.0 for v in graph.vertices])
    result = replay(graph, duration)
    first_stage = graph.chains[0].tolist()
    early = 0
    for forward, backward in itertools.pairwise(first_stage):
        sent, paired = graph.vertices[forward], graph.vertices[backward]
        if sent.kind == "forward" and sent.role == paired.role == "steady" and paired.kind == "backward":
            receiver = graph.vertices.index(Vertex(1, "forward", sent.chunk, sent.microbatch, "steady"))
            early += result.start_s[receiver] < result.end_s[backward]
    assert (early == 0) == held_back


@CASES
@given(schedules(), st.integers(0, 10**6))
def test_a_batch_is_many_replays(schedule, seed):
    graph = build_graph(schedule)
    durations = np.stack([random_durations(graph, seed + i) for i in range(3)], axis=1)
    assert makespans(graph, durations) == pytest.approx([replay(graph, durations[:, i]).makespan_s for i in range(3)])


@CASES
@given(schedules(), st.integers(0, 10**6), st.sampled_from([0.0, 0.2]))
def test_a_critical_path_explains_the_whole_iteration(schedule, seed, transfer_s):
    graph = build_graph(schedule, transfer_s=transfer_s)
    duration = random_durations(graph, seed)
    result = replay(graph, duration)
    path = critical_path(graph, result)
    lags = {(a, b): lag for (a, b), lag in zip(graph.edges.tolist(), graph.lag_s.tolist(), strict=True)}
    assert result.start_s[path[0]] == 0.0
    length = duration[path].sum() + sum(lags[pair] for pair in itertools.pairwise(path))
    assert length == pytest.approx(result.makespan_s)


def two_units():
    """Unit 0: a (1 s); unit 1: b (2 s) after a with a lag of 0.5 s."""
    return Graph(
        units=(Unit(0), Unit(1)),
        vertices=(Vertex(0, "forward"), Vertex(1, "forward")),
        edges=np.array([[0, 1]]),
        lag_s=np.array([0.5]),
        chains=(np.array([0]), np.array([1])),
    )


def test_energy_adds_blocking_power_while_units_wait():
    graph, duration, energy = two_units(), np.array([1.0, 2.0]), np.array([100.0, 300.0])
    result = replay(graph, duration)
    assert result.start_s.tolist() == [0.0, 1.5]
    assert result.makespan_s == 3.5
    # Unit 0 waits 2.5 s, unit 1 waits 1.5 s.
    assert energy_j(graph, duration, energy, 10.0) == pytest.approx(400 + 10 * 4.0)
    assert energy_j(graph, duration, energy, np.array([10.0, 20.0])) == pytest.approx(400 + 25 + 30)
    assert energy_j(graph, duration, energy, 10.0, horizon_s=5.0) == pytest.approx(400 + 10 * 7.0)


def test_a_cycle_is_named():
    with pytest.raises(CycleError) as caught:
        Levels.of(4, np.array([[0, 1], [1, 2], [2, 1], [2, 3]]), np.zeros(4))
    assert caught.value.vertices == [1, 2, 3]


def test_nonsense_is_refused():
    with pytest.raises(UserError, match="replicas"):
        build_graph(Schedule(2, 2), replicas=0)
    with pytest.raises(UserError, match="transfer"):
        build_graph(Schedule(2, 2), transfer_s=-1.0)
