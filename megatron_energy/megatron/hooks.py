"""The hooks on megatron-core: module-level names only, rebound when their modules are imported.

A stock megatron-core is what they are made for; a patched one tells of its operations itself.

A schedule call begins an iteration (unless one is open), operations and transfers are recorded while it runs, and the outermost
optimizer step ends the iteration. A forward-only call is an iteration of its own.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megatron_energy.megatron import configuration, gradients, hook_points, operations, optimizer, p2p, patched_operations
from megatron_energy.megatron.hook_points import SCHEDULES, Needs
from megatron_energy.megatron.imports import apply_when_imported, replace
from megatron_energy.megatron.recorder import Recorder
from megatron_energy.megatron.runtime_protocol import Runtime
from megatron_energy.megatron.schedule_call import ScheduleCall, Tracker
from megatron_energy.megatron.training import call_at_log_interval
from megatron_energy.session.facts import RankFacts

SCHEDULE_TWICE = "two schedule calls without an optimizer step between them: the iteration ran again, or its optimizer is not Megatron's"
UNKNOWN_SCHEDULE = "Megatron's schedule {} is not one that is known here"


class Hooks:
    """One process's hooks: they feed ``recorder`` and report iterations to ``runtime``."""

    def __init__(self, recorder: Recorder, runtime: Runtime) -> None:
        self.recorder = recorder
        self.runtime = runtime
        self.tracker = Tracker()
        self._open = False  # a training schedule has run, its optimizer step has not
        self._facts: RankFacts | None = None
        self._lacking: str | None = None  # what this Megatron has not: then it is left alone

    def install(self) -> None:
        """Register every hook; each takes effect when Megatron imports that module, or now."""
        steps = optimizer.OutermostStep(self._begin_step, self._end_step)
        self._hook("megatron.core.parallel_state", hook_points.IN_PARALLEL_STATE)
        self._hook("megatron.core.model_parallel_config", hook_points.IN_CONFIGURATION)
        self._hook("megatron.core.pipeline_parallel.schedules", hook_points.IN_SCHEDULES, change=self._wrap_schedules)
        self._hook(
            "megatron.core.pipeline_parallel.p2p_communication", hook_points.BY_FUNCTION, hook_points.BY_METHOD,
            change=lambda module: p2p.wrap(module, self.recorder, self.tracker),
        )  # fmt: skip
        self._hook("megatron.core.optimizer.optimizer", hook_points.IN_OPTIMIZER)
        for name in optimizer.MODULES:
            apply_when_imported(name, functools.partial(optimizer.wrap, outermost=steps))
        self._hook("megatron.training.training", hook_points.IN_TRAINING, change=self._call_at_log_interval)

    def _hook(self, name: str, *ways: Needs, change: Callable[[Any], None] | None = None) -> None:
        """Once module ``name`` is imported: see that it has what we need, then change it."""

        def verify(module: Any) -> None:
            lacking = hook_points.missing(module, *ways)
            if lacking is not None:
                self._leave_alone(hook_points.told_missing(name, lacking))
            elif change is not None:
                change(module)

        apply_when_imported(name, verify)

    def _leave_alone(self, reason: str) -> None:
        """From here on, no iteration is recorded and no clock is requested."""
        if self._lacking is None:
            self._lacking = reason
            self.runtime.on_broken(reason)

    def _call_at_log_interval(self, loop: Any) -> None:
        call_at_log_interval(loop, self.runtime.on_log)

    def _wrap_schedules(self, schedules: Any) -> None:
        if patched_operations.is_patched(schedules):
            patched_operations.listen(schedules, self.recorder, self.tracker)
        else:
            operations.wrap(schedules, self.recorder, self.tracker)
        for name in SCHEDULES:
            self._wrap_schedule(schedules, name)
        if hasattr(schedules, "get_forward_backward_func"):
            self._watch_choice(schedules)

    def _watch_choice(self, schedules: Any) -> None:
        """A schedule that we do not know runs outside of our hooks: that shall be said."""
        choose = schedules.get_forward_backward_func

        @functools.wraps(choose)
        def chosen(*args: Any, **kwargs: Any) -> Any:
            schedule = choose(*args, **kwargs)
            if getattr(schedule, "__name__", SCHEDULES[0]) not in SCHEDULES:
                self._leave_alone(UNKNOWN_SCHEDULE.format(schedule.__name__))
            return schedule

        replace(schedules, get_forward_backward_func=chosen)

    def _wrap_schedule(self, schedules: Any, name: str) -> None:
        schedule = getattr(schedules, name)
        signature = inspect.signature(schedule)

        @functools.wraps(schedule)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._lacking is not None:
                return schedule(*args, **kwargs)
            call = signature.bind(*args, **kwargs).arguments
            models = call["model"] if isinstance(call["model"], list) else [call["model"]]
            if not configuration.layout_known():
                self.recorder.fail(configuration.OWN_GROUPS)
                return schedule(*args, **kwargs)
            with self._recording(schedules.get_model_config(models[0]), models, call):
                result = schedule(*args, **kwargs)
            if call.get("forward_only") and not self._open:
                self.runtime.on_iteration(self.recorder.take(), True)
            return result

        replace(schedules, **{name: run})

    @contextlib.contextmanager
    def _recording(self, config: Any, models: Sequence[Any], call: Mapping[str, Any]) -> Iterator[None]:
        """Around a schedule call: facts, the iteration's begin, and the functions that the configuration holds."""
        facts = configuration.facts(config, models, call)
        forward_only = bool(call.get("forward_only"))
        self._report_facts(facts, forward_only)
        self._begin_iteration(forward_only)
        refused = configuration.refusal(config, call)
        if refused is not None:
            self.recorder.fail(refused)
            yield
            return
        in_backward = gradients.reduces_in_backward(config, models, facts.stage == 0)
        self.tracker.recorded = ScheduleCall(models, call, in_backward)
        try:
            with gradients.recorded(config, models, self.recorder):
                yield
        finally:
            self.tracker.recorded = None

    def _report_facts(self, facts: RankFacts, forward_only: bool) -> None:
        """Tell the runtime what runs, if that is new. An evaluation may have other sizes, which do not count, before training too."""
        if self._facts == facts or forward_only:
            return
        self._facts = facts
        self.runtime.on_schedule(facts)

    def _begin_iteration(self, forward_only: bool) -> None:
        if self._open:
            self.recorder.take()
            self.recorder.fail(SCHEDULE_TWICE)
            return
        self._open = not forward_only
        self.recorder.begin_iteration(self.runtime.evaluation_requests if forward_only else self.runtime.requests)

    def _begin_step(self) -> None:
        if self._open:
            self.recorder.begin_optimizer()

    def _end_step(self) -> None:
        if self._open:
            self.recorder.end_optimizer()
            self._open = False
            self.runtime.on_iteration(self.recorder.take(), False)
