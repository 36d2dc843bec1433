import numpy as np
import pytest

from megatron_energy.errors import UserError
from megatron_energy.pipeline.build import build_graph
from megatron_energy.pipeline.schedule import Schedule
from megatron_energy.profiles.profile import Curve, Profile
from megatron_energy.profiles.tables import build_tables, has_instruction, transfer_time_s


def curve(*points):
    clocks, times, energies = zip(*points, strict=True)
    return Curve(np.array(clocks, dtype=np.int64), np.array(times, dtype=float), np.array(energies, dtype=float))


FORWARD = curve((1400, 1, 10), (1200, 2, 8), (1000, 4, 6))
BACKWARD = curve((1400, 2, 20), (1000, 8, 12))
SYNC = curve((0, 0.5, 5))


def graph(stages=1, chunks=1, **more):
    return build_graph(Schedule(stages, 2 * stages, chunks, p2p="ideal"), **more)


def profile(**curves):
    return Profile({(0, -1, name.replace("_", "-")): value for name, value in curves.items()})


def test_common_clocks_and_fixed_steps():
    made = graph(grad_sync=True)
    tables = build_tables(made, profile(forward=FORWARD, backward=BACKWARD, grad_sync=SYNC))
    assert tables.clock_mhz.tolist() == [1400, 1000]  # the backward was not measured at 1200
    for vertex, time_s, energy_j in zip(made.vertices, tables.time_s.tolist(), tables.energy_j.tolist(), strict=True):
        expected = {
            "forward": ([1, 4], [10, 6]),
            "backward": ([2, 8], [20, 12]),
            "grad-sync": ([0.5, 0.5], [5, 5]),
            "join": ([0, 0], [0, 0]),
        }
        assert (time_s, energy_j) == expected[vertex.kind]


def test_stage_values_are_split_over_chunks_and_chunk_values_are_not():
    made = graph(stages=2, chunks=2)
    curves = {(s, -1, name): c for s in (0, 1) for name, c in (("forward", FORWARD), ("backward", BACKWARD))}
    del curves[0, -1, "forward"]
    curves[0, 0, "forward"], curves[0, 1, "forward"] = FORWARD, curve((1400, 7, 70), (1000, 9, 60))
    tables = build_tables(made, Profile(curves))
    for vertex, time_s in zip(made.vertices, tables.time_s[:, 0].tolist(), strict=True):
        if vertex.kind == "forward" and made.units[vertex.unit].stage == 0:
            assert time_s == (1, 7)[vertex.chunk]
        elif vertex.kind == "forward":
            assert time_s == 0.5
        elif vertex.kind == "backward":
            assert time_s == 1.0


def test_replicas_share_the_curves_of_their_stage():
    tables = build_tables(graph(replicas=2), profile(forward=FORWARD, backward=BACKWARD))
    half = len(tables.time_s) // 2
    assert tables.time_s[:half].tolist() == tables.time_s[half:].tolist()


def test_missing_stage_and_instruction_are_named():
    with pytest.raises(UserError, match=r"no forward of stage 1, chunk 0 \(it has stages 0\)"):
        build_tables(graph(stages=2), profile(forward=FORWARD, backward=BACKWARD))
    with pytest.raises(UserError, match=r"no backward of stage 0, chunk 0 \(it has none at all\)"):
        build_tables(graph(), profile(forward=FORWARD))
    with pytest.raises(UserError, match="no optimizer of stage 0"):
        build_tables(graph(optimizer=True), profile(forward=FORWARD, backward=BACKWARD))


def test_no_common_clock():
    with pytest.raises(UserError, match="common clock"):
        build_tables(graph(), profile(forward=FORWARD, backward=curve((1300, 1, 1), (1100, 2, 1))))


def test_profile_of_one_clock():
    tables = build_tables(graph(), profile(forward=curve((1400, 1, 10)), backward=curve((1400, 2, 20))))
    assert tables.clock_mhz.tolist() == [1400]
    with pytest.raises(UserError, match="common clock"):
        build_tables(graph(), profile(forward=curve((1400, 1, 10)), backward=curve((1300, 2, 20))))


def test_transfer_time_is_the_slowest_stage():
    curves = {(0, -1, "p2p"): curve((1400, 0.002, 0), (1000, 0.009, 0)), (1, -1, "p2p"): curve((0, 0.003, 0))}
    assert transfer_time_s(Profile(curves)) == 0.003
    assert transfer_time_s(profile(forward=FORWARD)) == 0.0
    assert has_instruction(Profile(curves), "p2p")
    assert not has_instruction(Profile(curves), "optimizer")
