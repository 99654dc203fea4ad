"""How large the pools of the models on one device are.

On the CPU, and where a number is given, a pool is as large as it is from the start. On CUDA the
rest is shared out when the first of the models takes a page: by then target and draft are loaded,
and both get room for the same number of tokens.
"""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from smcprog.engine import memory
from smcprog.errors import PagesExhaustedError
from smcprog.limits import MAX_DEVICE_ROUND_ELEMENTS

if TYPE_CHECKING:
    from smcprog.attention import PagedAttention

__all__ = ["PoolSize", "activation_bytes", "share_pages"]

SHARED_ON = {"cuda"}
"""Types of devices whose memory is shared out."""
MEMORY_SHARE = 0.9
"""Share of the free memory that pools and the reserve may take."""
RESERVE = 1 << 30
"""Bytes that are left for captured graphs, masks and what kernels work with."""
LOGIT_COPIES = 6
"""A round's logits, their log-probabilities and what is made of them, in float32."""
TOKENS_PER_PASS = 4096
"""Most tokens of a forward."""
MOST_RESERVED = 0.25
"""A reserve takes no more than this share of the free memory."""


def share_pages(
    free: int, needs: Sequence[tuple[int, int]], reserve: int = 0, most_tokens: int | None = None
) -> list[int]:
    """Pages of every pool, all with room for the same number of tokens (less than a page apart).

    Parameters
    ----------
    free : int
        Bytes.
    needs : sequence of (bytes_per_page, page_size)
        Of every model.
    reserve : int
        Bytes that pools must leave free, of ``MEMORY_SHARE * free``.
    most_tokens : int, optional
        Default: `memory.MOST_TOKENS`.

    Returns
    -------
    list of int
        Pages besides the scratch page; 0 where there is no room for one.
    """
    usable = int(MEMORY_SHARE * free) - min(reserve, int(MOST_RESERVED * free))
    usable -= sum(bytes_per_page for bytes_per_page, _ in needs)  # the scratch pages
    bytes_per_token = sum(bytes_per_page / page_size for bytes_per_page, page_size in needs)
    tokens = max(0, int(usable / max(bytes_per_token, 1e-9)))
    tokens = min(tokens, memory.MOST_TOKENS if most_tokens is None else most_tokens)
    return [tokens // page_size for _, page_size in needs]


def activation_bytes(config: Any, dtype: torch.dtype) -> int:
    """About what the layers of a model hold at a time in its largest forward, and its logits."""
    text = config.get_text_config()
    hidden = int(getattr(text, "hidden_size", 0))
    inner = int(getattr(text, "intermediate_size", None) or 4 * hidden)
    per_token = (8 * hidden + 3 * inner) * dtype.itemsize
    return TOKENS_PER_PASS * per_token + LOGIT_COPIES * 4 * MAX_DEVICE_ROUND_ELEMENTS


class PoolSize:
    """The number of pages of one pool: given, or settled when the first page is taken.

    Parameters
    ----------
    name : str
        How messages call the model.
    device : torch.device
    kv_pages : int or None
        The number given.
    bytes_per_page, page_size : int
    activations : int
        Bytes, from `activation_bytes`.

    Attributes
    ----------
    agree : callable
        What several processes that hold parts of one model make of the number found by each.

    Raises
    ------
    PagesExhaustedError
        If the number given does not fit; the message says how many do.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        kv_pages: int | None,
        bytes_per_page: int,
        page_size: int,
        activations: int = 0,
    ) -> None:
        self.name = name
        self.device = device
        self.bytes_per_page = bytes_per_page
        self.page_size = page_size
        self.agree: Callable[[int], int] = int
        self._activations = activations
        self._attention: weakref.ref[PagedAttention] | None = None
        self._pages: int | None = None
        if kv_pages is not None:
            self.set(kv_pages)
        elif device.type not in SHARED_ON:
            self._pages = memory.default_pages(bytes_per_page, page_size, device)
        with _lock:
            self._number = next(_numbers)
            _known.add(self)

    def watch(self, attention: PagedAttention) -> None:
        """Where the memory of the pool will be."""
        self._attention = weakref.ref(attention)

    @property
    def settled(self) -> bool:
        """Whether the number does not change any more by itself."""
        return self._pages is not None

    @property
    def pages(self) -> int:
        """Pages besides the scratch page; as they would be now, where they are not settled."""
        with _lock:
            if self._pages is None:
                return max(1, self._shares()[self])
            return self._pages

    def settle(self) -> int:
        """Share out the memory of the device, if that was not done; the pages of this pool.

        Raises
        ------
        PagesExhaustedError
            If there is no room for a page.
        """
        with _lock:
            if self._pages is None:
                if self.device.type == "cuda":
                    gc.collect()  # models that nobody has any more
                    torch.cuda.empty_cache()
                for size, pages in self._shares().items():
                    size._pages = size.agree(pages) or None
            if self._pages is None:
                raise PagesExhaustedError(
                    f"no memory is left on {self.device} for pages of {self.name}: "
                    f"{self._room() / 2**30:.2f} GiB are free beside the pools of other models"
                    f"{self._others()}. Load all models before the first call, so that they "
                    "share what there is, or give those models a smaller kv_pages"
                )
            return self._pages

    def set(self, kv_pages: int) -> None:
        """Another number; the pool itself is the engine's affair.

        Raises
        ------
        PagesExhaustedError
            As at the start.
        """
        room = self._room() if self.device.type in SHARED_ON else None
        memory.check_pages_fit(
            kv_pages, self.bytes_per_page, self.page_size, self.device, room=room
        )
        self._pages = kv_pages

    def no_memory(self, where: str) -> PagesExhaustedError:
        """What to say when the memory of the pool was not to be had, and what was is free again."""
        fit = max(0, int(MEMORY_SHARE * self._room())) // max(1, self.bytes_per_page) - 1
        asked, size = self._pages or 0, self.bytes_per_page
        return PagesExhaustedError(
            f"no memory for the key/value pool of {self.name} on {self.device} ({where}): "
            f"kv_pages={asked} pages of {self.page_size} tokens take "
            f"{asked * size / 2**30:.2f} GiB, and {self._room() / 2**30:.2f} GiB are free"
            f"{self._others()}: about {max(0, min(fit, asked - 1))} pages fit. Load it with fewer "
            "kv_pages, or set lm.kv_pages before the next call"
        )

    def _shares(self) -> dict[PoolSize, int]:
        """Pages for each of the pools of the device that are not settled. Hold the lock."""
        sizes = [s for s in _known if s._pages is None and s.device == self.device]
        sizes.sort(key=lambda size: size._number)  # `agree` is called in the same order everywhere
        needs = [(s.bytes_per_page, s.page_size) for s in sizes]
        reserve = RESERVE + max(s._activations for s in sizes)
        return dict(zip(sizes, share_pages(self._room(), needs, reserve), strict=True))

    def _room(self) -> int:
        """Free bytes of the device that no other pool was promised."""
        others = [s for s in list(_known) if s is not self and s.device == self.device]
        promised = sum(s._promised() for s in others)
        return max(0, memory.available_bytes(self.device) - promised)

    def _promised(self) -> int:
        """Bytes that a settled pool has not taken yet."""
        if self._pages is None:
            return 0
        attention = None if self._attention is None else self._attention()
        taken = 0 if attention is None else attention.bytes_per_page * attention.num_pages
        return max(0, (self._pages + 1) * self.bytes_per_page - taken)

    def _others(self) -> str:
        """The other pools of the device, in words."""
        others = [
            f"{s.name} {s._pages * s.bytes_per_page / 2**30:.2f} GiB"
            for s in list(_known)
            if s is not self and s.device == self.device and s._pages is not None
        ]
        return f" (pools: {', '.join(others)})" if others else ""


_lock = threading.RLock()
_known: weakref.WeakSet[PoolSize] = weakref.WeakSet()
_numbers = itertools.count()
