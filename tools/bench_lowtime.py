"""Runs lowtime's solver on one problem; started by tools/bench_planner.py in an environment that has lowtime and nothing of ours.

Standard input is one JSON object: ``blocking_w``, ``unit_s``, ``limit_s``, ``kinds`` (per kind of operation a list of [MHz, s, J]),
``operations`` (kind of each) and ``edges``. Standard output is another one: ``state`` (done, stopped, or what went wrong), ``solve_s`` (CPU
seconds), ``points`` found, ``claimed_s``, ``peak_mib``, and ``clocks_mhz`` per operation of the last point: the fastest so far.
"""

import json
import resource
import sys
import time
from typing import Any

import networkx
from lowtime.cost_model import ExponentialModel
from lowtime.operation import CandidateExecutionOptions, DummyOperation, ExecutionOption, Operation, OperationSpec
from lowtime.solver import PhillipsDessouky


def spec_of(points: list[list[float]], problem: dict[str, Any]) -> Any:
    """Options of a kind of operation with lowtime's own filter and fit, on effective energies as Perseus has them."""
    unit_s = problem["unit_s"]
    options = [ExecutionOption(real_time=time_s, unit_time=unit_s, cost=energy_j, knob=int(mhz)) for mhz, time_s, energy_j in points]
    candidates = CandidateExecutionOptions(options=options)
    for option in candidates.options:
        option.cost -= problem["blocking_w"] * option.quant_time * option.unit_time
    return OperationSpec(options=candidates, cost_model=ExponentialModel(candidates))


def graph_of(problem: dict[str, Any]) -> tuple[Any, list[Any]]:
    """(lowtime's graph, its operations)."""
    specs = [spec_of(points, problem) for points in problem["kinds"]]
    operations = [Operation(spec=specs[kind]) for kind in problem["operations"]]
    graph = networkx.DiGraph(source_node=len(operations), sink_node=len(operations) + 1)
    for number, operation in enumerate([*operations, DummyOperation(), DummyOperation()]):
        graph.add_node(number, op=operation)
    graph.add_edges_from(problem["edges"])
    for number in range(len(operations)):
        if graph.in_degree(number) == 0:
            graph.add_edge(graph.graph["source_node"], number)
        if graph.out_degree(number) == 0:
            graph.add_edge(number, graph.graph["sink_node"])
    return graph, operations


def main() -> None:
    """Solve until done or out of time."""
    problem = json.load(sys.stdin)
    begin_s = time.process_time()
    points, claimed_s, clocks_mhz, state = 0, 0.0, [], "done"
    try:
        graph, operations = graph_of(problem)
        for result in PhillipsDessouky(graph).run():
            points, claimed_s = points + 1, result.real_time
            clocks_mhz = [operation.assigned_knob for operation in operations]
            if time.process_time() - begin_s > problem["limit_s"]:
                state = "stopped"
                break
    except (ValueError, RuntimeError) as error:  # no fit, or no flow
        state = f"failed: {error}"
    found = {
        "state": state,
        "solve_s": time.process_time() - begin_s,
        "points": points,
        "claimed_s": claimed_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "clocks_mhz": clocks_mhz,
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
