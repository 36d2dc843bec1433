"""Several iterations taken together, with numbers that can be checked by hand."""

import math

from megatron_energy.observe.interval import combine
from megatron_energy.records.summary import GpuSummary, IterationSummary, Phase


def gpu(rank: int, energy_j: float, *, node: str = "n0", clock_mhz: float = 1000.0, waiting_s: float = 0.0) -> GpuSummary:
    return GpuSummary(rank, node, rank, f"GPU-{rank}", 0, 0, 0, energy_j, 0.0, clock_mhz, waiting_s, requests=rank)


def iteration(number: int, phase: Phase, time_s: float, *gpus: GpuSummary) -> IterationSummary:
    return IterationSummary(number, phase, time_s, list(gpus))


def test_energy_counts_everything_and_means_count_training_only() -> None:
    interval = combine(
        [
            iteration(1, "planned", 1.0, gpu(0, 100.0, clock_mhz=1200)),
            iteration(2, "planned", 3.0, gpu(0, 500.0, clock_mhz=1000, waiting_s=1.0)),
            iteration(2, "evaluation", 1.0, gpu(0, 60.0, clock_mhz=1400)),
        ]
    )
    (only,) = interval.gpus
    assert (interval.iterations, interval.evaluations, interval.time_s) == (2, 1, 2.0)
    assert (only.energy_j, only.iteration_energy_j, only.power_w) == (660.0, 300.0, 150.0)
    assert only.clock_mhz == (1200 * 1 + 1000 * 3) / 4
    assert only.waiting_percent == 25.0
    assert (interval.energy_j, interval.iteration_energy_j) == (660.0, 300.0)


def test_evaluation_alone_has_energy_and_no_mean() -> None:
    interval = combine([iteration(4, "evaluation", 1.0, gpu(0, 60.0))])
    assert interval.energy_j == 60.0
    assert math.isnan(interval.iteration_energy_j)
    assert math.isnan(interval.time_s)


def test_a_gpu_that_two_ranks_report_counts_once() -> None:
    shared = gpu(0, 100.0)
    other_rank = GpuSummary(1, "n0", 0, "GPU-0", 0, 1, 0, 100.0, 0.0, 1000.0, 0.0)
    interval = combine([iteration(1, "planned", 1.0, shared, other_rank, gpu(2, 50.0))])
    assert interval.energy_j == 150.0
    assert [g.gpu.rank for g in interval.gpus] == [0, 2]


def test_one_missing_counter_makes_the_total_missing_and_not_smaller() -> None:
    interval = combine([iteration(1, "planned", 1.0, gpu(0, 100.0), gpu(1, math.nan))])
    assert math.isnan(interval.energy_j)
    assert interval.gpus[0].energy_j == 100.0


def test_percentages_are_means_of_the_iterations_that_have_them() -> None:
    first, second, third = (iteration(i, "planned", 1.0, gpu(0, 80.0)) for i in (1, 2, 3))
    second.saved_percent, third.saved_percent = 20.0, 10.0
    second.slowdown_percent, third.slowdown_percent = 1.0, -0.5
    interval = combine([first, second, third])
    assert (interval.saved_percent, interval.slowdown_percent) == (15.0, 0.25)
    # 80 J after 20% were saved: the baseline had 100 J; after 10%: 88.9 J.
    assert math.isclose(interval.saved_j, 20.0 + 80.0 / 9)


def test_nothing_known_stays_unknown() -> None:
    interval = combine([iteration(1, "baseline", 1.0, gpu(0, 80.0))])
    assert (interval.saved_percent, interval.slowdown_percent, interval.expected_time_s, interval.saved_j) == (None, None, None, 0.0)


def test_gpus_come_in_the_order_of_nodes_and_indices() -> None:
    interval = combine([iteration(1, "planned", 1.0, gpu(1, 1.0, node="b"), gpu(0, 1.0, node="b"), gpu(3, 1.0, node="a"))])
    assert [(g.gpu.node, g.gpu.gpu) for g in interval.gpus] == [("a", 3), ("b", 0), ("b", 1)]
