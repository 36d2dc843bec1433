"""Slurm's own ``--gpu-freq``: it sets clocks for a whole job, so nothing else may in the same job."""

from collections.abc import Mapping

from megatron_energy.errors import UserError

CLOCKS_UNTOUCHED = ("off", "measure", "maximum")
"""Policies that request no clock."""

# sbatch exports the first; slurmstepd sets the second in every task, for srun's own --gpu-freq too ("gpu:medium").
_VARIABLES = ("SLURM_GPU_FREQ", "SLURMD_TRES_FREQ")


def refuse_gpu_freq(policy: str | None, environment: Mapping[str, str]) -> None:
    """Raise UserError where this Slurm job asked for GPU clocks and ``policy`` would request others."""
    asked = next((environment[name] for name in _VARIABLES if environment.get(name)), None)
    if asked is not None and policy not in (None, *CLOCKS_UNTOUCHED):
        raise UserError(
            f"Slurm sets GPU clocks in this job (--gpu-freq, {asked}), and so would --energy-policy {policy}: "
            "submit without --gpu-freq, or use --energy-policy measure"
        )
