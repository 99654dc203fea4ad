"""`await target.asample(...)`."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from smcprog.potentials.base import Potential
from smcprog.smc.scheduler.scheduler import Scheduler

__all__ = ["asample", "shared_scheduler"]

_lock = threading.Lock()
_shared: Scheduler | None = None


async def asample(
    target: Potential, prompt: Any, *, scheduler: Scheduler | None = None, **options: Any
) -> Any:
    """Sample through a scheduler; `Potential.asample` is the public face of this function."""
    handle = (scheduler or shared_scheduler()).submit(target, prompt, **options)
    return await asyncio.wrap_future(handle)  # cancelling it cancels the handle


def shared_scheduler() -> Scheduler:
    """One for all who bring none, so that they share a batch."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Scheduler()
        return _shared
