"""A power limit that somebody changes during the run is told once."""

from megatron_energy.gpus.errors import GpuError
from megatron_energy.session.limit_watch import LimitWatch


def test_a_change_is_told_once() -> None:
    limits_w = iter([400.0, 400.4, 300.0, 300.0, 400.0])
    watch = LimitWatch(lambda: next(limits_w))
    assert [watch.changed() for _ in range(4)] == [
        "",
        "power limit 400 W before, now 300 W",
        "",
        "power limit 300 W before, now 400 W",
    ]


def test_a_gpu_that_does_not_answer_tells_nothing() -> None:
    answers: list[float | None] = [400.0, None, 300.0]

    def read() -> float:
        limit_w = answers.pop(0)
        if limit_w is None:
            raise GpuError("lost")
        return limit_w

    watch = LimitWatch(read)
    assert [watch.changed(), watch.changed()] == ["", "power limit 400 W before, now 300 W"]
