"""Launching a program: its pieces as they are, or as CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from smcprog.engine.faults import fault_of
from smcprog.smc.device.program import RoundProgram

__all__ = ["Launcher"]

WARM_UPS = 2  # kernels are chosen and workspaces allocated before a capture

Launch = Callable[[], None]

_one_at_a_time = threading.Lock()  # a capture waits for the whole device, others' captures too
_streams: dict[torch.device, Any] = {}
_sharing: weakref.WeakValueDictionary[torch.device, Any] = weakref.WeakValueDictionary()
_unfinished: list[Any] = []  # graphs that the allocator goes on asking whether they are captured


class Launcher:
    """Runs the pieces of a program, in groups that are one launch each.

    Parameters
    ----------
    program : RoundProgram
        All of whose rows are padding still.
    capture : bool
        Whether groups become CUDA graphs; without, each operation is launched by itself.

    Attributes
    ----------
    groups : list of callable
        One for a whole round where nothing comes from the host; two, the making of the block and
        its weighing, where it only judges blocks; else one for each piece.
    captured : bool
        Whether they are graphs.
    """

    def __init__(self, program: RoundProgram, capture: bool) -> None:
        self.program = program
        form = program.form
        pieces = program.pieces
        self.groups: list[Launch] = [program.play]
        if form.masked:
            self.groups = list(pieces)
        elif form.weighed:
            self.groups = [lambda: _run(pieces[:-1]), lambda: _run(pieces[-1:])]
        self._device = program.eos_V.device
        self._planned: torch.cuda.Event | None = None
        self.captured = False
        if capture:
            self._warm_up()
            try:
                self.groups = self._capture(self.groups)
                self.captured = True
            except RuntimeError as error:  # an operation of the model that waits for the host
                first = error  # which makes the end of the capture fail as well
                while isinstance(first.__context__, RuntimeError):
                    first = first.__context__
                if {fault_of(first), fault_of(error)} & {"memory", "lost"}:
                    raise
                text = (str(first).strip() or type(first).__name__).splitlines()[0]
                warnings.warn(
                    f"rounds of {program.target.lm.name} cannot be captured as CUDA graphs "
                    f"({text}); they are launched operation by operation, which is slower. "
                    "LM(..., graphs=False) does without this attempt",
                    stacklevel=2,
                )

    def schedule(self, length_M: NDArray[np.int64]) -> None:
        """Plan a round on the host, while the one before may still run.

        Parameters
        ----------
        length_M : int64
            Tokens of the rows as the round begins.
        """
        # Plans are copied to the device from buffers that the next plan writes over: by now the
        # last ones must have been read, which they are once the round before them is done.
        if self._planned is not None:
            self._planned.synchronize()
        self.program.schedule(length_M)
        if self._device.type == "cuda":
            self._planned = torch.cuda.Event()
            self._planned.record(torch.cuda.current_stream(self._device))

    def close(self) -> None:
        """Give back what it holds on the device, at once; it cannot be used any more."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # it may be under way
        self.groups = []
        # A program and its pieces know each other, and would stay until they are collected.
        self.program.pieces = []

    def _warm_up(self) -> None:
        """On the stream of all other passes, whose kernels use the same scratch memory."""
        lengths_M = np.full(self.program.form.rows, 2, dtype=np.int64)
        with torch.inference_mode():
            for _ in range(WARM_UPS):
                self.schedule(lengths_M)
                _run(self.groups)

    def _capture(self, groups: list[Launch]) -> list[Launch]:
        with _one_at_a_time, torch.cuda.device(self._device), torch.inference_mode():
            graphs = _captured(groups, self._device)
        if len(graphs) == 1:
            self.program.forget()
        return [graph.replay for graph in graphs]


def _run(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()


def _captured(groups: Sequence[Launch], device: torch.device) -> list[Any]:
    """A CUDA graph of each group, to be replayed in this order."""
    # Memory is shared by captures of one stream only.
    stream = _streams.get(device) or torch.cuda.Stream(device)
    _streams[device] = stream
    graphs: list[Any] = []
    # Whole rounds leave nothing in their memory that is read after them, so all of them use the
    # same. What pieces leave to the next one must outlive rounds of others in between.
    whole = len(groups) == 1
    shared = _sharing.get(device) if whole else None
    pool = None if shared is None else shared.pool()
    # The outer context gives the stream back even where a capture cannot be ended.
    with torch.cuda.stream(stream), _no_collection():
        try:
            for group in groups:
                graphs.append(_capture_one(group, pool, stream))
                pool = graphs[-1].pool()
        finally:
            # With a graph, PyTorch (2.12 and 2.13) frees cuBLAS's workspaces of the stream that it
            # was captured on, though graphs that are kept have used them on that stream as well.
            # So free them now, with a graph that nobody needs: their memory stays in the pool of
            # these. And after a capture that failed, one that does not fail is what ends the state
            # of capture of PyTorch's random generator.
            _capture_one(lambda: torch.ones(1, device=device).neg_(), pool, stream).reset()
    if whole:
        _sharing[device] = graphs[0]
    return graphs


def _capture_one(group: Callable[[], object], pool: Any, stream: Any) -> Any:
    graph = torch.cuda.CUDAGraph()
    try:
        # Other threads may go on with their own work meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            group()
    except BaseException:
        if not _ended(graph):
            _unfinished.append(graph)
        raise
    return graph


def _ended(graph: Any) -> bool:
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing is collected meanwhile: the end of an older graph may spoil a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
