"""Graphs from files: what they mean, what is wrong with them, and back again."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.graph import Unit
from megatron_energy.pipeline.replay import makespans
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.planning.graph_file import load_graph
from megatron_energy.planning.graph_plan import plan_graph
from megatron_energy.planning.graph_problem import graph_of, graph_problem, tables_for
from megatron_energy.planning.graph_writer import save_graph, to_file
from megatron_energy.profiles.files import load_profile
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.tables import build_tables
from tests import documents
from tests.pipeline.schedules import schedules
from tests.planning.problems import profile_of
from tests.source_tree import ROOT

PAGE = ROOT / "docs" / "graphs.md"


def shown(kind):
    return next(block.text for block in documents.blocks(PAGE) if block.kind == kind)


@pytest.fixture
def write(tmp_path):
    """Writes a graph file from an object or a text."""

    def write(body):
        path = tmp_path / "graph.json"
        path.write_text(body if isinstance(body, str) else json.dumps(body), encoding="utf-8")
        return path

    return write


@pytest.fixture
def example_profile(tmp_path):
    (tmp_path / "profile.csv").write_text(shown("csv"), encoding="utf-8")
    return load_profile(tmp_path / "profile.csv")


def test_the_documented_example_by_hand(write, example_profile):
    """The figures of docs/graphs.md: 8 s and 4,200 J as found; C at 1000 MHz takes 3 s of its 3.5 s and saves 120 + 100 J."""
    content = load_graph(write(shown("json")))
    problem = graph_problem(content, example_profile, 100.0)
    names = [operation.name for operation in content.operations]
    end_s = problem.graph.levels.ends(problem.durations(problem.baseline_clocks)[:, np.newaxis])[:, 0]
    assert dict(zip(names, end_s.tolist(), strict=True)) == {"load": 1.0, "A": 2.0, "B": 6.0, "C": 4.0, "D": 8.0}
    assert problem.baseline_energy_j == pytest.approx(100 + 300 + 600 + 1200 + 600 + 14 * 100)
    plan = plan_graph(content, problem, "segments")
    assert [(u.name, [(s.operation, s.clock_mhz) for s in u.segments]) for u in plan.units] == [
        ("gpu 0", [("A", 1400)]),
        ("gpu 1", [("B", 1400)]),
        ("gpu 2", [("C", 1000)]),
    ]
    assert (plan.expected.iteration_s, plan.expected.energy_j) == (pytest.approx(8.0), pytest.approx(3980.0))
    assert plan.expected.saved_percent == pytest.approx(100 * 220 / 4200)
    assert plan.expected.bound_saved_percent == pytest.approx(100 * 220 / 4200)
    with_slack = plan_graph(content, graph_problem(content, example_profile, 100.0, slowdown=0.25), "operations")
    # 10 s: B may take 6 s (-240 J), or A and D 1.5 s and 3 s (-180 J), but two GPUs would wait for it (+400 J): nothing is gained by it.
    assert [s.clock_mhz for u in with_slack.units for s in u.segments] == [1400, 1400, 1000]
    assert with_slack.expected.iteration_s == pytest.approx(8.0)


def test_a_saved_plan_holds_what_was_planned(write, example_profile, tmp_path):
    content = load_graph(write(shown("json")))
    plan = plan_graph(content, graph_problem(content, example_profile, 100.0), "roles")
    plan.save(tmp_path / "plan.json")
    body = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert (body["schema"], body["version"], body["policy"]) == ("megatron-energy/graph-plan", 1, "roles")
    assert body["expected"]["energy_j"] == pytest.approx(3980.0)
    assert body["units"][2] == {"name": "gpu 2", "segments": [{"operation": "C", "clock_mhz": 1000}]}
    with pytest.raises(UserError, match=r"cannot write .*: No such file"):
        plan.save(tmp_path / "nowhere" / "plan.json")


def test_envpipe_does_not_know_graphs(write, example_profile):
    content = load_graph(write(shown("json")))
    with pytest.raises(UserError, match="EnvPipe knows plain 1F1B only, not graphs from files"):
        plan_graph(content, graph_problem(content, example_profile, 100.0), "envpipe")


def test_every_way_to_name_a_curve(write):
    """A unit's stage and an operation's own, a chunk's curve and its share of the stage's, other instructions, fixed times, joins."""
    body = {
        "schema": "megatron-energy/graph",
        "version": 1,
        "chunks": 4,
        "units": [{"name": "x", "stage": 7, "replica": 1}, {"name": "y"}],
        "operations": [
            {"name": "whole", "unit": "x", "instruction": "forward"},
            {"name": "share", "unit": "x", "instruction": "forward", "chunk": 2},
            {"name": "own", "unit": "x", "instruction": "forward", "chunk": 3},
            {"name": "elsewhere", "unit": "x", "instruction": "backward", "stage": 1, "microbatch": 5, "role": "steady"},
            {"name": "attention", "unit": "y", "instruction": "attention"},
            {"name": "wait", "unit": "y", "instruction": "join"},
            {"name": "load", "unit": "y", "time_s": 0.25, "energy_j": 20},
        ],
    }
    clock = np.array([1400, 1000])
    profile = Profile(
        {
            (7, -1, "forward"): Curve(clock, np.array([4.0, 6.0]), np.array([800.0, 720.0])),
            (7, 3, "forward"): Curve(clock, np.array([1.5, 2.0]), np.array([300.0, 250.0])),
            (1, -1, "backward"): Curve(clock, np.array([8.0, 9.0]), np.array([1.0, 2.0])),
            (1, -1, "attention"): Curve(clock, np.array([0.1, 0.2]), np.array([3.0, 4.0])),
        }
    )
    content = load_graph(write(body))
    graph, tables = graph_of(content), tables_for(content, profile)
    assert tables.time_s.tolist() == [[4.0, 6.0], [1.0, 1.5], [1.5, 2.0], [8.0, 9.0], [0.1, 0.2], [0.0, 0.0], [0.25, 0.25]]
    assert tables.energy_j[:, 0].tolist() == [800.0, 200.0, 300.0, 1.0, 3.0, 0.0, 20.0]
    assert [v.kind for v in graph.vertices] == ["forward"] * 3 + ["backward", "fixed", "join", "fixed"]
    assert (graph.vertices[3].microbatch, graph.vertices[3].role) == (5, "steady")
    assert graph.units == (Unit(7, 1), Unit(1, 0))
    assert graph.edges.tolist() == [[0, 1], [1, 2], [2, 3], [4, 5], [5, 6]]


def test_operations_may_stand_in_any_order_between_units(write):
    """Each unit's own order counts, and the longest lag of several edges between two operations."""
    operations = [{"name": name, "unit": name[0], "time_s": 1, "energy_j": 1} for name in ("a1", "b1", "a2", "b2")]
    edges = [{"before": "b2", "after": "a1"}, {"before": "b2", "after": "a1", "lag_s": 2}, {"before": "b1", "after": "b2", "lag_s": 1}]
    body = {
        "schema": "megatron-energy/graph",
        "version": 1,
        "units": [{"name": "a"}, {"name": "b"}],
        "operations": operations,
        "edges": edges,
    }
    graph = graph_of(load_graph(write(body)))
    assert [chain.tolist() for chain in graph.chains] == [[0, 2], [1, 3]]
    assert dict(zip(map(tuple, graph.edges.tolist()), graph.lag_s.tolist(), strict=True)) == {(0, 2): 0, (1, 3): 1, (3, 0): 2}
    assert makespans(graph, np.ones((4, 1)))[0] == 7.0


