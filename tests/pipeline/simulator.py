"""Executes programs step by step with queues: an independent check of graphs and replay (it shares no code with the package)."""

from collections import defaultdict


class Deadlock(Exception):
    pass


CHANNELS = {  # transfer: what is sent, whether it is a send, distance of the other stage
    "send_next": ("activation", True, 1),
    "recv_prev": ("activation", False, -1),
    "send_prev": ("gradient", True, -1),
    "recv_next": ("gradient", False, 1),
}


def channel_of(unit, transfer, stages):
    """(what, from stage, to stage, replica) of a unit's transfer, and whether the unit is its sender."""
    what, is_send, distance = CHANNELS[transfer]
    stage, replica = unit
    other = (stage + distance) % stages
    return (what, *((stage, other) if is_send else (other, stage)), replica), is_send


def simulate(programs, durations, transfer_s=0.0):
    """Run all units at once.

    programs: {(stage, replica): steps}; durations: {(stage, replica): iterator of seconds, one per step that takes time}.
    Returns {(stage, replica): [(start, end) of each step that takes time]} and the time at which the last program ends.
    """
    stages = 1 + max(stage for stage, _ in programs)
    now = dict.fromkeys(programs, 0.0)
    position = dict.fromkeys(programs, 0)
    spans = {unit: [] for unit in programs}
    channels = defaultdict(list)  # (what, from stage, to stage, replica, is send): times of the posts, first in first out
    gathered = defaultdict(dict)  # barrier: {unit: time of arrival}

    def others(unit, kind):
        return [u for u in programs if kind == "Optimizer" or u[0] == unit[0]]

    def ready(unit, step):
        """When the unit may go on; None: not yet known."""
        kind = type(step).__name__
        if kind == "Compute":
            return now[unit]
        if kind in ("GradSync", "Optimizer"):
            arrivals = gathered[kind, unit[0] if kind == "GradSync" else None]
            arrivals[unit] = now[unit]
            return max(arrivals.values()) if len(arrivals) == len(others(unit, kind)) else None
        channel, _ = channel_of(unit, step.transfer, stages)
        posts = [channels[(*channel, side)] for side in (True, False)]
        if min(len(side) for side in posts) <= step.index:
            return None
        return max(now[unit], max(side[step.index] for side in posts) + transfer_s)

    def advance(unit, step):
        if type(step).__name__ == "Post":
            channel, is_send = channel_of(unit, step.transfer, stages)
            posts = channels[(*channel, is_send)]
            assert len(posts) == step.index
            posts.append(now[unit])
            return True
        time = ready(unit, step)
        if time is None:
            return False
        if type(step).__name__ != "Wait":
            spans[unit].append((time, time + next(durations[unit])))
            time = spans[unit][-1][1]
        now[unit] = time
        return True

    while any(position[unit] < len(programs[unit]) for unit in programs):
        moved = False
        for unit, steps in programs.items():
            while position[unit] < len(steps) and advance(unit, steps[position[unit]]):
                position[unit] += 1
                moved = True
        if not moved:
            raise Deadlock({unit: steps[position[unit]] for unit, steps in programs.items() if position[unit] < len(steps)})
    return spans, max(now.values())
