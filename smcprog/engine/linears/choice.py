"""Which kernel multiplies how many rows: measured once, or fixed by the number of rows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import torch

from smcprog.engine.linears.storage import Kernel, Storage

__all__ = ["Choice", "choose", "fixed_kernels"]

BUCKETS = (1, 2, 4, 8, 16, 32)
"""Numbers of rows that are measured; others take the choice of the next larger one."""
COLD_BYTES = 48 << 20
"""Weights passed over between two uses of one, so that none is found in a cache."""
REPEATS = 2
CLEARLY = 0.9
"""The usual kernel is kept unless another takes less than this share of its time."""

_thread = threading.local()


@contextlib.contextmanager
def fixed_kernels(on: bool = True) -> Iterator[None]:
    """In this thread, and while it lasts: kernels by the number of rows alone.

    A choice by measurement may differ from one process to the next, and with it the last
    bits of the logits. Under this context the same rows give the same bits in every process
    on a machine.
    """
    before = getattr(_thread, "fixed", False)
    _thread.fixed = on or before
    try:
        yield
    finally:
        _thread.fixed = before


class Choice:
    """Kernels by number of rows, for weights of one shape and storage."""

    def __init__(self, usual: dict[int, Kernel], measured: dict[int, Kernel]) -> None:
        self._usual = [_by_rows(usual, rows) for rows in range(BUCKETS[-1] + 1)]
        self._measured = [_by_rows(measured, rows) for rows in range(BUCKETS[-1] + 1)]

    def kernel(self, rows: int) -> Kernel:
        """The kernel for a number of rows."""
        table = self._usual if getattr(_thread, "fixed", False) else self._measured
        return table[rows] if rows < len(table) else table[-1]


def choose(storages: Sequence[Storage]) -> Choice:
    """The choice for storages of one kind and shape; measured once per process."""
    first = storages[0]
    key = (
        type(first),
        first.out_features,
        first.in_features,
        first.bias is None,
        torch.get_num_threads(),
    )
    with _lock:
        if key not in _choices:
            usual = {rows: first.candidates(rows)[0] for rows in BUCKETS}
            measured = {rows: _fastest(storages, rows) for rows in BUCKETS}
            _choices[key] = Choice(usual, measured)
        return _choices[key]


_lock = threading.Lock()
_choices: dict[tuple[object, ...], Choice] = {}


@torch.inference_mode()
def _fastest(storages: Sequence[Storage], rows: int) -> Kernel:
    candidates = storages[0].candidates(rows)
    if len(candidates) == 1:
        return candidates[0]
    size = 4 * storages[0].out_features * storages[0].in_features
    used = storages[: max(1, -(-COLD_BYTES // size))]
    x = torch.ones(rows, storages[0].in_features)
    times = []
    for kernel in candidates:
        best = float("inf")
        for _ in range(REPEATS):
            begun = time.perf_counter()
            for storage in used:
                storage.multiply(kernel, x)
            best = min(best, time.perf_counter() - begun)
        times.append(best)
    fastest = min(range(len(times)), key=times.__getitem__)
    return candidates[fastest if times[fastest] < CLEARLY * times[0] else 0]


def _by_rows(table: dict[int, Kernel], rows: int) -> Kernel:
    return table[next(b for b in BUCKETS if b >= rows)]
