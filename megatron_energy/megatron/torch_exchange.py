"""The exchange between ranks over torch.distributed."""

from typing import Any

import torch
import torch.distributed as dist

from megatron_energy.session.exchange import all_packed, intact, packed, unpacked


class TorchExchange:
    """See :class:`megatron_energy.session.exchange.Exchange`. Uses a gloo group of its own, so Megatron's collectives are not touched.

    Every rank constructs it at the same place: making a group is a collective.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.home = self.world_size - 1
        self._group = dist.new_group(backend="gloo")

    def gather(self, item: Any) -> list[Any] | None:
        """Everyone's item, by rank, on the home rank; None elsewhere."""
        payload = torch.frombuffer(bytearray(packed(item)), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(lengths, torch.tensor([payload.numel()]), group=self._group)
        longest = int(max(length.item() for length in lengths))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: payload.numel()] = payload
        at_home = self.rank == self.home
        parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)] if at_home else None
        dist.gather(padded, parts, dst=self.home, group=self._group)
        if parts is None:
            return None
        return [unpacked(part[: int(n.item())].numpy().tobytes()) for part, n in zip(parts, lengths, strict=True)]

    def scatter(self, items: list[Any] | None) -> Any:
        """Rank r gets ``items[r]`` of the home rank."""
        received: list[Any] = [None]
        dist.scatter_object_list(received, None if items is None else all_packed(items), src=self.home, group=self._group)
        return intact(unpacked(received[0]))

    def broadcast(self, item: Any) -> Any:
        """Every rank gets the home rank's item."""
        box = [packed(item) if self.rank == self.home else b""]
        dist.broadcast_object_list(box, src=self.home, group=self._group)
        return intact(unpacked(box[0]))
