"""How long a device waits between the rounds that are launched on it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.smc.device.launch import Launcher

__all__ = ["LaunchClock", "forget_programs", "idle_share"]


def idle_share(spans: Sequence[tuple[float, float]]) -> float | None:
    """Share of the time from the first begin to the last end that no span covers.

    Parameters
    ----------
    spans : sequence of (begin, end)
        One after the other, in any unit.

    Returns
    -------
    float or None
        None with fewer than two spans.
    """
    if len(spans) < 2:
        return None
    whole = spans[-1][1] - spans[0][0]
    return max(0.0, 1 - sum(end - begin for begin, end in spans) / whole) if whole > 0 else None


def forget_programs(lm: LM) -> None:
    """Drop the rounds kept for a target, and the memory of their graphs."""
    with lm.engine.lock:
        lm.engine.kept.clear()
    if lm.device.type == "cuda":
        gc.collect()  # a program and its pieces know each other
        torch.cuda.empty_cache()


class LaunchClock:
    """While it is open, the begin and the end of every launch of a kept round are marked.

    On CUDA by events of the device, else by the host's clock. Other device work between two
    launches (copies of results, say) counts as idle time, so that the share is never too small.
    Only rounds that were played before are marked: those of a first run are being built.

    Parameters
    ----------
    lm : LM
        The target.
    """

    def __init__(self, lm: LM) -> None:
        self._device = lm.device
        with lm.engine.lock:
            self._launchers: list[Launcher] = list(lm.engine.kept.values())
        self._plain = [launcher.groups for launcher in self._launchers]
        self._marks: list[tuple[Any, Any]] = []

    def __enter__(self) -> LaunchClock:
        for launcher, groups in zip(self._launchers, self._plain, strict=True):
            launcher.groups = [self._marked(group) for group in groups]
        return self

    def __exit__(self, *_: Any) -> None:
        for launcher, groups in zip(self._launchers, self._plain, strict=True):
            launcher.groups = groups

    @property
    def launches(self) -> int:
        """Launches so far."""
        return len(self._marks)

    @property
    def captured(self) -> bool | None:
        """Whether the rounds are graphs; None where there are none (the CPU)."""
        if self._device.type != "cuda":
            return None
        return all(launcher.captured for launcher in self._launchers)

    def idle(self) -> float | None:
        """See `idle_share`, of the launches so far; None where there were none."""
        if self._device.type != "cuda" or not self._marks:
            return idle_share(self._marks)
        torch.cuda.synchronize(self._device)
        first = self._marks[0][0]
        return idle_share(
            [(first.elapsed_time(begin), first.elapsed_time(end)) for begin, end in self._marks]
        )

    def _marked(self, group: Callable[[], None]) -> Callable[[], None]:
        def launch() -> None:
            begin = self._mark()
            group()
            self._marks.append((begin, self._mark()))

        return launch

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
