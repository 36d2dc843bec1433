"""Costs from a model's shape, against formulas worked out here; costs from a measured profile."""

import numpy as np
import pytest

from megatron_energy.emulation.catalog import load
from megatron_energy.emulation.costs import ModelCosts, Sizes
from megatron_energy.emulation.models import LlmModel, named
from megatron_energy.emulation.physics import power_w
from megatron_energy.emulation.workload import Workload
from megatron_energy.errors import UserError
from megatron_energy.profiles.profile import Curve, Profile

A100 = load("a100-sxm4-80gb")
H100 = load("h100-sxm5-80gb")
NO_LIMIT_W = 1e6
GPT = named("gpt3-1.3b")


def costs(sizes: Sizes, model: LlmModel = GPT, gpu=A100, micro_batch: int = 4, **more) -> ModelCosts:
    return ModelCosts(gpu, model, sizes, micro_batch, model.seq, **more)


@pytest.mark.parametrize("gpu", [A100, H100], ids=lambda gpu: gpu.key)
def test_matrix_products_follow_the_published_formula(gpu):
    # Without tensor parallelism only matrix products scale with the clock. Narayanan et al. (arXiv 2104.04473), equation 3 without
    # recomputation, causal attention: 72 B s l h^2 (1 + s / 12h + V / 12lh) FLOP for a forward and a backward.
    source = costs(Sizes(stages=2, chunks=2), gpu=gpu)
    seconds = sum(load_.scaling_s for s in (0, 1) for c in (0, 1) for load_ in (source.forward(s, c), source.backward(s, c)))
    layers, hidden, seq, vocab, batch = 24, 2048, 2048, 51200, 4
    flop = 72 * batch * seq * layers * hidden**2 * (1 + seq / (12 * hidden) + vocab / (12 * layers * hidden))
    peak = gpu.peak_bf16_flop_s * gpu.sm_clock_max_mhz / gpu.peak_clock_mhz
    assert seconds == pytest.approx(flop / (peak * gpu.gemm_efficiency))


def test_layers_are_divided_over_stages_and_chunks():
    source = costs(Sizes(stages=3, chunks=2), LlmModel("ten", 10, 512, 8, 2048, 1000, 128))
    # In the order of the model: stages of chunk 0, then of chunk 1; ten layers over six parts.
    assert [source.layers(stage, chunk) for chunk in (0, 1) for stage in (0, 1, 2)] == [2, 2, 2, 2, 1, 1]
    with pytest.raises(UserError, match="model 'ten' has 10 layers, fewer than 6 stages x 2 chunks"):
        costs(Sizes(stages=6, chunks=2), LlmModel("ten", 10, 512, 8, 2048, 1000, 128))


def test_stages_are_uneven_as_in_reality():
    source = costs(Sizes(stages=4, chunks=2))
    plain, last = source.forward(1, 0), source.forward(3, 1)
    head_flop = 2 * 51200 * 2048 * 4 * 2048
    assert last.scaling_s - plain.scaling_s == pytest.approx(head_flop / (A100.peak_bf16_flop_s * A100.gemm_efficiency))
    # Only the last chunk of the last stage has the head; the first has a little memory traffic more.
    assert source.forward(3, 0) == plain
    first = source.forward(0, 0)
    assert first.scaling_s == pytest.approx(plain.scaling_s)
    assert first.fixed_s > plain.fixed_s


def test_backward_is_twice_the_forward_and_recomputation_adds_one():
    plain, recomputed = costs(Sizes(stages=4)), costs(Sizes(stages=4, recompute=True))
    assert plain.backward(1, 0).scaling_s == pytest.approx(2 * plain.forward(1, 0).scaling_s)
    assert recomputed.backward(1, 0).scaling_s == pytest.approx(3 * plain.forward(1, 0).scaling_s)
    assert recomputed.forward(1, 0) == plain.forward(1, 0)


def test_tensor_parallelism_splits_work_and_adds_traffic():
    alone, split = costs(Sizes(stages=4)).forward(1, 0), costs(Sizes(stages=4, tensor=4)).forward(1, 0)
    # Six layers, two all-reduces each, of 4 x 2048 tokens x 2048 x 2 bytes: 2 x 3/4 of it through every GPU's NVLink.
    volume = 4 * 2048 * 2048 * 2
    link_s = 6 * 2 * volume * 2 * 3 / 4 / (A100.link_bytes_s * A100.link_efficiency)
    assert split.scaling_s == pytest.approx(alone.scaling_s / 4 + A100.link_clock_share * link_s)
    assert split.fixed_s == pytest.approx(alone.fixed_s / 4 + (1 - A100.link_clock_share) * link_s)


def test_without_sequence_parallelism_some_element_wise_work_is_not_split():
    split = costs(Sizes(stages=4, tensor=4)).forward(1, 0)
    serial = costs(Sizes(stages=4, tensor=4, sequence_parallel=False)).forward(1, 0)
    # Korthikanti et al. (arXiv 2205.05198): 10 of 34 bytes per token and hidden unit; 10 + 24/4 instead of 34/4.
    tokens = 4 * 2048
    extra = 6 * tokens * 2048 * 2 * (10 + 24 / 4 - 34 / 4)
    assert serial.fixed_s - split.fixed_s == pytest.approx(extra / (A100.memory_bytes_s * A100.memory_efficiency))


