"""The life of an iteration across schedule calls and optimizer steps, with stand-ins for Megatron's modules."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_energy.megatron import configuration
from megatron_energy.megatron.hooks import SCHEDULE_TWICE, SCHEDULES, Hooks
from megatron_energy.megatron.recorder import ITERATION_BEGIN, Recorder
from megatron_energy.records.steps import ClockRequest, Compute, GradSync, GradSyncStart, Optimizer
from megatron_energy.session.facts import RankFacts
from tests.megatron.collector import Collector

FACTS = RankFacts(
    rank=0, tensor=1, context=1, expert=1, data=1, pipeline=1, tensor_rank=0, context_rank=0, data_rank=0, stage=0, chunks=1,
    microbatches=2, group_size=None, overlap_p2p=False, warmup_flush=False, deallocate_outputs=True,
)  # fmt: skip
MODEL = SimpleNamespace()


class Megatron:
    """A schedules module, hooked, whose schedules run all forwards and then all backwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: str | None = None, known: bool = True) -> None:
        def facts(config: Any, models: Any, call: Any) -> RankFacts:
            return RankFacts(**{**{n: getattr(FACTS, n) for n in FACTS.__dataclass_fields__}, "microbatches": call["num_microbatches"]})

        monkeypatch.setattr(configuration, "facts", facts)
        monkeypatch.setattr(configuration, "refusal", lambda config, call: refused)
        monkeypatch.setattr(configuration, "layout_known", lambda: known)
        self.config = SimpleNamespace(finalize_model_grads_func=lambda models, tokens: None, grad_sync_func=None)
        self.module = SimpleNamespace(
            forward_step=lambda f, model, current_microbatch: ([object()], 0),
            backward_step=lambda input_tensor, output_tensor, output_tensor_grad, config: None,
            get_model_config=lambda model: self.config,
            **dict.fromkeys(SCHEDULES, self.schedule),
        )
        self.collector = Collector(
            requests={ITERATION_BEGIN: [ClockRequest(1410)]}, evaluation_requests={ITERATION_BEGIN: [ClockRequest(0)]}
        )
        self.recorder = Recorder(on_broken=self.collector.on_broken)
        self.hooks = Hooks(self.recorder, self.collector)
        self.hooks._wrap_schedules(self.module)

    def schedule(self, *, model: Any, num_microbatches: int, forward_only: bool = False, fail: bool = False) -> str:
        outputs = [self.module.forward_step(None, model, current_microbatch=m)[0] for m in range(num_microbatches)]
        if fail:
            raise RuntimeError("out of memory")
        if not forward_only:
            for output in outputs:
                self.module.backward_step(None, output, None, None)
            self.config.finalize_model_grads_func([model], None)
        return "losses"

    def run(self, **call: Any) -> Any:
        return self.module.forward_backward_no_pipelining(**{"model": MODEL, "num_microbatches": 1, **call})

    def step(self) -> None:
        self.hooks._begin_step()
        self.hooks._end_step()


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Megatron]:
    return lambda **how: Megatron(monkeypatch, **how)


ONE = [Compute("forward", 0, 0), Compute("backward", 0, 0), GradSync(), Optimizer()]


def test_a_schedule_call_and_a_step_make_an_iteration(build: Callable[..., Megatron]) -> None:
    megatron = build()
    finalize = megatron.config.finalize_model_grads_func
    assert megatron.run() == "losses"
    assert megatron.collector.programs == []
    megatron.step()
    assert megatron.collector.programs == [(False, [ClockRequest(1410), *ONE])]
    assert megatron.config.finalize_model_grads_func is finalize, "the configuration is as it was"


def test_facts_are_told_first_and_again_when_training_changes(build: Callable[..., Megatron]) -> None:
    megatron = build()
    for sizes in ({"num_microbatches": 4, "forward_only": True}, {"num_microbatches": 2}, {"num_microbatches": 2}, {"num_microbatches": 3}):
        megatron.run(**sizes)
        megatron.step()
    assert [facts.microbatches for facts in megatron.collector.facts] == [2, 3]
    megatron.run(num_microbatches=9, forward_only=True)
    assert len(megatron.collector.facts) == 2, "an evaluation's sizes do not count"


def test_an_evaluation_needs_no_step_and_has_requests_of_its_own(build: Callable[..., Megatron]) -> None:
    megatron = build()
    megatron.run(forward_only=True)
    assert megatron.collector.programs == [(True, [ClockRequest(0), Compute("forward", 0, 0)])]
    megatron.step()
    assert len(megatron.collector.programs) == 1, "a step without a schedule call ends nothing"


def test_a_second_call_before_the_step_is_told_and_does_not_pile_up(build: Callable[..., Megatron]) -> None:
    megatron = build()
    for _ in range(3):
        megatron.run()
    megatron.step()
    assert megatron.collector.broken == [SCHEDULE_TWICE] * 2
    assert [len(program) for _, program in megatron.collector.programs] == [len(ONE)]


def test_a_refused_schedule_runs_unrecorded_and_still_ends(build: Callable[..., Megatron]) -> None:
    megatron = build(refused="no")
    assert megatron.run() == "losses"
    megatron.step()
    assert megatron.collector.broken == ["no"]
    assert megatron.collector.programs == [(False, [ClockRequest(1410), Optimizer()])]


def test_unknown_process_groups_leave_everything_alone(build: Callable[..., Megatron]) -> None:
    megatron = build(known=False)
    assert megatron.run() == "losses"
    megatron.step()
    assert megatron.collector.broken == [configuration.OWN_GROUPS]
    assert megatron.collector.programs == [] and megatron.collector.facts == []


def test_a_failing_schedule_restores_the_configuration(build: Callable[..., Megatron]) -> None:
    megatron = build()
    finalize = megatron.config.finalize_model_grads_func
    with pytest.raises(RuntimeError, match="out of memory"):
        megatron.run(fail=True)
    assert megatron.config.finalize_model_grads_func is finalize
    assert megatron.hooks.tracker.recorded is None


@pytest.mark.parametrize("as_list", [True, False])
def test_grad_sync_functions_are_recorded_and_restored(build: Callable[..., Megatron], as_list: bool) -> None:
    megatron = build()
    called: list[str] = []

    def start(parameters: str) -> None:
        called.append(parameters)

    megatron.config.grad_sync_func = [start] if as_list else start

    def finalize(models: Any, tokens: Any) -> None:
        running = megatron.config.grad_sync_func
        (running[0] if as_list else running)("parameters")

    megatron.config.finalize_model_grads_func = finalize
    megatron.run()
    assert called == ["parameters"]
    assert megatron.recorder.program[-2:] == [GradSync(), GradSyncStart(0)]
    assert megatron.config.grad_sync_func == ([start] if as_list else start)
