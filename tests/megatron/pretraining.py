"""Arguments of a small pretraining on a CPU, for scripts/pretrain_gpt.py."""

from pathlib import Path

from scripts.make_corpus import corpus
from tests.megatron.launching import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "pretrain_gpt.py"
_ARGUMENTS = """
--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 2
--train-iters 12 --lr 2e-2 --min-lr 2e-2 --lr-decay-style constant --clip-grad 1.0 --make-vocab-size-divisible-by 8
--distributed-backend gloo --transformer-impl local --use-cpu-initialization --position-embedding-type learned_absolute
--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --no-persist-layer-norm
--no-gradient-accumulation-fusion --hidden-dropout 0 --attention-dropout 0 --eval-iters 1 --eval-interval 12 --log-interval 1
--num-workers 0 --disable-gloo-process-groups --global-batch-size 16
"""
MODEL = _ARGUMENTS.split()
INTERLEAVED = ["--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "1"]


def write_text(folder: Path) -> Path:
    """A corpus that is large enough for :data:`MODEL`."""
    path = folder / "corpus.txt"
    path.write_bytes(corpus(60_000, seed=0))
    return path