WRONG = [
    (lambda b: b.update(schema="x"), 'is no graph: it must be a JSON object with "schema": "megatron-energy/graph"'),
    (lambda b: b.update(version=2), "has graph version 2, this release reads 1: write it anew"),
    (lambda b: b.pop("units"), ": units is missing"),
    (lambda b: b.update(colour="red"), ": colour is not known here"),
    (lambda b: b.update(operations=[]), ": operations: there are none"),
    (lambda b: b.update(chunks=0), ": chunks: 0 must be at least 1"),
    (lambda b: b["units"].append({"name": "gpu 0"}), r": units\[3\].name: 'gpu 0' is there twice"),
    (lambda b: b["units"].append({"name": "gpu 9"}), ": units: 'gpu 9' has no operation: give it one or leave it out"),
    (lambda b: b["operations"][2].update(name="A"), r": operations\[2\].name: 'A' is there twice"),
    (lambda b: b["operations"][2].update(name=""), r": operations\[2\].name: '' must not be empty"),
    (lambda b: b["operations"][2].update(unit="gpu 7"), r": operations\[2\].unit: there is no unit 'gpu 7'"),
    (lambda b: b["operations"][2].update(role="warm"), r": operations\[2\].role: 'warm' is not one of warm-up, steady, "),
    (
        lambda b: b["operations"][1].pop("instruction"),
        r": operations\[1\]: 'A' needs an instruction of the profile, or time_s and energy_j",
    ),
    (
        lambda b: b["operations"][0].pop("energy_j"),
        r": operations\[0\]: 'load' needs an instruction of the profile, or time_s and energy_j",
    ),
    (lambda b: b["operations"][1].update(time_s=1), r": operations\[1\]: 'A' has an instruction and time_s: give one or the other"),
    (lambda b: b["operations"][0].update(time_s=-1), r": operations\[0\].time_s: -1.0 must not be negative"),
    (lambda b: b["operations"][0].update(time_s=float("nan")), r": operations\[0\].time_s: nan is not a finite number"),
    (lambda b: b["operations"][0].update(energy_j="9"), r": operations\[0\].energy_j: '9' is not a finite number"),
    (lambda b: b["edges"][1].update(after="E"), r": edges\[1\]: there is no operation 'E'"),
    (lambda b: b["edges"][1].update(before="E"), r": edges\[1\]: there is no operation 'E'"),
    (lambda b: b["edges"][1].update(lag_s=-0.5), r": edges\[1\].lag_s: -0.5 must not be negative"),
    (lambda b: b["edges"].append(["A", "B"]), r": edges\[4\]: \['A', 'B'\] is not an object"),
]