def test_context_parallelism_splits_the_tokens():
    # Half the tokens on each GPU: half of the matrix products. (Attention scores stay complete: each token sees all others.)
    alone, split = costs(Sizes(stages=4)), costs(Sizes(stages=4, context=2))
    assert split.forward(1, 0).scaling_s == pytest.approx(alone.forward(1, 0).scaling_s / 2)


def test_fp32_doubles_matrix_products():
    assert costs(Sizes(stages=4), dtype="fp32").forward(1, 0).scaling_s == pytest.approx(2 * costs(Sizes(stages=4)).forward(1, 0).scaling_s)


def test_grad_sync_moves_fp32_gradients_over_the_right_network():
    stage = 6 * GPT.layer_parameters  # 24 layers over 4 stages, no embedding in the middle
    inside = costs(Sizes(stages=4, data=4)).grad_sync(1)
    seconds = stage * 4 * 3 / 4 / (A100.link_bytes_s * A100.link_efficiency)
    assert inside.scaling_s + inside.fixed_s == pytest.approx(seconds)
    across = costs(Sizes(stages=4, data=16)).grad_sync(1)
    assert across.fixed_s == pytest.approx(stage * 4 * 15 / 16 / (A100.network_bytes_s * A100.link_efficiency))
    assert across.scaling_s == 0
    # All-reduce moves twice as much as reduce-scatter; one replica has nothing to reduce.
    whole = costs(Sizes(stages=4, data=16, distributed_optimizer=False)).grad_sync(1)
    assert whole.fixed_s == pytest.approx(2 * across.fixed_s)
    assert costs(Sizes(stages=4, data=4, context=4)).grad_sync(1) == across  # context-parallel ranks hold the same weights
    alone = costs(Sizes(stages=4)).grad_sync(1)
    assert (alone.scaling_s, alone.fixed_s) == (0, 0)


def test_optimizer_streams_its_state_and_gathers_weights():
    stage = 6 * GPT.layer_parameters
    stream_s = 30 * stage / (A100.memory_bytes_s * A100.memory_efficiency)
    alone = costs(Sizes(stages=4)).optimizer(1)
    assert (alone.scaling_s, alone.fixed_s) == (0, pytest.approx(stream_s))
    assert alone.memory == pytest.approx(1)
    spread = costs(Sizes(stages=4, data=16)).optimizer(1)
    gather_s = stage * 2 * 15 / 16 / (A100.network_bytes_s * A100.link_efficiency)
    assert spread.fixed_s == pytest.approx(stream_s / 16 + gather_s)
    # The first stage holds the embedding, the last the head.
    first = costs(Sizes(stages=4)).optimizer(0)
    assert first.fixed_s / alone.fixed_s == pytest.approx(1 + GPT.embedding_parameters / stage)
    assert costs(Sizes(stages=4)).optimizer(3).fixed_s == pytest.approx(first.fixed_s)


def test_transfers_use_nvlink_only_within_a_node():
    volume = 4 * 2048 * 2048 * 2
    inside = costs(Sizes(stages=4)).transfer_s()
    assert inside == pytest.approx(A100.transfer_latency_s + volume / (A100.link_bytes_s * A100.link_efficiency))
    across = costs(Sizes(stages=4, data=4)).transfer_s()
    assert across == pytest.approx(A100.transfer_latency_s + volume / (A100.network_bytes_s * A100.link_efficiency))
    # Tensor-parallel ranks send their share each, if activations are split.
    split = costs(Sizes(stages=4, tensor=2, data=4)).transfer_s() - A100.transfer_latency_s
    assert split == pytest.approx((across - A100.transfer_latency_s) / 2)
    whole = costs(Sizes(stages=4, tensor=2, data=4, sequence_parallel=False)).transfer_s()
    assert whole == pytest.approx(across)


def test_sizes_below_one_are_refused():
    with pytest.raises(UserError, match="emulated layout: tensor must be at least 1, not 0"):
        Sizes(stages=4, tensor=0)


def test_a_workload_from_a_model_throttles_at_the_limit():
    job = Workload.from_model(A100, "gpt3-13b", Sizes(stages=4, chunks=2, tensor=2, data=2), micro_batch=4)
    free, capped = (job.point(1, 0, "forward", 1410, limit) for limit in (NO_LIMIT_W, A100.power_limit_default_w))
    assert (free.clock_mhz, free.throttled) == (1410, False)
    assert free.power_w > A100.power_limit_default_w >= capped.power_w
    assert capped.throttled
    assert 1200 < capped.clock_mhz < 1410
    assert job.point(1, 0, "forward", capped.clock_mhz, A100.power_limit_default_w) == capped._replace(throttled=False)
    # Waiting does not depend on the clock.
    assert {job.blocking_power_w(0, clock) for clock in (210, 1410)} == {A100.blocking_power_w}


