"""How much memory there is for key/value pages; `sizing` says how it is shared."""

from __future__ import annotations

import os
from typing import Any

import torch

from smcprog.errors import PagesExhaustedError

__all__ = ["available_bytes", "check_pages_fit", "default_pages"]

MEMORY_FRACTION = 0.25
"""Share of the memory available when the model has been loaded."""
MOST_TOKENS = 1 << 21
"""No default pool holds more tokens than this."""


def default_pages(bytes_per_page: int, page_size: int, device: torch.device) -> int:
    """A quarter of the free memory in pages, at most 2,097,152 tokens, at least one page.

    On the CPU under Linux a page costs memory only once it has been used.
    """
    by_memory = int(available_bytes(device) * MEMORY_FRACTION) // max(1, bytes_per_page)
    return max(1, min(by_memory, MOST_TOKENS // page_size))


def check_pages_fit(
    kv_pages: int, bytes_per_page: int, page_size: int, device: Any, *, room: int | None = None
) -> None:
    """Refuse a pool that cannot be held in the free memory, or in `room` bytes of it.

    Raises
    ------
    PagesExhaustedError
        Saying how many pages fit.
    """
    free = available_bytes(device) if room is None else room
    if kv_pages * bytes_per_page <= free:
        return
    raise PagesExhaustedError(
        f"kv_pages={kv_pages} pages of {page_size} tokens would take "
        f"{kv_pages * bytes_per_page / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free on "
        f"{device}: at most {free // bytes_per_page} pages fit. Lower kv_pages, or leave it out"
    )


def available_bytes(device: torch.device) -> int:
    """Memory that can be had on a device now."""
    if device.type == "cuda":
        # What the allocator keeps for later is free as well.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        return 4 << 30
