#!/bin/sh
# Slurm's Prolog (root, on every node of a job): takes back what an earlier job may have left on its GPUs, then tells clockd whose they
# are. Calls no Slurm command: scontrol may hang while a prolog runs. In slurm.conf: Prolog=.../prolog.sh and PrologFlags=Alloc.
# Exit status 1, where a GPU of the job cannot be restored, drains the node and requeues the job. Anything else that goes wrong (not
# installed, no driver) is only reported: a mistake in one file must not drain a cluster.
jobs=${MEGATRON_ENERGY_JOBS:-/run/megatron-energy/jobs}
command=${MEGATRON_ENERGY_COMMAND:-megatron-energy}

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
# shellcheck disable=SC2086  # several options
"$command" clockd restore --gpu "$SLURM_JOB_GPUS" ${CLOCKD_FILES:-}
status=$?
if [ "$status" -ne 0 ]; then
    echo "prolog: job $SLURM_JOB_ID: clocks of GPUs $SLURM_JOB_GPUS are not restored, exit status $status" >&2
    [ "$status" -ne 1 ] || exit 1
fi
umask 022
mkdir -p "$jobs"
printf '{"uid": %d, "gpus": "%s"}\n' "$SLURM_JOB_UID" "$SLURM_JOB_GPUS" >"$jobs/$SLURM_JOB_ID.json"
exit 0
