"""How many key/value pages a model gets when the user does not say."""

from __future__ import annotations

import os

import torch

__all__ = ["default_pages"]

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
