#!/bin/sh
# Slurm's Epilog (root, on every node of a job, however the job ended): its GPUs are no longer its user's, and get their clocks back. In
# slurm.conf: Epilog=.../epilog.sh. clockd restores by itself as soon as a training process ends; this is the second line, which also
# removes locks that were set around clockd. Exit status 1, where a GPU of the job cannot be restored, drains the node.
jobs=${MEGATRON_ENERGY_JOBS:-/run/megatron-energy/jobs}
command=${MEGATRON_ENERGY_COMMAND:-megatron-energy}

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
rm -f "$jobs/$SLURM_JOB_ID.json" # first, so that nobody leases them again
# shellcheck disable=SC2086  # several options
"$command" clockd restore --gpu "$SLURM_JOB_GPUS" ${CLOCKD_FILES:-}
status=$?
if [ "$status" -ne 0 ]; then
    echo "epilog: job $SLURM_JOB_ID: clocks of GPUs $SLURM_JOB_GPUS are not restored, exit status $status" >&2
    [ "$status" -ne 1 ] || exit 1
fi
exit 0
