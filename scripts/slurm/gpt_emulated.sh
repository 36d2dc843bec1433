# shellcheck shell=bash disable=SC2034
# The rehearsal of scripts/slurm/gpt.sh without a GPU: the same layout with a tiny model on the CPU (scripts/lib/tiny_gpt.sh), and emulated
# GPUs that take the times of GPT-3 13B. For scripts/slurm/testbed.sh and for real clusters. Needs WORLD_SIZE, GPUS_PER_NODE, RUN and PYTHON.

[ "$WORLD_SIZE" = 16 ] || die "$JOB is made for 16 GPUs, this job has $WORLD_SIZE: use --nodes=2 --gpus-per-node=8 or --nodes=4 --gpus-per-node=4"
[ -f "$RUN/corpus.txt" ] || "$PYTHON" scripts/make_corpus.py --out "$RUN/corpus.txt"
export OMP_NUM_THREADS=1

# shellcheck source=../lib/tiny_gpt.sh
. scripts/lib/tiny_gpt.sh
training=(--train-iters "${ITERATIONS:-40}" --train-text "$RUN/corpus.txt" --log-interval 1 --tensorboard-dir "$RUN/tensorboard")
checkpoints=(--save "$RUN/checkpoints" --load "$RUN/checkpoints" --save-interval 10 --exit-signal-handler)

LAUNCH=(--cpu)
TRAINING=(scripts/pretrain_gpt.py "${layout[@]}" "${model[@]}" "${optimizer[@]}" "${host[@]}" "${training[@]}" "${checkpoints[@]}")
# ENERGY_DEVICE=nvml: the GPUs of a test bed in wall time, with clocks that are set through clockd, as those of real GPUs are.
ENERGY=(--energy-policy "${ENERGY_POLICY:-segments}" --energy-dir "$RUN/energy" --energy-device "${ENERGY_DEVICE:-emulated}")
if [ "${ENERGY_DEVICE:-emulated}" = emulated ]; then
    ENERGY+=("${emulated[@]}" --energy-emulated-gpus-per-node "$GPUS_PER_NODE")
fi
