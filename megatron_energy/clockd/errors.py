"""What a client of clockd may have to deal with.

They are GpuErrors, so that a clock controller deals with a refusal of clockd as with one of the driver.
"""

from megatron_energy.gpus.errors import GpuError


class ClockdError(GpuError):
    """clockd did not do what was asked for; one line with the reason."""


class Unavailable(ClockdError):
    """There is no clockd here that talks to this user."""


class ConnectionLost(ClockdError):
    """The connection has ended, and its leases with it."""


class Refused(ClockdError):
    """clockd answered, and said no."""


class Denied(Refused):
    """The rules do not allow it."""


class Busy(Refused):
    """Somebody else has the GPU, or it could not be restored yet."""


class LeaseEnded(Refused):
    """The lease has ended (the reason is in the message), or is not this connection's."""


class RateLimited(Refused):
    """Too often; nothing was changed."""


class Failed(Refused):
    """The driver refused, or nothing could be saved; the clock is what it was."""


REFUSALS: dict[str, type[Refused]] = {
    "denied": Denied,
    "busy": Busy,
    "no-lease": LeaseEnded,
    "rate": RateLimited,
    "failed": Failed,
    "malformed": Refused,
}
"""Kind of an error in a reply -> its exception."""