@pytest.mark.parametrize(("change", "complaint"), WRONG, ids=[text[:40] for _, text in WRONG])
def test_what_is_wrong_is_told_by_its_place(write, change, complaint):
    body = copy.deepcopy(json.loads(shown("json")))
    change(body)
    with pytest.raises(UserError, match=rf"graph\.json.?{complaint}") as caught:
        load_graph(write(body))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"), [("{", "is no graph: not JSON"), ("[]", "is no graph: it must be"), ("", "is no graph: not JSON")]
)
def test_what_is_no_graph(write, text, complaint):
    with pytest.raises(UserError, match=complaint):
        load_graph(write(text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the graph .*none\.json: No such file"):
        load_graph(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("edges", "names"),
    [
        ([("D", "A")], {"'A' -> 'B' -> 'D' -> 'A'", "'A' -> 'C' -> 'D' -> 'A'"}),
        ([("B", "C"), ("C", "B")], {"'B' -> 'C' -> 'B'", "'C' -> 'B' -> 'C'"}),
        ([("C", "C")], {"'C' -> 'C'"}),
    ],
)
def test_a_cycle_is_shown(write, edges, names):
    body = json.loads(shown("json"))
    body["edges"] += [{"before": before, "after": after} for before, after in edges]
    with pytest.raises(UserError, match=r"wait for each other: .*: change the order of their unit's operations or drop an edge") as caught:
        graph_of(load_graph(write(body)))
    assert str(caught.value).split(": ")[1] in names


def test_a_curve_that_the_profile_lacks_is_told_with_its_operation(write):
    content = load_graph(write(shown("json")))
    with pytest.raises(UserError, match=r"operation 'C': the profile has no forward of stage 2 \(it has stages 0, 1\): add its rows"):
        tables_for(content, profile_of([1.0, 1.0]))


@settings(max_examples=40)
@given(schedules())
def test_round_trip_of_megatron_schedules(tmp_path_factory, schedule):
    """The same vertices, tables and times; edges may come on top that the order of a unit's operations implies anyway."""
    tail = not schedule.forward_only
    graph = build_graph(schedule, transfer_s=0.01, grad_sync=tail, optimizer=tail, replicas=2)
    path = tmp_path_factory.mktemp("graph") / "graph.json"
    save_graph(to_file(graph, schedule.chunks), path)
    content = load_graph(path)
    again = graph_of(content)
    order = [int(vertex) for chain in graph.chains for vertex in chain]
    assert again.units == graph.units
    assert list(again.vertices) == [graph.vertices[vertex] for vertex in order]
    duration_s = np.random.default_rng(0).uniform(0.5, 2.0, (len(order), 5))
    duration_s[[v.kind == "join" for v in graph.vertices]] = 0.0
    assert again.levels.ends(duration_s[order]).tolist() == pytest.approx(graph.levels.ends(duration_s)[order], rel=1e-12)
    profile = profile_of([1.0, 1.1, 1.2, 1.3, 1.4][: schedule.stages])
    for stage in range(schedule.stages):
        profile.curves[stage, -1, "grad-sync"] = profile.curves[stage, -1, "optimizer"] = profile.curves[0, -1, "forward"]
    assert tables_for(content, profile).time_s.tolist() == build_tables(graph, profile, schedule.chunks).time_s[order].tolist()


def test_a_graph_that_cannot_be_written(tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*: No such file"):
        save_graph(to_file(build_graph(Schedule(2, 2))), tmp_path / "nowhere" / "graph.json")
