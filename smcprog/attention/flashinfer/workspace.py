"""Scratch memory of FlashInfer's kernels, and wrappers that are planned again and again."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Wrappers", "float_workspace"]

MOST_WAITING = 8
"""Wrappers of one sort that are made before the host waits for the device."""

_lock = threading.Lock()
_workspaces: dict[torch.device, Tensor] = {}


def float_workspace(device: torch.device, size: int) -> Tensor:
    """At least `size` bytes that all wrappers of a device share, which run one after another.

    A larger one takes the place of a smaller one; who has that keeps it.
    """
    with _lock:
        held = _workspaces.get(device)
        if held is None or held.numel() < size:
            with torch.inference_mode(False):
                held = torch.zeros(size, dtype=torch.uint8, device=device)
            _workspaces[device] = held
        return held


@dataclasses.dataclass(eq=False)
class _Slot:
    wrapper: Any
    holder: weakref.ref[Any]
    planned: Any = None  # torch.cuda.Event

    def ready(self) -> bool:
        return self.planned is None or self.planned.query()


class Wrappers:
    """Wrappers for forwards of any shape; each serves one plan at a time.

    FlashInfer plans into pinned host memory of the wrapper and copies it to the device without
    waiting. A wrapper must not be planned again before that copy is done, so each remembers an
    event, and forwards that follow each other closely get different wrappers.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots: dict[Hashable, list[_Slot]] = {}

    def take(self, sort: Hashable, holder: object, make: Callable[[], Any]) -> Any:
        """A wrapper of a sort, until `holder` is gone; call `planned` once it was planned."""
        slots = self._slots.setdefault(sort, [])
        free = [slot for slot in slots if slot.holder() is None]
        chosen = next((slot for slot in free if slot.ready()), None)
        if chosen is None and free and len(slots) >= MOST_WAITING:
            chosen = free[0]
            chosen.planned.synchronize()
        if chosen is None:
            chosen = _Slot(make(), weakref.ref(holder))
        else:
            slots.remove(chosen)
            chosen.holder = weakref.ref(holder)
        slots.append(chosen)  # the one that waits longest comes first
        return chosen.wrapper

    def planned(self, sort: Hashable, wrapper: Any) -> None:
        """Note that the copies of a plan are under way."""
        if self._device.type != "cuda":
            return
        slot = next(slot for slot in self._slots[sort] if slot.wrapper is wrapper)
        if slot.planned is None:
            slot.planned = torch.cuda.Event()
        slot.planned.record(torch.cuda.current_stream(self._device))
