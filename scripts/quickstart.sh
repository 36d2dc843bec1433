#!/usr/bin/env bash
# Trains a small GPT with stock Megatron-core on 16 ranks of this machine's CPU, with emulated GPUs, and saves (emulated) energy.
# Usage: scripts/quickstart.sh [--out DIR] [--iterations N] [--system]
#   --out DIR          where the run is written (default: runs/quickstart)
#   --iterations N     training iterations (default: 40)
#   --system           install missing system packages (apt-get)
# No GPU is needed. Environment variables: those of scripts/setup.sh.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/lib/messages.sh"
. "$ROOT/scripts/lib/environment.sh"
. "$ROOT/scripts/lib/megatron_core.sh"

out=$ROOT/runs/quickstart
iterations=40
system=false
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=${2:-} && shift ;;
        --iterations) iterations=${2:-} && shift ;;
        --system) system=true ;;
        -h | --help) show_help ;;
        *) die "no option $1: use --out DIR, --iterations N, --system" ;;
    esac
    shift || break
done
[ -n "$out" ] || die "--out: give a folder"
[[ $iterations =~ ^[1-9][0-9]*$ ]] || die "--iterations '$iterations': give a whole number, 1 or more"
if ! mkdir -p "$out" 2>/dev/null || [ ! -w "$out" ]; then
    die "cannot write to $out: give --out another folder"
fi
set_up_environment run "$system"
out=$(cd "$out" && pwd)
cd "$ROOT"

# The layout: 2 tensor x 4 pipeline x 2 data = 16 ranks, 2 chunks of 1 layer on every stage; 16 / (1 x 2) = 8 microbatches.
layout=(
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1
    --micro-batch-size 1 --global-batch-size 16
)
model=(
    --num-layers 8 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32
    --position-embedding-type learned_absolute --hidden-dropout 0 --attention-dropout 0
)
training=(
    --train-iters "$iterations" --lr 3e-3 --min-lr 3e-4 --lr-decay-style constant --weight-decay 0.0 --clip-grad 1.0
    --eval-iters 0 --eval-interval 1000 --log-interval 1 --num-workers 0 --tensorboard-dir "$out/tensorboard"
)
data=(--train-text "$out/corpus.txt" --make-vocab-size-divisible-by 8)
# Without GPUs: gloo instead of NCCL, plain PyTorch instead of fused kernels.
host=(
    --distributed-backend gloo --transformer-impl local --use-cpu-initialization --disable-gloo-process-groups
    --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
    --no-gradient-accumulation-fusion
)
# The GPUs, and how long operations take on them, are emulated: those of GPT-3 13B on A100.
energy=(
    --energy-policy segments --energy-device emulated --energy-emulated-gpu a100-sxm4-80gb --energy-emulated-model gpt3-13b
    --energy-emulated-micro-batch 4 --energy-baseline-iterations 5
)

quietly "making a corpus" "$PYTHON" scripts/make_corpus.py --out "$out/corpus.txt"
say "training: 16 ranks, $iterations iterations"
"$PYTHON" -m megatron_energy.run --nproc 16 scripts/pretrain_gpt.py \
    "${layout[@]}" "${model[@]}" "${training[@]}" "${data[@]}" "${host[@]}" "${energy[@]}"
say "look at it: $ENVIRONMENT/bin/tensorboard --logdir $out/tensorboard"
