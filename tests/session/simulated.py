"""A training without Megatron: programs from the pipeline model, clock requests put in where the hooks would put them."""

from dataclasses import replace

from megatron_energy.emulation.settle import Settler
from megatron_energy.pipeline.programs import program
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.records.steps import Compute, GradSync, Optimizer, Program
from megatron_energy.session.coordinator import Coordinator
from megatron_energy.session.directive import ITERATION_BEGIN, Directive, evaluation_requests
from megatron_energy.session.emulated import gpus_per_node, on_emulated_nodes, settler
from megatron_energy.session.facts import JobFacts
from megatron_energy.session.findings import IterationData
from megatron_energy.session.options import EnergyOptions
from megatron_energy.session.planner import Planner


def with_requests(steps: Program, directive: Directive) -> Program:
    """The program that the hooks would record under a directive."""
    done = list(directive.requests.get(ITERATION_BEGIN, ()))
    for step in steps:
        point = None
        if isinstance(step, Compute):
            point = (step.kind, step.chunk, step.microbatch)
        elif isinstance(step, GradSync | Optimizer):
            point = ("grad-sync" if isinstance(step, GradSync) else "optimizer", -1, -1)
        if point is not None:
            done += directive.requests.get((*point, "begin"), ())
        done.append(step)
        if point is not None:
            done += directive.requests.get((*point, "end"), ())
    return done


class SimulatedRun:
    """A job whose ranks do what Megatron would; ``scale_energy`` may be changed at any time."""

    def __init__(self, options: EnergyOptions, facts: JobFacts, schedule: Schedule) -> None:
        self.facts = on_emulated_nodes(facts.ranks, options.emulated_gpus_per_node)
        self.settler: Settler = settler(options, self.facts)
        gpu = self.settler.workload.gpu
        lead_s = gpu.request_lead_s(gpus_per_node(options, self.facts)) if options.emulated_latency == "catalog" else 0.0
        self.said: list[str] = []
        self.planner = Planner(options, self.facts, gpu.sm_clocks_mhz, lead_s, gpu.name, self.said.append)
        self.coordinator = Coordinator(options, self.facts, self.planner, gpu.sm_clocks_mhz, self.said.append)
        self.programs = [program(schedule, stage, grad_sync=True, optimizer=True) for stage in self.facts.stage_of_rank]
        self.evaluation = [program(replace(schedule, forward_only=True), stage) for stage in self.facts.stage_of_rank]
        self.count = 0

    def iterate(self, iterations: int) -> list[IterationData]:
        """So many iterations."""
        done = []
        for _ in range(iterations):
            self.count += 1
            programs = [with_requests(p, d) for p, d in zip(self.programs, self.coordinator.directives, strict=True)]
            data = IterationData(self.settler.settle(programs, self.count), programs)
            self.coordinator.advance(data)
            done.append(data)
        return done

    def evaluate(self) -> IterationData:
        """One evaluation, at the GPUs' own clocks."""
        programs = []
        for steps, directive in zip(self.evaluation, self.coordinator.directives, strict=True):
            programs.append([*evaluation_requests(directive).get(ITERATION_BEGIN, ()), *steps])
        data = IterationData(self.settler.settle(programs, self.count, True), programs)
        self.coordinator.interrupted()
        return data

    def scale_energy(self, factor: float) -> None:
        """From now on all energies are so many times what they were: the model behind the profile has changed."""
        changed = Settler(replace(self.settler.workload, scale_energy=factor), self.settler.wiring)
        changed.gpus, changed._queue = self.settler.gpus, self.settler._queue
        self.settler = changed
