"""The same scalars in Weights & Biases, where the training script logs there."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatron_energy.observe.tags import Layout
from megatron_energy.observe.tensorboard import Writer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class WithWandb:
    """A writer whose scalars go to Weights & Biases too, all those of a step in one call; the rest is TensorBoard's alone.

    Args:
        writer: TensorBoard's; None: there is none.
        wandb: module ``wandb`` after ``wandb.init``, or a run: Megatron's ``get_wandb_writer()`` gives the module.
        say: prints one line for the user.
    """

    def __init__(self, writer: Writer | None, wandb: Any, say: Callable[[str], None]) -> None:
        self._writer, self._wandb, self._say = writer, wandb, say
        self._scalars: dict[str, float] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """One point of a chart; W&B gets it at the end of the step."""
        self._scalars[tag] = scalar_value
        if self._writer is not None:
            self._writer.add_scalar(tag, scalar_value, global_step)

    def end_step(self, step: int) -> None:
        """Hand the step's scalars to W&B. What goes wrong there is said, and ends the scalars there, nothing else."""
        scalars, self._scalars = self._scalars, {}
        if self._wandb is None:
            return
        try:
            self._wandb.log(scalars, step)
        except Exception as error:  # noqa: BLE001 -- a service over the network: whatever it is, training and plan go on
            self._wandb = None
            self._say(f"no more energy figures in Weights & Biases: {type(error).__name__}: {error}")

    def add_text(self, tag: str, text_string: str, global_step: int) -> None:
        """Markdown."""
        if self._writer is not None:
            self._writer.add_text(tag, text_string, global_step)

    def add_image(self, tag: str, img_tensor: "npt.NDArray[np.uint8]", global_step: int, *, dataformats: str) -> None:
        """A picture; ``dataformats``: its axes, such as HWC."""
        if self._writer is not None:
            self._writer.add_image(tag, img_tensor, global_step, dataformats=dataformats)

    def add_custom_scalars(self, layout: Layout) -> None:
        """Layout of the custom scalars page."""
        if self._writer is not None:
            self._writer.add_custom_scalars(layout)

    def add_hparams(self, hparam_dict: dict[str, Any], metric_dict: dict[str, Any], *, run_name: str) -> None:
        """One row of the HPARAMS page."""
        if self._writer is not None:
            self._writer.add_hparams(hparam_dict, metric_dict, run_name=run_name)

    def flush(self) -> None:
        """Write what is queued."""
        if self._writer is not None:
            self._writer.flush()
