"""How often something may happen."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Allowance:
    """A token bucket: ``per_s`` events per second on average, ``burst`` at once."""

    per_s: float
    burst: float
    _tokens: float = field(init=False)
    _since_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tokens = self.burst

    def take(self, now_s: float) -> bool:
        """Whether one more may happen now; if so it is counted."""
        self._tokens = min(self.burst, self._tokens + self.per_s * max(0.0, now_s - self._since_s))
        self._since_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
