#!/bin/sh
# Slurm's TaskProlog (the job's user, before every task): `export NAME=VALUE` on stdout goes into the task's environment, `print TEXT` to
# its output. In slurm.conf: TaskProlog=.../task_prolog.sh.
socket=${MEGATRON_ENERGY_CLOCKD:-/run/megatron-energy/clockd.sock}
[ ! -S "$socket" ] || echo "export MEGATRON_ENERGY_CLOCKD=$socket"
if [ -n "${SLURMD_TRES_FREQ:-}" ] && [ "${SLURM_PROCID:-}" = 0 ]; then
    echo "print megatron-energy: --gpu-freq ($SLURMD_TRES_FREQ) sets GPU clocks in this job: use it without an energy plan only"
fi
exit 0
