import pytest

from megatron_energy.errors import UserError
from megatron_energy.pipeline.schedule import Schedule


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stages": 0, "microbatches": 4}, "stages must be at least 1"),
        ({"stages": 2, "microbatches": 0}, "microbatches must be at least 1"),
        ({"stages": 2, "microbatches": 4, "p2p": "magic"}, "unknown p2p mode"),
        ({"stages": 1, "microbatches": 4, "chunks": 2}, "at least 2 stages"),
        ({"stages": 2, "microbatches": 4, "chunks": 2, "p2p": "batched"}, "need overlapped p2p"),
        ({"stages": 4, "microbatches": 8, "chunks": 2, "group_size": 3}, "group size 3"),
        ({"stages": 4, "microbatches": 8, "chunks": 2, "group_size": 9}, "group size 9"),
        ({"stages": 4, "microbatches": 2, "chunks": 2}, "group size 4"),
        ({"stages": 4, "microbatches": 10, "chunks": 2}, "leave 2"),
        ({"stages": 4, "microbatches": 8, "chunks": 2, "p2p": "batched", "warmup_flush": True}, "warm-up flush"),
        ({"stages": 4, "microbatches": 8, "warmup_flush": True}, "warm-up flush"),
    ],
)
def test_sizes_that_megatron_refuses(arguments, words):
    with pytest.raises(UserError, match=words):
        Schedule(**arguments)


def test_the_last_group_may_be_smaller_than_the_others_but_not_than_the_pipeline():
    assert Schedule(4, 13, chunks=2, group_size=8).group == 8
    with pytest.raises(UserError, match="leave 3"):
        Schedule(4, 11, chunks=2, group_size=8)


def test_groups_are_as_long_as_the_pipeline_by_default():
    assert Schedule(4, 8, chunks=2).group == 4


def test_plain_schedules_ignore_groups():
    assert not Schedule(4, 2, group_size=1).interleaved
