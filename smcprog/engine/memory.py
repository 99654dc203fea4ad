"""How many key/value pages a model gets when the user does not say."""

from __future__ import annotations

import os
from typing import Any

import torch

from smcprog.errors import PagesExhaustedError

__all__ = ["check_pages_fit", "default_pages"]

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


def check_pages_fit(kv_pages: int, bytes_per_page: int, page_size: int, device: Any) -> None:
    """Refuse a pool that cannot be held.

    Raises
    ------
    PagesExhaustedError
        Saying how many pages fit.
    """
    free = available_bytes(device)
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
        return int(torch.cuda.mem_get_info(device)[0])
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
