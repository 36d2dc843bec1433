"""A Megatron that the hooks do not know: what is there is looked for, and what is not leaves the run alone, with one line."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from megatron_energy.megatron import hook_points
from megatron_energy.megatron import hooks as hooks_module
from megatron_energy.megatron.hooks import Hooks
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.runtime import EnergyRuntime
from megatron_energy.session.options import EnergyOptions
from tests.megatron.collector import Collector

CORE = "megatron.core."
SCHEDULES = CORE + "pipeline_parallel.schedules"
P2P = CORE + "pipeline_parallel.p2p_communication"


def forward_step(forward_step_func: Any, data_iterator: Any, model: Any) -> Any: ...
def backward_step(input_tensor: Any, output_tensor: Any, output_tensor_grad: Any) -> Any: ...
def schedule(*, model: Any, num_microbatches: int, forward_only: bool = False) -> str:
    return "losses"


def communicate(*, tensor_send_next: Any, tensor_send_prev: Any, recv_prev: bool, recv_next: bool, wait_on_reqs: bool = True) -> Any: ...
def training_log(loss_dict: Any, iteration: int) -> Any: ...
def nothing() -> None: ...


Modules = dict[str, SimpleNamespace]


def newer_megatron() -> Modules:
    """Stand-ins for the modules of a version that nobody here has seen, with all that the hooks need."""
    optimizers = SimpleNamespace(__name__=CORE + "optimizer.optimizer", MegatronOptimizer=type("MegatronOptimizer", (), {}))
    return {
        CORE + "parallel_state": SimpleNamespace(**dict.fromkeys(hook_points.IN_PARALLEL_STATE, nothing)),
        CORE + "model_parallel_config": SimpleNamespace(
            ModelParallelConfig=SimpleNamespace(**{name.split(".")[1]: None for name in hook_points.IN_CONFIGURATION})
        ),
        SCHEDULES: SimpleNamespace(
            forward_step=forward_step,
            backward_step=backward_step,
            get_model_config=nothing,
            get_forward_backward_func=lambda: schedule,
            **dict.fromkeys(hook_points.SCHEDULES, schedule),
        ),
        P2P: SimpleNamespace(P2PCommunicator=SimpleNamespace(_communicate=communicate)),
        CORE + "optimizer.optimizer": optimizers,
        "megatron.training.training": SimpleNamespace(
            training_log=training_log, train=nothing, get_args=nothing, get_tensorboard_writer=nothing
        ),
    }


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install hooks on stand-ins, reporting to a runtime."""
    monkeypatch.setattr(hook_points, "loaded", {CORE + "package_info": SimpleNamespace(__version__="0.25.0")}.get)

    def install(modules: Modules, runtime: Any) -> None:
        def apply(name: str, change: Callable[[Any], None]) -> None:
            if name in modules:
                change(modules[name])

        monkeypatch.setattr(hooks_module, "apply_when_imported", apply)
        Hooks(Recorder(on_broken=runtime.on_broken), runtime).install()

    return install


def test_a_newer_version_with_all_hook_points_is_hooked(hook: Callable[..., None]) -> None:
    modules, collector = newer_megatron(), Collector()
    hook(modules, collector)
    assert collector.broken == []
    assert modules[SCHEDULES].backward_step.__wrapped__ is backward_step
    assert modules[P2P].P2PCommunicator._communicate.__wrapped__ is communicate


def test_fields_of_the_configuration_need_no_default(hook: Callable[..., None]) -> None:
    modules, collector = newer_megatron(), Collector()
    fields = dict.fromkeys((name.split(".")[1] for name in hook_points.IN_CONFIGURATION), None)
    modules[CORE + "model_parallel_config"].ModelParallelConfig = SimpleNamespace(__dataclass_fields__=fields)
    hook(modules, collector)
    assert collector.broken == []


def test_transfers_may_go_through_a_function(hook: Callable[..., None]) -> None:
    """As before 0.14."""
    modules, collector = newer_megatron(), Collector()
    modules[P2P] = SimpleNamespace(_communicate=communicate)
    hook(modules, collector)
    assert collector.broken == [] and modules[P2P]._communicate.__wrapped__ is communicate


def _without(module: str, name: str) -> Callable[[Modules], None]:
    return lambda modules: delattr(modules[module], name)


def _with(module: str, **changes: Any) -> Callable[[Modules], None]:
    return lambda modules: vars(modules[module]).update(changes)


LOSS = [
    (_without(SCHEDULES, "backward_step"), f"{SCHEDULES}.backward_step"),
    (_with(SCHEDULES, backward_step=lambda tensors: None), f"{SCHEDULES}.backward_step(output_tensor)"),
    (_with(SCHEDULES, forward_step="a step"), f"{SCHEDULES}.forward_step()"),
    (_without(SCHEDULES, hook_points.SCHEDULES[2]), f"{SCHEDULES}.{hook_points.SCHEDULES[2]}"),
    (_without(P2P, "P2PCommunicator"), f"{P2P}.P2PCommunicator._communicate"),
    (_with(P2P, P2PCommunicator=SimpleNamespace()), f"{P2P}.P2PCommunicator._communicate"),
    (_without(CORE + "parallel_state", "get_context_parallel_rank"), CORE + "parallel_state.get_context_parallel_rank"),
    (_with(CORE + "model_parallel_config", ModelParallelConfig=0), CORE + "model_parallel_config.ModelParallelConfig.finalize_model_"),
    (_without(CORE + "optimizer.optimizer", "MegatronOptimizer"), CORE + "optimizer.optimizer.MegatronOptimizer"),
    (_with("megatron.training.training", training_log=lambda losses: None), "megatron.training.training.training_log(iteration)"),
]


@pytest.mark.parametrize(("lose", "told"), LOSS, ids=[told for _, told in LOSS])
def test_a_missing_hook_point_leaves_clocks_alone_with_one_line(
    hook: Callable[..., None], lose: Callable[[Modules], None], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    modules, runtime = newer_megatron(), EnergyRuntime(EnergyOptions(policy="segments", device="emulated"))
    lose(modules)
    hook(modules, runtime)
    chosen = getattr(modules[SCHEDULES], hook_points.SCHEDULES[0])
    assert [chosen(model=object(), num_microbatches=2) for _ in range(3)] == ["losses"] * 3
    assert runtime.requests == {} and runtime._session is None
    runtime.script_ended()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"megatron-energy: clocks are left as they are, nothing is measured: megatron-core 0.25.0 has no {told}")


def test_a_schedule_that_we_do_not_know_is_told(hook: Callable[..., None]) -> None:
    modules, collector = newer_megatron(), Collector()

    def forward_backward_dual_pipe(*, model: Any, num_microbatches: int) -> None: ...

    modules[SCHEDULES].get_forward_backward_func = lambda: forward_backward_dual_pipe
    hook(modules, collector)
    for _ in range(2):
        assert modules[SCHEDULES].get_forward_backward_func() is forward_backward_dual_pipe
    assert collector.broken == ["Megatron's schedule forward_backward_dual_pipe is not one that is known here"]
