"""The start of a wave on the device: prompts prefilled, pages taken, a program filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.engine.arena import arena_pages
from smcprog.potentials.models.target import Target
from smcprog.smc.block import DEAD
from smcprog.smc.device.form import Form
from smcprog.smc.device.program import RoundProgram
from smcprog.smc.device.rows import RowsOf
from smcprog.smc.factors import Factor, StartGroup
from smcprog.smc.records import WaveRequest
from smcprog.smc.settings import Settings

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import PagedSequences

__all__ = ["WaveStart", "bucket"]


LEAST_CONTEXT = 256
"""Of a form that many requests are to share."""


def bucket(n: int) -> int:
    """The next number of the form 2^k or 3·2^k: how sizes are rounded, so that programs recur."""
    power = power_of_two(n)
    return 3 * power // 4 if power >= 4 and n <= 3 * power // 4 else power


def power_of_two(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, (n - 1).bit_length())


class WaveStart:
    """What a wave holds besides its program: one row a prompt, and pages.

    Parameters
    ----------
    target : Target
    requests : sequence of WaveRequest
    settings : Settings
    groups : sequence of StartGroup
        Requests of equal prompts, which share rows.

    Attributes
    ----------
    draft : LM or None
        Where it is used.
    """

    def __init__(
        self,
        target: Target,
        requests: Sequence[WaveRequest],
        settings: Settings,
        groups: Sequence[StartGroup],
    ) -> None:
        self._target, self._requests, self._settings = target, requests, settings
        self.draft = cast("LM | None", settings.draft) if settings.most_draft_tokens else None
        self._prompts_R: list[tuple[PagedSequences, ...]] = []
        self._taken: list[tuple[LM, NDArray[np.int32]]] = []
        try:
            for group in groups:
                begun = (group.request.sequences(target.lm, 1, target.prompt),)
                self._prompts_R += [cast("tuple[PagedSequences, ...]", begun)] * len(group.members)
                if self.draft is not None:
                    both = (*begun, group.request.draft_sequences(self.draft, 1))
                    many = len(group.members)
                    self._prompts_R[-many:] = [cast("tuple[PagedSequences, ...]", both)] * many
        except BaseException:
            self.release()
            raise

    def logits_R_V(self) -> Tensor:
        """What the target says after each prompt."""
        return torch.cat([pair[0].next_logits() for pair in self._prompts_R])

    def form(
        self, truncate: bool, lead: int, others: Sequence[Factor], coarse: bool = False
    ) -> Form:
        """The program that these requests need, sizes rounded up.

        `coarse` rounds so that requests of many kinds have one form.
        """
        s, target, n = self._settings, self._target, self._settings.particles
        k = s.most_draft_tokens
        requests = bucket(len(self._prompts_R))
        longest = max(int(p.lengths[0]) for pair in self._prompts_R for p in pair)
        context = bucket(longest + s.max_tokens)
        if coarse:
            context = power_of_two(max(longest + s.max_tokens, LEAST_CONTEXT))

        def pages(lm: LM | None, back: int) -> int:
            if lm is None:
                return 0
            return arena_pages(0, n, context, back + k, lm.page_size)

        hot = target.draft_temperature if s.draft_temperature is None else s.draft_temperature
        return Form(
            requests=requests,
            particles=n,
            draft_tokens=k,
            context=context,
            pages=pages(target.lm, 1),
            draft_pages=pages(self.draft, 2),
            local=target.local,
            power=target.power,
            draft_temperature=hot,
            coupling=s.coupling if k else float("inf"),
            truncate=truncate,
            joint=bool(s.joint_draws),
            ess_threshold=s.ess_threshold,
            resampling=s.resampling,
            lead=lead,
            masked=any(f.masks for f in others),
            weighed=bool(others),
            shared=self._shares(),
        )

    def _shares(self) -> bool:
        """Whether prompts are so long that reading their pages once a request pays."""
        shortest = min(int(pair[0].lengths[0]) for pair in self._prompts_R)
        attention = self._target.lm.engine.attention
        return attention.sharing_pays(shortest, self._settings.particles)

    def load(
        self, program: RoundProgram, rows: Mapping[str, Tensor]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Fill the program's tensors with this wave's rows.

        Parameters
        ----------
        program : RoundProgram
        rows : mapping of str to Tensor
            What the wave knows of its rows, by names of `RowState`.

        Returns
        -------
        length_M, limit_M : int64
            Of all rows of the program, on the host.

        Raises
        ------
        PagesExhaustedError
            If the pool is too small.
        """
        form, state, n = program.form, program.state, self._settings.particles
        models = [program.target, *([] if program.draft is None else [program.draft])]
        for i, part in enumerate(models):
            self._give_pages(part, [pair[i] for pair in self._prompts_R])
        real = len(self._requests) * n

        def padded(values_B: Tensor, fill: float) -> Tensor:
            out = torch.full((form.rows, *values_B.shape[1:]), fill, dtype=values_B.dtype)
            out[:real] = values_B
            return out

        lengths = torch.tensor([int(pair[0].lengths[0]) for pair in self._prompts_R])
        length_B = lengths.repeat_interleave(n)
        recent_B_2 = torch.zeros((real, 2), dtype=torch.int64)
        last_R = torch.tensor([q.request.prompt_tokens[-1] for q in self._requests])
        recent_B_2[:, 1] = last_R.repeat_interleave(n)
        # A row of padding stands at its limit, and is dead.
        length_M = padded(length_B, 2)
        limit_M = padded(length_B + self._settings.max_tokens, 2)
        fill = {"finish_M": float(DEAD), "log_w_M": -torch.inf}
        for name, values_B in rows.items():
            getattr(state, name).copy_(padded(values_B, fill.get(name, 0.0)))
        state.length_M.copy_(length_M)
        state.limit_M.copy_(limit_M)
        state.recent_M_2.copy_(padded(recent_B_2, 0))
        state.blame_M.fill_(-1)
        for tensor in (state.out_M, state.round_R):
            tensor.zero_()
        return length_M.numpy(), limit_M.numpy()

    def _give_pages(self, part: RowsOf, prompts: Sequence[PagedSequences]) -> None:
        """An arena from the engine's pages, and tables that begin with the prompts'."""
        engine, arena, n = part.lm.engine, part.arena, self._settings.particles
        most, size = self._settings.max_tokens, part.lm.page_size
        lengths = [int(p.lengths[0]) for p in prompts]
        pages_R_A = np.zeros(tuple(arena.pages_R_A.shape), dtype=np.int64)
        with engine.lock:
            for r, length in enumerate(lengths):
                need = arena_pages(length, n, length + most, part.written, size)
                pages = engine.pages().alloc(need)
                self._taken.append((part.lm, pages))
                pages_R_A[r, :need] = pages
            engine.attention.clear_pages(pages_R_A[pages_R_A > 0].astype(np.int32))
        arena.pages_R_A.copy_(torch.from_numpy(pages_R_A))
        tables_M_W = np.zeros(tuple(arena.tables_M_W.shape), dtype=np.int64)
        part.shared_host_R[:] = 0
        for r, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            used = -(-length // size)
            tables_M_W[r * n : (r + 1) * n, :used] = prompt.tables_M_W[0, :used]
            # A draft runs the prompt's last token again, on a page of each row's own.
            part.shared_host_R[r] = (length - 1) // size
        part.shared_R.copy_(torch.from_numpy(part.shared_host_R))
        arena.tables_M_W.copy_(torch.from_numpy(tables_M_W))

    def release(self) -> None:
        """Give back rows and pages."""
        for pair in self._prompts_R:
            for prompt in pair:
                prompt.close()  # twice does nothing
        for lm, pages in self._taken:
            lm.engine.drop(pages)
            with lm.engine.lock:
                lm.engine.pages()
        self._prompts_R, self._taken = [], []
