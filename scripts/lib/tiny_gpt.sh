# shellcheck shell=bash disable=SC2034
# A GPT that 16 ranks can train on the CPU, on emulated GPUs that take the times of GPT-3 13B: what scripts/quickstart.sh and
# scripts/slurm/gpt_emulated.sh share.

# 2 tensor x 4 pipeline x 2 data = 16 ranks, 2 chunks of 1 layer on every stage; 16 / (1 x 2) = 8 microbatches.
layout=(
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1
    --micro-batch-size 1 --global-batch-size 16
)
model=(
    --num-layers 8 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
    --position-embedding-type learned_absolute --hidden-dropout 0 --attention-dropout 0 --make-vocab-size-divisible-by 8
)
optimizer=(
    --lr 3e-3 --min-lr 3e-4 --lr-decay-style constant --weight-decay 0.0 --clip-grad 1.0 --eval-iters 0 --eval-interval 1000 --num-workers 0
)
# Without GPUs: gloo instead of NCCL, plain PyTorch instead of fused kernels.
host=(
    --distributed-backend gloo --transformer-impl local --use-cpu-initialization --disable-gloo-process-groups
    --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
    --no-gradient-accumulation-fusion
)
emulated=(--energy-emulated-gpu a100-sxm4-80gb --energy-emulated-model gpt3-13b --energy-emulated-micro-batch 4)
