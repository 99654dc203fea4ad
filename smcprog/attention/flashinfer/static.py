"""Passes of fixed shape, which a CUDA graph can hold.

What FlashInfer 0.6.13 does in its graph mode, found in its source (`decode.py`, `prefill.py`,
`scheduler.cuh`, `prefill.cuh`):

- ``plan`` copies ``qo_indptr``, ``indptr`` and ``last_page_len`` from the host into the buffers
  that were given to the constructor, and its schedule into the wrapper's own workspace, all on
  the current stream. Page numbers would be copied with a wait if they came from the host; they
  are handed over as the very buffer, and nothing moves.
- At run time the kernels read the page numbers, ``indptr``, ``last_page_len`` and ``qo_indptr``
  from those buffers, and the schedule from the workspace. So `place`, which runs in the graph and
  therefore after the copies of `schedule`, writes the pages, and for the rest the values that are
  there already.
- The schedule depends on numbers of pages. Grid sizes and all addresses depend on rows, tokens
  and heads only, so a captured launch stays right for every later schedule.
- Copies out of pageable memory may wait for the stream, so all that is copied is pinned. The
  caller sees to it that they are done before `schedule` is called again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.attention.base import StaticPlan
from smcprog.attention.flashinfer.cost import schedule_bytes, workspace_bytes
from smcprog.attention.flashinfer.device_arrays import PageBuffers
from smcprog.attention.flashinfer.kernels import Kind, Table
from smcprog.attention.flashinfer.programs import Cascade, Program, Single, by_token
from smcprog.attention.flashinfer.workspace import float_workspace
from smcprog.errors import ModelError

if TYPE_CHECKING:
    from smcprog.attention.flashinfer.paged import FlashInferAttention

__all__ = ["FlashInferStaticPlan"]


class FlashInferStaticPlan(StaticPlan):
    """M rows of T tokens, all real.

    Kernels are made for the kinds of layers that the model has shown before, at the first
    `schedule`, and for others when their layer attends, which must not be during a capture.

    Parameters
    ----------
    attention : FlashInferAttention
    rows, width, pages, groups : int
        As for `PagedAttention.static_plan`.
    """

    @torch.inference_mode(False)  # to be written in whatever mode
    def __init__(
        self, attention: FlashInferAttention, rows: int, width: int, pages: int, groups: int = 0
    ) -> None:
        if groups and rows % groups:
            raise ValueError(f"{rows} rows do not form {groups} groups of one size")
        self._attention = attention
        self._rows, self._width, self._pages, self._groups = rows, width, pages, groups
        self.count = rows * width
        device = attention.device
        self.positions_M_T = torch.zeros((rows, width), dtype=torch.int64, device=device)
        self._positions = torch.zeros(self.count, dtype=torch.int32, device=device)
        row_M = torch.arange(rows, dtype=torch.int32, device=device)
        self._batch_indices = row_M.unsqueeze(1).repeat(1, width).view(-1)
        self._column_T = torch.arange(width, device=device)
        self._none_M = torch.zeros(rows, dtype=torch.int64, device=device)
        self._none_R = torch.zeros(groups, dtype=torch.int64, device=device)

        self._whole = self._buffers(rows)
        self._shared = self._buffers(groups) if groups else None
        self._own = self._buffers(rows) if groups else None
        self._windows: dict[int, PageBuffers] = {}
        self._programs: dict[Kind, Program] = {}
        self._placed: tuple[Tensor, Tensor] | None = None
        self._begin: NDArray[np.int64] | None = None

    def _buffers(self, rows: int) -> PageBuffers:
        qo_indptr = np.arange(rows + 1, dtype=np.int32) * (self.count // rows)
        return PageBuffers(
            qo_indptr, self._pages, self._attention.page_size, self._attention.device
        )

    def place(self, tables_M_W: Tensor, begin_M: Tensor, shared_R: Tensor | None = None) -> None:
        size, end_M = self._attention.page_size, begin_M + self._width
        self._placed = (tables_M_W, begin_M)
        self.positions_M_T.copy_(begin_M.unsqueeze(1) + self._column_T)
        self._positions.copy_(self.positions_M_T.view(-1))
        self._whole.place(tables_M_W, self._none_M, end_M)
        for window in self._windows:
            self._place_window(window)
        if self._shared is not None and self._own is not None:
            each = self._rows // self._groups
            shared_R = self._none_R if shared_R is None else shared_R
            self._shared.place(tables_M_W[::each], self._none_R, shared_R * size)
            shared_M = shared_R.unsqueeze(1).expand(-1, each).reshape(-1)
            self._own.place(tables_M_W, shared_M, end_M)

    def _place_window(self, window: int) -> None:
        assert self._placed is not None
        tables_M_W, begin_M = self._placed
        first_M = (begin_M + (1 - window)).clamp_min(0) // self._attention.page_size
        self._windows[window].place(tables_M_W, first_M, begin_M + self._width)

    def schedule(
        self, begin_M: NDArray[np.int64], shared_R: NDArray[np.int64] | None = None
    ) -> None:
        for kind in list(self._attention.kinds):  # another thread may show a new one
            self._make(self._own_kind(kind))
        size, end_M = self._attention.page_size, begin_M + self._width
        self._begin = begin_M.copy()
        none_M = np.zeros_like(begin_M)
        self._whole.schedule(none_M, end_M)
        for window in self._windows:
            self._schedule_window(window)
        if self._shared is not None and self._own is not None:
            if shared_R is None:
                shared_R = np.zeros(self._groups, dtype=np.int64)
            self._shared.schedule(np.zeros_like(shared_R), shared_R * size)
            shared_M = np.repeat(shared_R, self._rows // self._groups)
            self._own.schedule(shared_M, end_M)
        for program in self._programs.values():
            self._plan(program)

    def _schedule_window(self, window: int) -> None:
        assert self._begin is not None
        first_M = np.maximum(self._begin + 1 - window, 0) // self._attention.page_size
        self._windows[window].schedule(first_M, self._begin + self._width)

    def real(self, x_M_H_T_D: Tensor) -> Tensor:
        """All tokens, [M * T, H, D]."""
        return by_token(x_M_H_T_D)

    def spread(self, out_S_H_D: Tensor) -> Tensor:
        """The inverse for results, [M, T, H, D]."""
        return out_S_H_D.unflatten(0, (self._rows, self._width))

    def append(self, key_S_H_D: Tensor, value_S_H_D: Tensor, cache: Tensor) -> None:
        self._attention.kernels.append(
            key_S_H_D,
            value_S_H_D,
            self._batch_indices,
            self._positions,
            cache,
            self._whole.indices,
            self._whole.indptr,
            self._whole.last_page_len,
        )

    def program(self, kind: Kind) -> Program:
        """The kernels for layers of a kind."""
        kind = self._own_kind(kind)
        if kind not in self._programs:
            if self._begin is None or self._placed is None:
                raise ModelError("a pass of fixed shape was run before it was scheduled and placed")
            if self._attention.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise ModelError(
                    "a layer attends in a way that none did before the capture; run the model "
                    "once before it is captured"
                )
            self._make(kind)
            if kind.window is not None:
                self._place_window(kind.window)
                self._schedule_window(kind.window)
            self._plan(self._programs[kind])
        return self._programs[kind]

    def _own_kind(self, kind: Kind) -> Kind:
        """The kind as it is here, where no row is longer than the tables."""
        if kind.window is not None and kind.window >= self._pages * self._attention.page_size:
            return dataclasses.replace(kind, window=None)
        return kind

    def _make(self, kind: Kind) -> None:
        if kind in self._programs:
            return
        kernels, buffers = self._attention.kernels, self._whole
        if kind.window is not None:
            if kind.window not in self._windows:
                self._windows[kind.window] = self._buffers(self._rows)
            buffers = self._windows[kind.window]
        elif self._shared and self._own and self._attention.can_cascade(kind):
            shared = self._prefill(kind, self._shared, self._groups)
            own = self._prefill(kind, self._own, self._rows)
            self._programs[kind] = Cascade(kernels, kind, shared, own)
            return
        if self._width > 1:
            wrapper = self._prefill(kind, buffers, self._rows)
        else:
            workspace = self._workspace(kind, self._rows)
            wrapper = kernels.decode(workspace, kind.tensor_cores, buffers)
            kernels.shrink(wrapper, workspace, self._schedule_bytes(kind))
        self._programs[kind] = Single(kernels, kind, wrapper)

    def _prefill(self, kind: Kind, buffers: PageBuffers, rows: int) -> Any:
        kernels, workspace = self._attention.kernels, self._workspace(kind, rows)
        wrapper = kernels.prefill(workspace, "fa2", buffers)
        kernels.shrink(wrapper, workspace, self._schedule_bytes(kind))
        return wrapper

    def _schedule_bytes(self, kind: Kind) -> int:
        return schedule_bytes(self._attention.machine, kind.group, self._rows, self.count)

    def _workspace(self, kind: Kind, rows: int) -> Tensor:
        size = workspace_bytes(
            self._attention.machine,
            kind.query_heads,
            kind.kv_heads,
            kind.dim,
            rows,
            self.count,
        )
        return float_workspace(self._attention.device, size)

    def _plan(self, program: Program) -> None:
        """Let FlashInfer make the schedule for what was said last."""
        kernels, kind, size = self._attention.kernels, program.kind, self._attention.page_size
        if isinstance(program, Cascade):
            assert self._shared is not None and self._own is not None
            table, own = Table.of_buffers(self._shared), Table.of_buffers(self._own)
            kernels.plan_prefill(program.shared, kind, table, size, causal=False)
            kernels.plan_prefill(program.own, kind, own, size)
            return
        buffers = self._whole if kind.window is None else self._windows[kind.window]
        table = Table.of_buffers(buffers)
        if self._width > 1:
            kernels.plan_prefill(program.wrapper, kind, table, size)
        else:
            kernels.plan_decode(program.wrapper, kind, table, size)
