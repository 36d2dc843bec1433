"""What can go wrong between this program and a GPU, in the few kinds that callers decide on.

NVML has some thirty error codes. A caller only ever chooses between: measure without controlling
(:class:`NoPermission`), do without the feature (:class:`NotSupported`), give this GPU up (:class:`GpuLost`), look elsewhere
(:class:`NotFound`), or report (:class:`GpuError`). A host without a driver is the user's to fix and therefore a
:class:`~megatron_energy.errors.UserError`.
"""

from megatron_energy.errors import UserError


class GpuError(Exception):
    """A request to a GPU failed; the message is one line with the reason."""


class NoPermission(GpuError):
    """The driver refuses this to the calling user. Reading goes on; controlling does not."""


class NotSupported(GpuError):
    """This GPU, this driver or this mode (MIG) does not have the feature."""


class GpuLost(GpuError):
    """The GPU has fallen off the bus or needs a reset; no further request to it will succeed."""


class NotFound(GpuError):
    """There is no GPU or instance of this name or number."""


class NoDriver(UserError, GpuError):
    """There is no NVIDIA driver that NVML could talk to, or it has gone away.

    Both kinds: at start it ends the program with advice; once a run is under way, what can go on without this GPU does.
    """
