"""A cache of compiled things, bounded by their bytes and shared by threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["ByteCache"]

V = TypeVar("V")


class ByteCache(Generic[V]):
    """What was made last, up to a number of bytes, by content.

    Values are made outside the lock: two threads that want different things do not wait for
    each other, and two that want the same thing make it once. What raises is not kept.

    Parameters
    ----------
    capacity : int
        Bytes. The entry used last always stays, however large it is.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._making: dict[Hashable, threading.Event] = {}
        self._bytes = 0

    def get(self, key: Hashable, make: Callable[[], tuple[V, int]]) -> V:
        """The value of a key; `make` gives the value and its bytes where there is none."""
        while True:
            with self._lock:
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key][0]
                others = self._making.get(key)
                if others is None:
                    done = self._making[key] = threading.Event()
                    break
            others.wait()
        try:
            value, size = make()
            with self._lock:
                self._entries[key] = (value, size)
                self._bytes += size
                self._shrink()
            return value
        finally:
            with self._lock:
                del self._making[key]
            done.set()

    def grow(self, key: Hashable, size: int) -> None:
        """Count more bytes for a value that has grown, where it is still kept."""
        with self._lock:
            if key in self._entries:
                value, before = self._entries[key]
                self._entries[key] = (value, before + size)
                self._bytes += size
                self._shrink()

    def discard(self, key: Hashable) -> None:
        """Forget a value, where it is still kept."""
        with self._lock:
            _, size = self._entries.pop(key, (None, 0))
            self._bytes -= size

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    @property
    def total_bytes(self) -> int:
        """Bytes of what is kept."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def _shrink(self) -> None:
        while self._bytes > self._capacity and len(self._entries) > 1:
            _, (_, size) = self._entries.popitem(last=False)
            self._bytes -= size
