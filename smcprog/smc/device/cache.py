"""Programs that were made once, kept with their target for the next wave of the same form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from smcprog.smc.device.form import Form
from smcprog.smc.device.launch import Launcher
from smcprog.smc.device.program import RoundProgram

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["captures", "give_back", "take"]

MOST_PROGRAMS = 24
"""Programs kept for one target; the one unused longest goes."""


def take(target: LM, draft: LM | None, form: Form) -> Launcher:
    """A program for the caller alone, until it is given back."""
    engine = target.engine
    with engine.lock:
        found = engine.kept.pop(_key(target, draft, form), None)
    if found is not None:
        return found
    with engine.lock:
        try:
            return _make(target, draft, form)
        except torch.OutOfMemoryError:
            pass  # out of the handler: what it holds is needed
        engine.close_kept()
        return _make(target, draft, form)


def _make(target: LM, draft: LM | None, form: Form) -> Launcher:
    return Launcher(RoundProgram(target, draft, form), captures(target))


def captures(target: LM) -> bool:
    """Whether programs of a model become CUDA graphs."""
    return target.device.type == "cuda"


def give_back(target: LM, draft: LM | None, launcher: Launcher) -> None:
    """Keep a program whose wave is over, as padding: some rows may have been broken off."""
    engine = target.engine
    try:
        with torch.inference_mode():
            launcher.program.clear()
    except RuntimeError:  # a device that answers no more; what led here says so better
        return
    with engine.lock:
        engine.kept[_key(target, draft, launcher.program.form)] = launcher
        while len(engine.kept) > MOST_PROGRAMS:
            engine.kept.popitem(last=False)[1].close()


def _key(target: LM, draft: LM | None, form: Form) -> tuple[int, tuple[int, ...], Form]:
    # The program holds its draft, so that the number is nobody else's; and what ends an output.
    return (0 if draft is None else id(draft), tuple(target.vocab.eos_ids), form)
