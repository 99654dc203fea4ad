"""When reading shared pages once a group pays.

A kernel that takes each row by itself asks for the shared pages once a row. All but the first
of these reads come out of the L2 cache while what is shared fits in it, and out of the
device's memory otherwise. Reading them once a group saves that, and costs more launches: one
more attention kernel, the merge of its parts, and the merge of both results. For one layer,

    separate = max(memory / bandwidth, all / (L2_RATIO * bandwidth))
    cascade  = (own + shared) / bandwidth + LAUNCHES * launch

where ``own`` and ``shared`` are the bytes of rows' own pages and of every group's shared pages,
``all`` is what the rows ask for one by one, and ``memory`` is ``own + shared`` if ``shared`` fits
in L2_SHARE of the L2 cache, and ``all`` otherwise. Everything here is modelled, not measured.
"""

from __future__ import annotations

import dataclasses

import torch

__all__ = ["Machine", "cascade_pays", "schedule_bytes", "workspace_bytes"]

L2_RATIO = 2.0
"""Bandwidth of the L2 cache over that of the memory."""
L2_SHARE = 0.5
"""Share of the L2 cache that shared pages may fill and still be found there by the next row."""
LAUNCHES = 3
"""Kernels that a cascade runs on top."""
MOST_BLOCKS = 32
"""Blocks that run on one multiprocessor at a time."""
MINIMUM_WORKSPACE = 128 << 20
"""FlashInfer's advice."""
WIDEST_TILE = 128
"""Most packed queries (query heads of a key head included) of one block of its kernels."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the models here need to know of a device.

    Attributes
    ----------
    sms : int
        Multiprocessors.
    bandwidth : float
        Of its memory, bytes a second.
    l2 : int
        Bytes of its L2 cache.
    launch : float
        Seconds that one more kernel takes when the host launches it.
    replay : float
        The same inside a captured graph.
    """

    sms: int = 132
    bandwidth: float = 2e12
    l2: int = 50 << 20
    launch: float = 5e-6
    replay: float = 2e-6

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        """As the driver tells; what it leaves out, and any device but CUDA, as by default."""
        if device.type != "cuda":
            return cls()
        facts = torch.cuda.get_device_properties(device)
        default = cls()
        clock = getattr(facts, "memory_clock_rate", 0)  # kHz; two transfers a cycle
        bits = getattr(facts, "memory_bus_width", 0)
        return cls(
            sms=int(facts.multi_processor_count),
            bandwidth=2e3 * clock * bits / 8 or default.bandwidth,
            l2=int(getattr(facts, "L2_cache_size", 0)) or default.l2,
        )


def cascade_pays(
    machine: Machine, own: int, shared: int, separate: int, *, captured: bool = False
) -> bool:
    """Whether one layer is faster with shared pages read once a group.

    Parameters
    ----------
    machine : Machine
    own, shared : int
        Bytes of the rows' own pages, and of the shared pages, each counted once.
    separate : int
        Bytes that rows ask for when each reads all of its pages.
    captured : bool, default False
        Whether the kernels are launched by a graph.
    """
    fits = shared <= L2_SHARE * machine.l2
    memory = own + shared if fits else separate
    alone = max(memory / machine.bandwidth, separate / (L2_RATIO * machine.bandwidth))
    launch = machine.replay if captured else machine.launch
    together = (own + shared) / machine.bandwidth + LAUNCHES * launch
    return together < alone


def workspace_bytes(
    machine: Machine, query_heads: int, kv_heads: int, dim: int, rows: int = 0, tokens: int = 0
) -> int:
    """Bytes of float workspace that surely suffice for one of FlashInfer's FA2 kernels.

    Where keys are split, it keeps ``query_heads * blocks * tile * (dim + 1)`` floats. There are
    up to ``2 * sms / kv_heads`` blocks then, and in a pass of fixed shape also as many as that
    many tokens can need, however they fall on the rows (`PrefillPlan` and
    `PrefillSplitQOKVIndptr` in FlashInfer's ``scheduler.cuh``).

    Parameters
    ----------
    machine : Machine
    query_heads, kv_heads, dim : int
    rows, tokens : int, default 0
        Of a pass of fixed shape.
    """
    group = query_heads // kv_heads
    longest = (tokens - rows + 1) * group if tokens else WIDEST_TILE
    tile = WIDEST_TILE if longest > 64 and dim < 256 else 64 if longest > 16 else 16
    blocks = 2 * machine.sms // kv_heads
    if tokens:
        blocks = max(blocks, -(-tokens * group // tile) + rows - 1)
    need = 4 * query_heads * blocks * tile * (dim + 1)
    return max(MINIMUM_WORKSPACE, need + (1 << 20))


def schedule_bytes(machine: Machine, group: int, rows: int, tokens: int) -> int:
    """Bytes that surely suffice for the schedule of a pass of fixed shape.

    Three integers and a flag a block, and two integers a token and a row; of blocks there are no
    more than run at a time or than tiles of the smallest size (16 packed queries), whichever are
    more (`DecodePlan` and `PrefillPlan` in FlashInfer's ``scheduler.cuh``).
    """
    blocks = max(MOST_BLOCKS * machine.sms, -(-tokens * group // 16) + rows)
    return 16 * blocks + 8 * (tokens + rows) + (64 << 10)
