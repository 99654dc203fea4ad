"""What a CUDA graph does, on the CPU: operations recorded once, then replayed on the same memory.

A replay runs no Python of the program: an operation takes the very tensors it took when it was
recorded and writes its result where it wrote it then. Whatever a program decided in Python while it
was recorded stays decided.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = ["RecordedGraph", "capture_on_cpu"]


class RecordedGraph(TorchDispatchMode):
    """Records the operations made while it is entered."""

    active: list[RecordedGraph] = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.operations = []

    def __enter__(self):
        self.active.append(self)
        return super().__enter__()

    def __exit__(self, *exc):
        self.active.remove(self)
        return super().__exit__(*exc)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select"), f"{name} in a graph"
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, fresh_of(out, (args, kwargs))))
        return out

    def replay(self):
        for func, args, kwargs, fresh in self.operations:
            again = tensors(func(*args, **kwargs))
            for at, old in fresh:
                old.copy_(again[at])


def tensors(values):
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def fresh_of(out, taken):
    """Results, with their numbers, that lie on memory of their own."""
    known = {t.untyped_storage().data_ptr() for t in tensors(taken)}
    return [
        (at, t) for at, t in enumerate(tensors(out)) if t.untyped_storage().data_ptr() not in known
    ]


def opaque(function):
    """A kernel for recordings: its own operations stay inside, and are run anew at a replay."""

    def call(*args, **kwargs):
        with _disable_current_modes():
            out = function(*args, **kwargs)
        for graph in RecordedGraph.active:
            graph.operations.append((function, args, kwargs, fresh_of(out, (args, kwargs))))
        return out

    return call


def capture_on_cpu(launcher, groups):
    """In the place of `Launcher._capture`."""
    graphs = []
    with torch.inference_mode():
        for group in groups:
            with RecordedGraph() as graph:
                group()
            assert len(graph.operations) > 20
            graphs.append(graph)
    if len(graphs) == 1:
        launcher.program.forget()
    return [graph.replay for graph in graphs]
