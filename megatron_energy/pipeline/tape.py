"""Writes a program step by step, numbering the transfers."""

from collections import Counter

from megatron_energy.records.steps import TRANSFERS, Post, Program, Transfer, Wait


class Tape:
    """The program written so far. Transfers of one call are written in the order of ``TRANSFERS``."""

    def __init__(self) -> None:
        self.steps: Program = []
        self._posted: Counter[Transfer] = Counter()

    def post(self, *transfers: Transfer | None) -> dict[Transfer, Wait]:
        """Post transfers in one call (None stands for none).

        Returns:
            For each posted transfer the step that would wait for it, to be written with :meth:`wait` where Megatron waits.
        """
        waits = {}
        for transfer in (t for t in TRANSFERS if t in transfers):
            index = self._posted[transfer]
            self._posted[transfer] += 1
            self.steps.append(Post(transfer, index))
            waits[transfer] = Wait(transfer, index)
        return waits

    def wait(self, *handles: Wait | None) -> None:
        """Wait for handles that :meth:`post` returned (None stands for no handle)."""
        self.steps += [handle for handle in handles if handle is not None]

    def exchange(self, *transfers: Transfer | None) -> None:
        """A blocking call: post the transfers, then wait for all of them."""
        self.wait(*self.post(*transfers).values())
