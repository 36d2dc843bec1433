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
. "$ROOT/scripts/lib/tiny_gpt.sh"

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

training=(--train-iters "$iterations" --train-text "$out/corpus.txt" --log-interval 1 --tensorboard-dir "$out/tensorboard")
energy=(--energy-policy segments --energy-device emulated "${emulated[@]}" --energy-baseline-iterations 5)

quietly "making a corpus" "$PYTHON" scripts/make_corpus.py --out "$out/corpus.txt"
say "training: 16 ranks, $iterations iterations"
"$PYTHON" -m megatron_energy.run --nproc 16 scripts/pretrain_gpt.py \
    "${layout[@]}" "${model[@]}" "${optimizer[@]}" "${host[@]}" "${training[@]}" "${energy[@]}"
say "look at it: $ENVIRONMENT/bin/tensorboard --logdir $out/tensorboard"
