import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_energy.planning.rank_ranges import ranges_of, ranks_of


def test_neighbours_make_a_range():
    assert ranges_of([8, 0, 1, 2, 3, 10, 11]) == "0-3,8,10-11"
    assert ranges_of(range(10_000)) == "0-9999"


@settings(max_examples=40)
@given(st.sets(st.integers(0, 60), min_size=1))
def test_text_and_back(ranks):
    assert ranks_of(ranges_of(ranks), 61) == sorted(ranks)


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,,2", "1-2-3", "0x1", "1.0", " 1"])
def test_what_is_not_a_list_of_ranks(text):
    with pytest.raises(ValueError, match="not a list of ranks"):
        ranks_of(text, 10)


@pytest.mark.parametrize("text", ["10", "3-10", "5-4", "0-99999999999"])
def test_ranks_that_the_job_does_not_have(text):
    with pytest.raises(ValueError, match="do not exist in a job of 10"):
        ranks_of(text, 10)
