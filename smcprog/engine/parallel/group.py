"""The process group of models that are split, and what its members tell each other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from smcprog.engine.engine import Engine

__all__ = [
    "agree_on_pages",
    "begin",
    "control_group",
    "least",
    "on_this_machine",
    "words_of_all",
]

INTERFACE = "GLOO_SOCKET_IFNAME"


def begin(device: torch.device, size: int, rank: int, store: Any = None) -> None:
    """Start the process group: NCCL between CUDA devices, gloo on the CPU.

    Parameters
    ----------
    store : torch.distributed.Store, optional
        Where the members meet; by default what the launcher's environment says.
    """
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        device_id=device if cuda else None,
    )


@contextlib.contextmanager
def on_this_machine() -> Iterator[None]:
    """Groups that are made inside talk over the loopback interface, unless the user says where."""
    known = {name for _, name in socket.if_nameindex()}
    loopback = next((name for name in ("lo", "lo0") if name in known), None)
    if loopback is None or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = loopback
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def control_group() -> Any:
    """A second group of the same members for words between hosts; made by all of them at once."""
    return dist.new_group(backend="gloo")


def least(group: Any, value: int) -> int:
    """The smallest of the members' values."""
    shared = torch.tensor([value], dtype=torch.int64)
    dist.all_reduce(shared, op=dist.ReduceOp.MIN, group=group)
    return int(shared)


def agree_on_pages(engine: Engine, least: Callable[[int], int]) -> None:
    """Let a pool have as many pages as all members can hold: now, or when its size is settled.

    Parameters
    ----------
    engine : Engine
        Without sequences.
    least : callable
        The smallest of the members' numbers.
    """
    size = engine.pool_size
    assert size is not None
    if not size.settled:
        size.agree = least
        return
    pages = least(size.pages)
    with engine.lock:
        size.set(pages)
        engine.resize(pages)


def words_of_all(group: Any, word: bytes, width: int, timeout: Any = None) -> list[bytes]:
    """What each member says, in order of rank; `width` bytes, padded with zeros.

    Raises
    ------
    RuntimeError
        If a member does not answer in time.
    """
    mine = torch.zeros(width, dtype=torch.uint8)
    mine[: len(word)] = torch.frombuffer(bytearray(word), dtype=torch.uint8)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    work = dist.all_gather(every, mine, group=group, async_op=True)
    if timeout is None:
        work.wait()
    else:
        work.wait(timeout)
    return [bytes(word.numpy()) for word in every]
