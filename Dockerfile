# megatron-energy with Megatron-core on NVIDIA's PyTorch image: its Python, torch, Transformer Engine and apex are kept as they are.
#
#   docker build --tag megatron-energy .
#
# For Slurm with pyxis: enroot import dockerd://megatron-energy (docs/slurm.md). Clocks are set by the node's own clockd, outside of
# the container (docs/clockd.md), so the image needs no privileges.
ARG PYTORCH_TAG=25.09-py3
FROM nvcr.io/nvidia/pytorch:${PYTORCH_TAG}

ARG MEGATRON_CORE=0.19.2
WORKDIR /opt/megatron-energy
COPY . .

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# The image pins versions of many packages (PIP_CONSTRAINT), Megatron-core's and ours are not among them. Of what is installed already pip
# keeps what will do; that it kept torch is checked. Megatron-core's own requirements are in the image.
RUN before=$(python -c 'import torch; print(torch.__version__)') \
    && export PIP_CONSTRAINT="" PIP_NO_CACHE_DIR=1 \
    && pip install --no-deps "megatron-core==${MEGATRON_CORE}" \
    && pip install . packaging psutil pyyaml tensorboard \
    && after=$(python -c 'import torch; print(torch.__version__)') \
    && test "$before" = "$after" \
    && python -c 'import apex, megatron.training.arguments, megatron_energy' \
    && megatron-energy --version

WORKDIR /workspace
