"""The rows of one model in a program: their pages, and the passes of a round."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.engine.arena import Arena, table_columns
from smcprog.smc.device.form import Form

if TYPE_CHECKING:
    from smcprog.attention import StaticPlan
    from smcprog.engine.lm import LM

__all__ = ["RowsOf"]


class RowsOf:
    """The rows of one model: its pages, and the passes of a round.

    A row's last token is never stored before a round begins, nor is a draft's last but one
    surely; `back` says how many are run (again).

    Attributes
    ----------
    arena : Arena
    written : int
        Tokens that a round writes.
    offsets : list of int
        Where each pass begins, relative to the rows' `length_M`.
    plans : list of StaticPlan
    """

    def __init__(self, lm: LM, form: Form, pages: int, back: int, widths: list[int]) -> None:
        self.lm = lm
        engine, written = lm.engine, back + form.draft_tokens
        self.written = written
        self._engine = engine
        columns = table_columns(form.context, written, lm.page_size)
        attention, device = engine.attention, engine.device
        self.arena = Arena(
            attention, device, form.requests, form.rows, columns, pages, back, written
        )
        # The first pass runs what a row has too few of; each other one, one more token.
        self.offsets = [-back, *range(len(widths) - 1)]
        groups = form.requests if form.shared else 0
        self.plans: list[StaticPlan] = [
            attention.static_plan(form.rows, width, columns, groups) for width in widths
        ]
        self.shared_R = torch.zeros(form.requests, dtype=torch.int64, device=device)
        self.shared_host_R: NDArray[np.int64] = np.zeros(form.requests, dtype=np.int64)
        self._groups = groups

    def part(self, request: int) -> RowsOf:
        """Those of one request, in the same memory; without passes."""
        twin, requests = copy.copy(self), len(self.shared_host_R)
        twin.arena = self.arena.part(request, requests)
        twin.shared_R = self.shared_R[request : request + 1]
        twin.shared_host_R = self.shared_host_R[request : request + 1]
        twin.plans = []
        return twin

    def take_over(self, other: RowsOf) -> None:
        """Become a copy of rows of the same number and width, pages included."""
        self.arena.tables_M_W.copy_(other.arena.tables_M_W)
        self.arena.pages_R_A.copy_(other.arena.pages_R_A)
        self.shared_R.copy_(other.shared_R)
        self.shared_host_R[:] = other.shared_host_R

    def clear(self) -> None:
        """Hold no page any more."""
        for tensor in (self.arena.tables_M_W, self.arena.pages_R_A, self.shared_R):
            tensor.zero_()
        self.shared_host_R[:] = 0

    def forward(self, number: int, ids_M_T: Tensor, length_M: Tensor, keep: int) -> Tensor:
        """Logits of the last `keep` columns (0: all) of the round's pass of that number."""
        plan = self.plans[number]
        begin_M = (length_M + self.offsets[number]).clamp(min=0)
        plan.place(self.arena.tables_M_W, begin_M, self.shared_R if self._groups else None)
        return self._engine.run_static(ids_M_T, plan, keep)

    def schedule(self, length_M: NDArray[np.int64], shared_R: NDArray[np.int64]) -> None:
        """Plan the passes of a round on the host, given the lengths its rows begin it with."""
        for plan, offset in zip(self.plans, self.offsets, strict=True):
            begin_M = np.maximum(length_M + offset, 0)
            plan.schedule(begin_M, shared_R if self._groups else None)
