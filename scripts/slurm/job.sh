# shellcheck shell=bash
# What the submission scripts share; they source it in the folder that the job was submitted from, on the job's first node.
#
#   JOB        file that says what to train (default: scripts/slurm/gpt.sh; scripts/slurm/gpt_emulated.sh needs no GPU)
#   RUN        folder of the run, on a file system that all nodes see (default: runs/slurm-JOBID; a requeued job keeps its number)
#   PYTHON     interpreter, the same path on every node (default: python)
#   ENERGY_POLICY    see docs/run.md (default: that of JOB)
#
# Sets LAUNCH (options of the launcher), TRAINING (a Megatron script and its arguments) and ENERGY (our flags), and exports what
# torch.distributed asks for.

# die TEXT...: one line that says what is wrong and what to do.
die() {
    printf '%s\n' "$*" >&2
    exit 2
}

[ -n "${SLURM_JOB_ID:-}" ] || die "no Slurm job here: submit this script with sbatch"
JOB=${JOB:-scripts/slurm/gpt.sh}
RUN=${RUN:-runs/slurm-$SLURM_JOB_ID}
PYTHON=${PYTHON:-python}

[ -f "$JOB" ] || die "no $JOB in $PWD: submit from the top of the checkout, or set JOB to the path of a copy"
if ! mkdir -p "$RUN" 2>/dev/null || [ ! -w "$RUN" ]; then
    die "cannot write to $RUN: set RUN to a folder that all nodes can write to"
fi
# In a container the interpreter is the image's.
[ -n "${IMAGE:-}" ] || command -v "$PYTHON" >/dev/null || die "no $PYTHON on this node: submit from an active environment that all nodes see, or set PYTHON"

# The address by which Slurm itself reaches the first node: node names need not be known to DNS.
MASTER_ADDR=$(sinfo --noheader --nodes "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)" --format %o | sed -n 1p)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
NNODES=$SLURM_JOB_NUM_NODES
GPUS_PER_NODE=${SLURM_GPUS_ON_NODE:-}
[ -n "$GPUS_PER_NODE" ] || die "no GPUs in this job: submit with --gpus-per-node"
WORLD_SIZE=$((NNODES * GPUS_PER_NODE))
export MASTER_ADDR MASTER_PORT

# shellcheck source=gpt.sh
. "$JOB"

# --gpu-freq sets clocks as well: whoever is later wins, and nobody knows.
case " ${ENERGY[*]} " in
    *" --energy-policy measure "* | *" --energy-policy maximum "*) ;;
    *) [ -z "${SLURM_GPU_FREQ:-}" ] || die "--gpu-freq=$SLURM_GPU_FREQ sets GPU clocks, and so would the plan: submit without it, or with ENERGY_POLICY=measure" ;;
esac

# A run that goes on after its checkpoint has its plan, or at least its profile, and need not learn again. A plan is for one number of
# microbatches: with a batch size ramp-up the profile makes those that come.
case " ${TRAINING[*]} " in
    *" --rampup-batch-size "* | *" --step-batch-size-schedule "*) grows=true ;;
    *) grows=false ;;
esac
if [ -f "$RUN/energy/plan.json" ] && ! { "$grows" && [ -f "$RUN/energy/profile.csv" ]; }; then
    ENERGY+=(--energy-plan "$RUN/energy/plan.json")
elif [ -f "$RUN/energy/profile.csv" ]; then
    ENERGY+=(--energy-profile "$RUN/energy/profile.csv")
fi

echo "job $SLURM_JOB_ID (start $((${SLURM_RESTART_COUNT:-0} + 1))): $WORLD_SIZE ranks on $SLURM_JOB_NODELIST, $RUN"
