# shellcheck shell=bash disable=SC2034
# The rehearsal of scripts/slurm/gpt.sh without a GPU: the same layout with a tiny model on the CPU (gloo), and emulated GPUs that take
# the times of GPT-3 13B. For scripts/slurm/testbed.sh and for real clusters. Needs WORLD_SIZE, GPUS_PER_NODE, RUN and PYTHON.

[ "$WORLD_SIZE" = 16 ] || die "$JOB is made for 16 GPUs, this job has $WORLD_SIZE: use --nodes=2 --gpus-per-node=8 or --nodes=4 --gpus-per-node=4"
[ -f "$RUN/corpus.txt" ] || "$PYTHON" scripts/make_corpus.py --out "$RUN/corpus.txt"
export OMP_NUM_THREADS=1

layout=(
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1
    --micro-batch-size 1 --global-batch-size 16
)
model=(
    --num-layers 8 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
    --position-embedding-type learned_absolute --hidden-dropout 0 --attention-dropout 0
)
training=(
    --train-iters "${ITERATIONS:-40}" --lr 3e-3 --min-lr 3e-4 --lr-decay-style constant --weight-decay 0.0 --clip-grad 1.0
    --eval-iters 0 --eval-interval 1000 --log-interval 1 --num-workers 0 --tensorboard-dir "$RUN/tensorboard"
)
data=(--train-text "$RUN/corpus.txt" --make-vocab-size-divisible-by 8)
checkpoints=(--save "$RUN/checkpoints" --load "$RUN/checkpoints" --save-interval 10 --exit-signal-handler)
# Without GPUs: gloo instead of NCCL, plain PyTorch instead of fused kernels.
host=(
    --distributed-backend gloo --transformer-impl local --use-cpu-initialization --disable-gloo-process-groups
    --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
    --no-gradient-accumulation-fusion
)

LAUNCH=(--cpu)
TRAINING=(scripts/pretrain_gpt.py "${layout[@]}" "${model[@]}" "${training[@]}" "${data[@]}" "${checkpoints[@]}" "${host[@]}")
# ENERGY_DEVICE=nvml: the GPUs of a test bed in wall time, with clocks that are set through clockd, as those of real GPUs are.
ENERGY=(--energy-policy "${ENERGY_POLICY:-segments}" --energy-dir "$RUN/energy" --energy-device "${ENERGY_DEVICE:-emulated}")
if [ "${ENERGY_DEVICE:-emulated}" = emulated ]; then
    ENERGY+=(
        --energy-emulated-gpu a100-sxm4-80gb --energy-emulated-model gpt3-13b --energy-emulated-micro-batch 4
        --energy-emulated-gpus-per-node "$GPUS_PER_NODE"
    )
fi
