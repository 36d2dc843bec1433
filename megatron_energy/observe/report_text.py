"""What a report says in sentences; a figure that the measurement does not carry is not among them."""

from megatron_energy.observe.figures import figure
from megatron_energy.observe.report import Report, SweepCost
from megatron_energy.observe.resolution import LEAST_BOUND_PERCENT

NOTHING = "Nothing to report: no iteration was measured. A run's first iteration is left out, as start-up is in it."


def sentences(report: Report) -> list[str]:
    """The outcome first, then what it rests on."""
    facts = report.facts
    if report.planned_iterations:
        lines = _outcome(report)
    elif facts.dry_run:
        lines = [_forecast(report)]
    else:
        lines = [_no_plan(report)]
    if facts.switches_mean is not None and facts.switches_max is not None:
        lines.append(f"Clock switches per GPU and iteration: {facts.switches_mean:.1f} mean, {facts.switches_max} max.")
    if report.total.late_raises:
        lines.append(f"{report.total.late_raises} raises of a clock came into force too late.")
    if report.total.dropped_lowers:
        near = "too near to the next raise, or to the request before"
        lines.append(f"{report.total.dropped_lowers} lowers of a clock were not asked for: {near}.")
    if report.sweep is not None:
        lines.append(_sweep(report, report.sweep))
    if report.planned_iterations and facts.off_reason is not None:
        lines.append(f"Maximum clocks at the end: {facts.off_reason}.")
    lines.append(_iterations(report))
    if facts.microbatches is not None:
        lines.append(f"The number of microbatches changed during the run: figures are of the last iterations, with {facts.microbatches}.")
    if report.windows.drift_percent is not None:
        drift = f"{figure(report.windows.drift_percent, '+.2f', '%')} in time{_emulated(report)}"
        count = report.windows.baseline_windows
        lines.append(f"The baseline, measured {count} times, drifted by {drift}: plans are compared with what lies between.")
    if not report.readable:
        step = f"{1000 * facts.counter_step_s:.0f} ms"
        lines.append(f"Too short for the energy counter, which steps every {step}: no energies are shown. {facts.too_short}")
    return lines


def _emulated(report: Report) -> str:
    return " (emulated)" if report.emulated else ""


def _outcome(report: Report) -> list[str]:
    saved, resolution = report.total.saved_percent, report.saved_resolution_percent
    if not report.baseline_iterations:
        return ["No baseline window ran, so nothing can be said about savings."]
    if not report.readable:
        return []
    if saved is None or resolution is None:
        return ["The energy of a GPU is not known, so nothing can be said about savings."]
    if not report.saving_is_resolved:
        return [
            f"Energy changed by less than the counter's steps leave open (±{resolution:.2g}%): "
            f"too few iterations{_emulated(report)} to tell a saving."
        ]
    change = f"Saved {figure(saved, '.2f', '%')}" if saved > 0 else f"Used {figure(-saved, '.2f', '%')} more"
    at = f"at {figure(report.slowdown_percent, '+.2f', '%')} time"
    return [f"{change} (±{resolution:.2g}, by the counter's steps) {at}{_emulated(report)}{_share(report, resolution)}"]


def _share(report: Report, resolution: float) -> str:
    bound, share = report.facts.bound_saved_percent, report.bound_share_percent
    if bound is None:
        return "."
    if bound < LEAST_BOUND_PERCENT:
        return f". The bound is {figure(bound, '.2f', '%')}: no plan can save at this deadline."
    if share is None:
        return f". Too few iterations to tell what share of the bound ({bound:.2f}%) that is."
    margin = 100 * resolution / bound
    beyond = " More than possible: the profile behind the bound does not describe these iterations." if share > 100 + margin else ""
    return f": {figure(share, '.0f', '%')} (±{margin:.0f}) of the bound ({bound:.2f}%).{beyond}"


def _forecast(report: Report) -> str:
    facts = report.facts
    made = f"policy {facts.plan_policy}" if facts.plan_policy is not None else "not in force"
    bound = f"; the bound is {facts.bound_saved_percent:.2f}%" if facts.bound_saved_percent is not None else ""
    return (
        f"Dry run, no clock was requested for a plan. The plan ({made}) expects to save {figure(facts.expected_saved_percent, '.2f', '%')} "
        f"at {figure(facts.expected_slowdown_percent, '+.2f', '%')} time{_emulated(report)}{bound}."
    )


def _no_plan(report: Report) -> str:
    reason = f": {report.facts.off_reason}" if report.facts.off_reason is not None else ""
    if not reason and report.facts.expected_energy_j is not None:
        reason = ", which was made in the last ones"
    return f"No iteration ran under a plan{reason}."


def _sweep(report: Report, cost: SweepCost) -> str:
    energy = _more(report, cost)
    swept = f"{cost.iterations} iteration" + "s" * (cost.iterations != 1)
    line = f"The sweep of {swept} cost {energy} and {figure(cost.time_s, '+.1f')} s against the baseline"
    if cost.paid_back_after is not None:
        line += f", paid back after {cost.paid_back_after} planned iterations"
    return line + f"{_emulated(report)}."


def _more(report: Report, cost: SweepCost) -> str:
    if cost.energy_j is None or not report.readable:
        return "an unknown energy"
    if cost.resolution_j is not None and abs(cost.energy_j) < cost.resolution_j:
        return f"less than the counter tells (±{cost.resolution_j:,.0f} J)"
    if cost.energy_j < 0:
        return f"no energy (it used {-cost.energy_j:,.0f} J less)"
    return f"{figure(cost.energy_j, '+,.0f')} J"


def _iterations(report: Report) -> str:
    """How many iterations stand behind the figures."""
    windows = report.windows
    named = ((report.baseline_name, windows.baseline), ("planned", windows.planned), ("dry run", windows.untouched))
    counts = [f"{window.iterations} {name}" for name, window in named if window is not None]
    line = f"Means of {' and '.join(counts)} iterations"
    if windows.left_out:
        line += f"; {windows.left_out} left out (the first, after evaluations and changes of clocks, maximum clocks)"
    return line + "."
