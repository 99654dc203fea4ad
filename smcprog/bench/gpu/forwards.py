"""Forwards by themselves: as `extend` runs them, and as one launch of fixed shape."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smcprog.bench.accelerator import Size
from smcprog.bench.forwards import ForwardTimer
from smcprog.bench.gpu.cells import ForwardShape
from smcprog.bench.gpu.machine import Machine, timed

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["StaticForward", "time_forward"]

REPEATS = 5


def time_forward(lm: LM, size: Size, shape: ForwardShape, machine: Machine) -> dict[str, Any]:
    """Seconds of a forward, and what its roofline gives.

    The prompt is stored once, and its rows hold it together; the roofline reads it once.
    """
    timer = ForwardTimer(lm, [(shape.rows, shape.columns, shape.context)])
    for _ in range(REPEATS):
        timer.step()
    (eager,) = timer.result()
    with StaticForward(lm, shape.rows, shape.columns, shape.context) as forward:
        seconds = statistics.median(timed(lm.device, forward.run, REPEATS))
    bound = machine.accelerator.seconds(size, shape.rows, shape.columns, shared=shape.context)
    return {
        "name": shape.name,
        "kind": "forward",
        "model": shape.model,
        "rows": shape.rows,
        "columns": shape.columns,
        "context": shape.context,
        "eager_ms": 1e3 * eager.seconds,
        "launch_ms": 1e3 * seconds,
        "roofline_ms": 1e3 * bound,
        "share": bound / seconds,
    }


class StaticForward:
    """A forward over rows that share a prompt, captured as a graph where the device has graphs.

    Parameters
    ----------
    lm : LM
    rows, columns : int
        M and T.
    context : int
        Tokens of the prompt.
    """

    def __init__(self, lm: LM, rows: int, columns: int, context: int) -> None:
        self._lm = lm
        self._engine = engine = lm.engine
        size = lm.page_size
        generator = torch.Generator().manual_seed(0)
        prompt = torch.randint(lm.vocab.size, (context,), generator=generator).tolist()
        ids = torch.randint(lm.vocab.size, (rows, columns), generator=generator)
        self._ids_M_T = ids.to(lm.device)
        self._prompt = lm.sequences(prompt, 1)
        shared = context // size
        width = -(-(context + columns) // size)
        with engine.lock, torch.inference_mode():
            own = engine.pages().alloc(rows * (width - shared)).reshape(rows, -1)
            self._own = own.reshape(-1)
            engine.attention.clear_pages(self._own)
        full = self._prompt.live_pages()[:shared]
        tables = np.concatenate([np.broadcast_to(full, (rows, shared)), own], axis=1)
        self._tables_M_W = torch.from_numpy(tables.astype(np.int64)).to(lm.device)
        self._begin = np.full(rows, context, dtype=np.int64)
        self._begin_M = torch.from_numpy(self._begin).to(lm.device)
        # As rounds do: one group, where reading the prompt once pays.
        groups = int(engine.attention.sharing_pays(context, rows))
        self._shared = np.full(1, shared, dtype=np.int64) if groups else None
        self._shared_R = torch.full((1,), shared, device=lm.device) if groups else None
        self._plan = engine.attention.static_plan(rows, columns, width, groups)
        self._graph: torch.cuda.CUDAGraph | None = None

    def __enter__(self) -> StaticForward:
        self._plan.schedule(self._begin, self._shared)
        if self._lm.device.type == "cuda":
            self._graph = self._captured()
        return self

    def __exit__(self, *_: Any) -> None:
        self._graph = None
        self._prompt.close()
        with self._engine.lock:
            self._engine.pages().release(self._own)

    def run(self) -> None:
        """Once, with the same tokens every time."""
        if self._graph is None:
            self._forward()
        else:
            self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream(self._lm.device)
        stream.wait_stream(torch.cuda.current_stream(self._lm.device))
        with torch.cuda.stream(stream):
            for _ in range(2):  # what libraries set up on first use must not be captured
                self._forward()
        torch.cuda.current_stream(self._lm.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._forward()
        return graph

    def _forward(self) -> None:
        engine = self._engine
        with engine.lock, torch.inference_mode():
            self._plan.place(self._tables_M_W, self._begin_M, self._shared_R)
            engine.run_static(self._ids_M_T, self._plan, 0)
