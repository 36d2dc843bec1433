"""Where clockd's files are, unless its command line says otherwise.

They are no entries of the rules file, since they must be known while the rules cannot be read: a restarted clockd must
find what its predecessor left to restore.
"""

import os
from collections.abc import Mapping
from pathlib import Path

SOCKET = Path("/run/megatron-energy/clockd.sock")
RULES = Path("/etc/megatron-energy/clockd.ini")
STATE_DIRECTORY = Path("/var/lib/megatron-energy")
AUDIT_LOG = Path("/var/log/megatron-energy/clockd.jsonl")
SLURM_JOBS = Path("/run/megatron-energy/jobs")

SOCKET_VARIABLE = "MEGATRON_ENERGY_CLOCKD"


def socket_path(environment: Mapping[str, str] | None = None) -> Path:
    """Where a client finds clockd: ``MEGATRON_ENERGY_CLOCKD``, else :data:`SOCKET`."""
    return Path((os.environ if environment is None else environment).get(SOCKET_VARIABLE) or SOCKET)
