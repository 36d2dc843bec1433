"""tests/megatron/tiny_gpt.py's trainings with events on the way: run it through the launcher.

``--cases FILE`` names a JSON object of trainings, by name: ``{"arguments": [...], "events": {"5": "evaluate"}}``. An event
happens in the step of that number (the first is 0). Every rank writes OUT/<name>-<rank>.json: losses and gradient norms as
float.hex(), and a hash of the final parameters.

Events::

    evaluate            two forward-only schedule calls before the step
    unknown-backward    backwards start from copies of the outputs that the forwards made
    twice               two schedule calls before the optimizer's step
    ramp-up             from now on twice as many microbatches
    die                 rank 0 raises
"""

import argparse
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func, schedules

from tests.megatron import tiny_gpt


@contextlib.contextmanager
def copied_outputs() -> Iterator[None]:
    """Backwards get copies: the same gradients, but no recorded forward made these tensors."""
    hooked = schedules.backward_step

    def backward(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        copy = [t.clone() for t in output_tensor] if isinstance(output_tensor, list) else output_tensor.clone()
        return hooked(input_tensor, copy, *args, **kwargs)

    schedules.backward_step = backward
    try:
        yield
    finally:
        schedules.backward_step = hooked


def train(args: argparse.Namespace, events: Mapping[str, str], model: list[Any], optimizer: Any) -> dict[str, list[str]]:
    data = [tiny_gpt.batches(7919 * parallel_state.get_data_parallel_rank()) for _ in model]
    call = {
        "forward_step_func": tiny_gpt.forward_step,
        "data_iterator": data,
        "model": model,
        "num_microbatches": args.microbatches,
        "seq_length": tiny_gpt.SEQUENCE,
        "micro_batch_size": 1,
    }
    schedule = get_forward_backward_func()
    losses, norms = [], []
    for step in range(args.steps):
        event = events.get(str(step))
        if event == "ramp-up":
            call["num_microbatches"] = 2 * args.microbatches
        if event == "die" and dist.get_rank() == 0:
            raise RuntimeError("this rank is asked to die")
        for _ in range(2 if event == "evaluate" else 0):
            schedule(**call, forward_only=True)
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        with copied_outputs() if event == "unknown-backward" else contextlib.nullcontext():
            outputs = [schedule(**call, forward_only=False) for _ in range(2 if event == "twice" else 1)][-1]
        _, norm, _ = optimizer.step()
        norms.append(float(norm).hex())
        if outputs:
            losses.append(float(sum(output["loss"] for output in outputs) / len(outputs)).hex())
    return {"losses": losses, "grad_norms": norms}


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    args = tiny_gpt.parse(case["arguments"])
    tiny_gpt.initialize(args)
    model, optimizer = tiny_gpt.build(args, tiny_gpt.configuration(args))
    result = {**train(args, case.get("events", {}), model, optimizer), "parameters": tiny_gpt.digest(model)}
    tiny_gpt.destroy()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    for name, case in json.loads(args.cases.read_text()).items():
        result = run(case)
        (args.out / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