def test_work_shows_in_power_between_idle_and_full_load():
    job = Workload.from_model(A100, "gpt3-175b", Sizes(stages=8, tensor=8), micro_batch=4)
    for kind in ("forward", "backward", "optimizer"):
        point = job.point(0, 0, kind, 1080, NO_LIMIT_W)
        assert A100.blocking_power_w < point.power_w < power_w(A100, 1080, 1.0, 1.0)
        slower = job.point(0, 0, kind, 855, NO_LIMIT_W)
        assert slower.time_s >= point.time_s
        assert slower.power_w < point.power_w


def test_a_single_stage_has_no_transfers_and_names_are_not_needed():
    job = Workload.from_model(A100, LlmModel("mine", 4, 256, 4, 1024, 1000, 128), Sizes(stages=1), seq=64)
    assert job.transfer_s == 0
    longer = Workload.from_model(A100, LlmModel("mine", 4, 256, 4, 1024, 1000, 128), Sizes(stages=1))
    assert job.point(0, 0, "forward", 1410, NO_LIMIT_W).time_s < longer.point(0, 0, "forward", 1410, NO_LIMIT_W).time_s


def curve(*points: tuple[int, float, float]) -> Curve:
    """A curve of (MHz, s, J), highest clock first."""
    clocks, seconds, joules = zip(*points, strict=True)
    return Curve(np.array(clocks), np.array(seconds), np.array(joules))


FORWARD = curve((1410, 1.0, 400.0), (1110, 1.2, 330.0), (810, 1.6, 340.0))
BACKWARD = curve((1410, 2.0, 800.0), (810, 3.0, 700.0))


def profile(**more: Curve) -> Profile:
    """Two like stages with the given further instructions on both."""
    curves = {(stage, -1, kind): c for stage in (0, 1) for kind, c in (("forward", FORWARD), ("backward", BACKWARD))}
    curves |= {(stage, -1, name.replace("_", "-")): c for stage in (0, 1) for name, c in more.items()}
    return Profile(curves)


def test_measured_curves_are_interpolated_between_clocks():
    job = Workload.from_profile(profile(), A100)
    at_measured = job.point(0, 0, "forward", 1110, 400.0)
    assert (at_measured.time_s, at_measured.time_s * at_measured.power_w) == (pytest.approx(1.2), pytest.approx(330))
    between = job.point(1, 0, "forward", 1260, 400.0)
    assert (between.time_s, between.time_s * between.power_w) == (pytest.approx(1.1), pytest.approx(365))
    # Below what was measured: 1/f at the same power; no cap is applied, as the measurement had one.
    below = job.point(0, 0, "forward", 405, 10.0)
    assert (below.time_s, below.power_w) == (pytest.approx(3.2), pytest.approx(340 / 1.6))
    assert (below.clock_mhz, below.throttled) == (405, False)


def test_whole_stages_are_split_evenly_over_chunks_unless_chunks_were_measured():
    job = Workload.from_profile(profile(), A100, stages=2, chunks=2)
    point = job.point(0, 1, "backward", 1410, 400.0)
    assert (point.time_s, point.power_w) == (pytest.approx(1.0), pytest.approx(400))
    measured = profile()
    measured.curves[0, 1, "backward"] = BACKWARD
    assert Workload.from_profile(measured, A100, chunks=2).point(0, 1, "backward", 1410, 400.0).time_s == pytest.approx(2)


def test_other_instructions_of_a_profile():
    extra = curve((1410, 0.5, 50.0))
    job = Workload.from_profile(
        profile(grad_sync=extra, optimizer=extra, p2p=curve((1410, 0.01, 1.0)), data_loading=extra, logging=extra), A100
    )
    for kind, seconds in (("grad-sync", 0.5), ("optimizer", 0.5), ("other", 1.0)):
        point = job.point(0, -1, kind, 1410, 400.0)
        assert (point.time_s, point.power_w) == (pytest.approx(seconds), pytest.approx(100)), kind
    assert job.transfer_s == 0.01
    # What was not measured takes no time.
    assert Workload.from_profile(profile(), A100).point(0, -1, "grad-sync", 1410, 400.0).time_s == 0


def test_blocking_power_of_a_profile():
    assert Workload.from_profile(profile(), A100).blocking_power_w(0, 1410) == A100.blocking_power_w
    constant = Profile(profile().curves, blocking_power_w=77.0)
    assert Workload.from_profile(constant, A100).blocking_power_w(1, 855) == 77
    by_clock = Workload.from_profile(profile(blocking=curve((1410, 1.0, 90.0), (810, 1.0, 60.0))), A100)
    assert [by_clock.blocking_power_w(0, clock) for clock in (1410, 1110, 810)] == pytest.approx([90, 75, 60])


def test_profiles_that_do_not_fit_the_run_are_refused():
    with pytest.raises(UserError, match="the profile has 2 stages, the run 4"):
        Workload.from_profile(profile(), A100, stages=4)
    with pytest.raises(UserError, match="the profile has 0 stages"):
        Workload.from_profile(Profile({}), A100)
    incomplete = profile()
    del incomplete.curves[1, -1, "backward"]
    with pytest.raises(UserError, match="no backward of stage 1 chunk 0"):
        Workload.from_profile(incomplete, A100)
