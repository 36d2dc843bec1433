"""Random schedules that Megatron accepts."""

from hypothesis import strategies as st

from megatron_energy.pipeline.schedule import Schedule


@st.composite
def schedules(draw, modes=("ideal", "overlap", "overlap-wait", "batched")):
    stages = draw(st.integers(1, 5))
    chunks = draw(st.integers(1, 3)) if stages > 1 else 1
    p2p = draw(st.sampled_from(modes))
    if stages == 2 and chunks > 1 and p2p == "batched":
        p2p = "overlap"
    forward_only = draw(st.booleans())
    if chunks == 1:
        return Schedule(stages, draw(st.integers(1, 9)), p2p=p2p, forward_only=forward_only)
    group = draw(st.integers(stages, stages + 4))
    remainder = draw(st.sampled_from([0, *range(stages, group)]))
    microbatches = group * draw(st.integers(1, 3)) + remainder
    flush = p2p.startswith("overlap") and draw(st.booleans())
    return Schedule(stages, microbatches, chunks, group, p2p, flush, forward_only)
