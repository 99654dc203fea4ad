"""What rounds tell the host, on its way while the device works on."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

__all__ = ["Report", "Reports", "send"]


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """One round's report, [X, M]; `wait` returns it once it has arrived.

    Attributes
    ----------
    first : int
        Number that the first of its rows has in the program; ancestors are numbers of that kind.
    """

    data: Tensor
    arrived: torch.cuda.Event | None
    first: int = 0

    @property
    def there(self) -> bool:
        """Whether it has arrived."""
        return self.arrived is None or self.arrived.query()

    def rows(self, begin: int, end: int) -> Report:
        """The same of some rows."""
        return Report(self.data[:, begin:end], self.arrived, begin)

    def wait(self) -> Tensor:
        """The report. The one place where the host waits for a round."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.data


class Reports:
    """Copies a device tensor into host memory of its own, round by round.

    Parameters
    ----------
    source : Tensor
        Written by every round.
    slots : int
        Reports that may be on their way at a time.
    """

    def __init__(self, source: Tensor, slots: int) -> None:
        self._source = source
        self._slots = [
            torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            for _ in range(slots if source.device.type == "cuda" else 0)
        ]
        self._next = 0

    def send(self) -> Report:
        """Start the copy of what the last launched round writes."""
        if not self._slots:
            return send(self._source)
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        return send(self._source, slot)


def send(source: Tensor, slot: Tensor | None = None) -> Report:
    """Start the copy of a device tensor into host memory.

    Parameters
    ----------
    source : Tensor
    slot : Tensor, optional
        Pinned memory of its shape. Default: new memory.
    """
    if source.device.type != "cuda":
        return Report(source.to("cpu", copy=True), None)
    if slot is None:
        slot = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    slot.copy_(source, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(source.device))
    return Report(slot, arrived)
