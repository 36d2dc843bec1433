import itertools
import json
import subprocess
import sys

import pytest

from megatron_energy.errors import UserError
from megatron_energy.parallel.layout import Coordinates, Layout

LAYOUTS = [
    Layout(),
    Layout(tensor=2, data=2, pipeline=2),
    Layout(tensor=2, context=2, data=3, pipeline=4),
    Layout(tensor=2, context=2, data=3, pipeline=4, order="tp-cp-ep-pp-dp"),
    Layout(tensor=2, data=2, pipeline=3, order="pp-tp-dp"),
    Layout(tensor=2, context=3, data=2, pipeline=2, order="dp-cp-tp-pp"),
    Layout(tensor=2, expert=4, data=4, pipeline=2),
    Layout(tensor=2, context=2, expert=4, data=4, pipeline=2),
    Layout(tensor=4, expert=4, data=2, pipeline=2, expert_tensor=1),
    Layout(tensor=2, expert=2, data=4, pipeline=2, order="tp-ep-dp-pp"),
]


def test_groups_by_hand():
    layout = Layout(tensor=2, data=2, pipeline=2)
    assert layout.world_size == 8
    assert layout.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups("pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert layout.groups("dp-pp") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert layout.coordinates(5) == Coordinates(tp=1, pp=1)


def test_pipeline_before_data_by_hand():
    layout = Layout(tensor=2, data=2, pipeline=2, order="tp-cp-ep-pp-dp")
    assert layout.groups("pp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.coordinates(4) == Coordinates(dp=1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_rank_inverts_coordinates(layout):
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))
    assert len(set(places)) == layout.world_size


def combinations(axes):
    return ["-".join(chosen) for count in range(1, 5) for chosen in itertools.combinations(axes, count)]


def test_groups_are_those_of_megatron():
    questions, expected = [], []
    for layout in LAYOUTS:
        tensor = layout.tensor if layout.expert_tensor is None else layout.expert_tensor
        attention = {"tp": layout.tensor, "cp": layout.context, "ep": 1, "dp": layout.data, "pp": layout.pipeline}
        expert_data = layout.world_size // (tensor * layout.expert * layout.pipeline)
        experts = {"tp": tensor, "cp": 1, "ep": layout.expert, "dp": expert_data, "pp": layout.pipeline}
        for sizes, axes, expert_grid in ((attention, ("tp", "cp", "dp", "pp"), False), (experts, ("tp", "ep", "dp", "pp"), True)):
            questions.append({"sizes": sizes | {"order": layout.order}, "axes": combinations(axes)})
            expected.append([layout.groups(names, expert_grid=expert_grid) for names in combinations(axes)])
    command = [sys.executable, "-m", "tests.parallel.megatron_groups", json.dumps(questions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip("torch and megatron-core are not installed")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.expert > 1], ids=repr)
def test_expert_coordinates_count_the_members_of_a_group(layout):
    for group in layout.groups("ep"):
        assert [layout.coordinates(rank).ep for rank in group] == list(range(layout.expert))


def test_lockstep_groups_follow_replicas_then_stages():
    layout = Layout(tensor=2, data=2, pipeline=2)
    assert layout.lockstep_groups() == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert [layout.lockstep_index(rank) for rank in range(8)] == [0, 0, 2, 2, 1, 1, 3, 3]
    assert layout.lockstep_replicas == 2


def test_context_ranks_run_in_lockstep():
    assert Layout(tensor=2, context=2, pipeline=2).lockstep_groups() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_expert_parallelism_joins_replicas():
    layout = Layout(tensor=2, expert=2, data=4, pipeline=2)
    assert layout.lockstep_groups() == [[0, 1, 2, 3], [8, 9, 10, 11], [4, 5, 6, 7], [12, 13, 14, 15]]
    assert layout.lockstep_replicas == 2


def test_overlapping_expert_groups_join_all_replicas():
    """Experts over ranks 0 to 2 and 3 to 5, tensor groups of 2: rank 2 and 3 tie everything together."""
    layout = Layout(tensor=2, expert=3, data=3, expert_tensor=1)
    assert layout.groups("ep") == [[0, 1, 2], [3, 4, 5]]
    assert layout.lockstep_groups() == [[0, 1, 2, 3, 4, 5]]
    assert layout.lockstep_replicas == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tensor": 0}, "tensor parallel size must be at least 1"),
        ({"expert_tensor": 0}, "expert tensor"),
        ({"data": 2, "order": "tp-pp"}, "lacks dp"),
        ({"order": "tp-tp-dp-pp"}, "at most once"),
        ({"order": "tp-xp"}, "at most once"),
        ({"data": 3, "expert": 2}, "cannot be divided"),
        ({"tensor": 2, "data": 4, "expert": 2, "pipeline": 2, "order": "tp-cp-ep-pp-dp"}, "end it with pp"),
    ],
)
def test_what_megatron_refuses_is_refused(arguments, words):
    with pytest.raises(UserError, match=words):
        Layout(**arguments)


def test_ranks_outside_the_world():
    layout = Layout(data=2)
    with pytest.raises(IndexError):
        layout.coordinates(2)
    with pytest.raises(IndexError):
        layout.rank(Coordinates(dp=2))
    with pytest.raises(ValueError, match="axes"):
        layout.groups("xp")
