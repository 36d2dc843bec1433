# shellcheck shell=bash disable=SC2034
# What to train: a GPT of 7 billion parameters on 16 GPUs. Copy it, adapt it, and submit with JOB=copy.sh. Needs WORLD_SIZE and RUN.
# Data is made up here (--mock-data); see scripts/pretrain_gpt.py for other kinds, or put Megatron-LM's own pretrain_gpt.py in its place.

[ "$WORLD_SIZE" = 16 ] || die "$JOB is made for 16 GPUs, this job has $WORLD_SIZE: use --nodes=2 --gpus-per-node=8 or --nodes=4 --gpus-per-node=4"

# 2 tensor x 4 pipeline x 2 data ranks; 2 chunks of 4 layers on every stage; 64 / (1 x 2) = 32 microbatches.
layout=(
    --tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4
    --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
)
model=(
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --transformer-impl transformer_engine --bf16
)
training=(
    --train-iters 1000 --lr 3e-4 --min-lr 3e-5 --lr-warmup-iters 100 --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0
    --eval-iters 0 --log-interval 10 --tensorboard-dir "$RUN/tensorboard"
)
data=(--mock-data --tokenizer-type NullTokenizer --vocab-size 50304)
# SIGTERM (scancel --signal=TERM) writes a checkpoint and ends the run; --load finds nothing on the first start.
checkpoints=(--save "$RUN/checkpoints" --load "$RUN/checkpoints" --save-interval 200 --exit-signal-handler)

LAUNCH=()
TRAINING=(scripts/pretrain_gpt.py "${layout[@]}" "${model[@]}" "${training[@]}" "${data[@]}" "${checkpoints[@]}")
ENERGY=(--energy-policy "${ENERGY_POLICY:-measure}" --energy-dir "$RUN/energy")
