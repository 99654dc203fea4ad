"""Errors of the device in our own code, as what they mean for a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smcprog.engine.faults import advice, fault_of, first_line, without_frames
from smcprog.errors import DeviceLostError, DeviceMemoryError, ModelError, SMCError
from smcprog.smc.settings import Settings

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["device_error"]


def device_error(error: RuntimeError, lm: LM, settings: Settings, width: int) -> SMCError:
    """The error to report; of memory, without the frames that hold it.

    Parameters
    ----------
    error : RuntimeError
    lm : LM
        The target's.
    settings : Settings
    width : int
        Most tokens of a block.

    Raises
    ------
    RuntimeError
        The error itself, if it is none of the device.
    """
    fault, why = fault_of(error), first_line(error)
    if fault is None:
        raise error
    without_frames(error)
    typed: SMCError
    if fault == "memory":
        typed = DeviceMemoryError(
            f"{lm.device} has no memory for a request with particles={settings.particles}, blocks "
            f"of {width} tokens and max_tokens={settings.max_tokens} ({why}): use fewer particles "
            "or draft_tokens, a shorter prompt or fewer max_tokens; or leave more memory beside "
            f"the pool of {lm.name} with kv_pages below {lm.kv_pages}"
        )
    elif fault == "lost":
        typed = DeviceLostError(f"{type(error).__name__}: {why} on {lm.device}{advice(fault)}")
    else:
        typed = ModelError(f"{lm.name} on {lm.device}: {why}")
    typed.__cause__ = error
    return typed
