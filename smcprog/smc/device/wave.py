"""A wave of requests played in rounds of fixed shape, whose particles live on the device.

The host launches a round, and hears of it later: without other factors, a round is under way
while the host books the one before. What it needs of a round comes in one report.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.particles import ess, logmeanexp
from smcprog.potentials.models.target import Target
from smcprog.smc.block import DEAD, RUNNING
from smcprog.smc.books import Valued
from smcprog.smc.books import report as tell_observer
from smcprog.smc.device import cache
from smcprog.smc.device.beside import Beside
from smcprog.smc.device.books import Books
from smcprog.smc.device.launch import Launcher
from smcprog.smc.device.program import REPORT, RoundProgram
from smcprog.smc.device.reports import Report, Reports, send
from smcprog.smc.device.start import WaveStart
from smcprog.smc.factors import Factor
from smcprog.smc.records import RoundRecord, WaveRequest
from smcprog.smc.settings import Settings
from smcprog.smc.together import compare
from smcprog.smc.wave import Wave

if TYPE_CHECKING:
    from smcprog.potentials.base import Potential
    from smcprog.potentials.product import Product

__all__ = ["DeviceWave"]


@dataclasses.dataclass
class _Model:
    """The target's model, as far as an error has to tell of it."""

    potential: Potential
    log_psi_M: Tensor


class DeviceWave(Wave):
    """R requests × N particles, played by a `RoundProgram`.

    What it is given and what it leaves behind are a `Wave`'s, and so are the tokens.
    """

    def __init__(
        self, target: Product, requests: Sequence[WaveRequest], settings: Settings, truncate: bool
    ) -> None:
        super().__init__(target, requests, settings, truncate)
        self._model = cast("Target", target.factors[self._lead])
        self._start: WaveStart | None = None
        self._launcher: Launcher | None = None
        self._program: RoundProgram | None = None
        self._beside: Beside | None = None
        self._pending: collections.deque[Report] = collections.deque()
        self._length_M: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._limit_M: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Prefill the prompts, take pages, load a program, and draw the first tokens."""
        groups, n = self._groups(), self.settings.particles
        others = [
            (i, Factor(p, groups, n, torch.device("cpu")))
            for i, p in enumerate(self.target.factors)
            if i != self._lead
        ]
        self._factors = [f for _, f in others]
        self._value_of_nothing(others)
        if not self.running:
            return
        lm = self._model.lm
        self._start = begun = WaveStart(self._model, self.requests, self.settings, self._groups())
        form = begun.form(self.truncate, self._lead, [f for _, f in others])
        self._launcher = cache.take(lm, begun.draft, form)
        self._program = program = self._launcher.program
        self._reports = Reports(program.report_X_M, 2)
        if others:
            self._beside = Beside(others, program, lm.vocab.eos_ids, lm.vocab.size)
        self._begin(program, begun)
        self._pending.append(self._reports.send())
        self._absorb(self._pending.popleft())

    def _begin(self, program: RoundProgram, begun: WaveStart) -> None:
        """Fill a program with this wave's rows, and draw their first tokens."""
        with torch.inference_mode():
            rows = {
                "seeds_M": self._seeds_B,
                "keys_M": self._keys_B,
                "finish_M": self.finish_B,
                "log_gamma_M": self.log_gamma_B,
                "log_w_M": self.log_w_R_N.view(-1),
            }
            self._length_M, self._limit_M = begun.load(program, rows)
            self._first(program, begun.logits_R_V())

    def _value_of_nothing(self, others: Sequence[tuple[int, Factor]]) -> None:
        """ψ(∅) of the other factors enters the evidence; the model's is 1."""
        rows = len(self._live_M)
        nothing, zero = torch.zeros((rows, 0), dtype=torch.int64), torch.zeros(rows).long()
        log_psi_M = torch.zeros(rows, dtype=torch.float64)
        blame_M = torch.full((rows,), -1, dtype=torch.int64)
        for i, factor in others:
            factor.log_psi_M = factor.advance(nothing, zero, zero.bool())
            blame_M = blame_M.masked_fill(factor.log_psi_M == -torch.inf, i)
            log_psi_M = log_psi_M + factor.log_psi_M
        self.check_values(log_psi_M, self._live_M, self._factors)
        self.log_gamma_B = log_psi_M.clone()
        self.log_w_R_N = log_psi_M.view(self.log_w_R_N.shape).clone()
        dead_M = log_psi_M == -torch.inf
        self.finish_B = self.finish_B.masked_fill(dead_M, DEAD)
        self._note_deaths(dead_M, blame_M)
        self._drop_failed()
        self._keep_running(torch.arange(rows))

    def _first(self, program: RoundProgram, logits_R_V: Tensor) -> None:
        """The first round: from the logits after the prompts, without a pass."""
        n, rows = self.settings.particles, program.form.rows
        logits_M_V = logits_R_V.new_zeros((rows, logits_R_V.shape[1]))
        logits_M_V[: len(logits_R_V) * n] = logits_R_V.repeat_interleave(n, 0)
        beside = self._beside
        if beside is not None:
            beside.begin(self._live_M, self._room(), drafts=0)
            beside.send_mask(0)
        books = program.first(logits_M_V.unsqueeze(1))
        if beside is not None:
            self._weigh_beside(books, beside)
        program.settle(books)
        self._grow(1)

    # ------------------------------------------------------------------ rounds

    def play_round(self) -> None:
        """Launch a round; book one that is over."""
        launcher = self._launcher
        assert launcher is not None
        with torch.inference_mode():
            program = launcher.program
            launcher.schedule(self._length_M)
            if self._beside is None:
                for launch in launcher.groups:
                    launch()
            else:
                self._play_beside(launcher, self._beside)
            self._pending.append(self._reports.send())
        if program.form.fixed_steps:
            self._grow(program.form.width)
        # Lengths that nobody foresees, and what the host has a part in, must be known before the
        # next round; else one is under way while this one is booked.
        alone = self._beside is None and program.form.fixed_steps
        # Where all rows are as long as they may be, there is none to launch.
        more = bool((self._length_M < self._limit_M).any())
        ahead = alone and launcher.captured and more
        while len(self._pending) > int(ahead and self.running > 0):
            self._absorb(self._pending.popleft())

    def _play_beside(self, launcher: Launcher, beside: Beside) -> None:
        """Piece by piece, the masks of a position on their way while the model runs."""
        program, k = launcher.program, launcher.program.form.draft_tokens
        beside.begin(self._live_M, self._room(), drafts=k)
        *block, settle = launcher.groups
        if beside.masking:
            first, *steps, finish = block
            first()
            beside.send_mask(0)
            for i in range(k):
                draw, run = steps[2 * i : 2 * i + 2]
                draw()
                drawn = send(program.drafted_tokens(i))
                run()  # while it runs, the host thinks about the tokens
                beside.took(drawn.wait(), i)
                beside.send_mask(i + 1)
            finish()
        else:
            for launch in block:
                launch()
        self._weigh_beside(program.books, beside)
        settle()

    def _weigh_beside(self, books: Books, beside: Beside) -> None:
        """What the other factors think of a block, on its way to the device."""
        found = self._fetch(books.tokens_M_B, books.count_M, books.finish_M)
        gained_M = beside.commit(*found)
        self.check_values(gained_M, self._live_M, self._factors)
        for factor in self._factors:
            for request, error in factor.failed.items():
                self.failed.setdefault(request, error)
        failed_M = torch.tensor([int(m) // self.settings.particles in self.failed
                                 for m in self._live_M], dtype=torch.bool)  # fmt: skip
        beside.send(gained_M, failed_M)

    def _fetch(self, *tensors: Tensor) -> list[Tensor]:
        """Device values that the host's factors wait for."""
        return [t.to("cpu") for t in tensors]

    def _room(self) -> Tensor:
        return torch.from_numpy((self._limit_M - self._length_M)[self._live_M.numpy()])

    def _grow(self, width: int) -> None:
        left_M = np.maximum(self._limit_M - self._length_M, 0)
        self._length_M = self._length_M + np.minimum(width, left_M)

    def _absorb(self, sent: Report) -> None:
        """Book a report, once it is there: what the host remembers of a round."""
        report = sent.wait()
        r, n = self.log_w_R_N.shape
        b = r * n
        told = dict(zip(REPORT, report[:, :b], strict=False))
        active_R = told["active"].view(r, n).any(1)
        if not bool(active_R.any()):  # launched before it was known that all were over
            return
        log_w_R_N = told["log_w"].view(torch.float64).view(r, n).clone()
        need_R = told["resampled"].view(r, n)[:, 0].bool()
        ancestors_B = told["ancestors"] - sent.first
        finish_B, out_B = told["finish"], told["out"]
        assert self._program is not None
        form = self._program.form
        if not form.fixed_steps:
            self._length_M[:b] = told["length"][ancestors_B].numpy()
        was_live = self._live_M
        if self._beside is not None:
            live_out_M = self._beside.lengths(out_B[was_live], self.lengths_B[was_live])
            out_B = self.lengths_B.index_put((was_live,), live_out_M)
        self.log_gamma_B = told["log_gamma"].view(torch.float64).clone()
        psi_M = self.log_gamma_B[was_live]
        for factor in self._factors:
            psi_M = psi_M - factor.log_psi_M
        factors: list[Valued] = [_Model(self._model, psi_M), *self._factors]
        self.check_values(log_w_R_N.view(-1)[was_live], was_live, factors)
        log_w_R_N[list(self.failed)] = -torch.inf
        self._write(report[len(REPORT) :, :b], form.width, out_B)
        self.finish_B = finish_B.to(torch.int8)
        self._note_deaths(finish_B[was_live] == DEAD, told["blame"][was_live])
        log_mean_R = logmeanexp(log_w_R_N)
        local_B = ancestors_B - torch.arange(r).repeat_interleave(n) * n
        self.rounds.append(
            RoundRecord(
                active_R=active_R,
                ess_R=ess(log_w_R_N),
                resampled_R=need_R,
                ancestors_R_N=local_B.view(r, n),
                log_w_R_N=log_w_R_N,
                log_evidence_R=self.log_evidence_R + log_mean_R,
                alive_R=(log_w_R_N > -torch.inf).sum(1),
                length_R=out_B.view(r, n).amax(1),
            )
        )
        self.log_evidence_R = self.log_evidence_R + torch.where(need_R, log_mean_R, 0.0)
        self.log_w_R_N = torch.where(need_R.unsqueeze(1), 0.0, log_w_R_N)
        for name in ("tokens_B_T", "logp_B_T", "lengths_B", "finish_B", "log_gamma_B"):
            setattr(self, name, getattr(self, name)[ancestors_B])
        self._drop_failed()
        self._keep_running(ancestors_B)
        if self.settings.on_round is not None:
            tell_observer(self, active_R)
        compare(self)

    def _write(self, block_2B_M: Tensor, width: int, out_B: Tensor) -> None:
        """Tokens of a block go to the ends of the outputs."""
        tokens_B_W, logp_B_W = block_2B_M[:width].T, block_2B_M[width:].T.contiguous()
        place_B_W = self.lengths_B.unsqueeze(1) + torch.arange(width)
        real_B_W = place_B_W < out_B.unsqueeze(1)
        row_B_W = torch.arange(len(out_B)).unsqueeze(1).expand(-1, width)
        at = (row_B_W[real_B_W], place_B_W[real_B_W])
        self.tokens_B_T[at] = tokens_B_W[real_B_W]
        self.logp_B_T[at] = logp_B_W.view(torch.float64)[real_B_W]
        self.lengths_B = out_B.clone()

    def _keep_running(self, ancestors_B: Tensor) -> None:
        if self._beside is None:
            self._live_M = torch.nonzero(self.finish_B == RUNNING).flatten()
        else:
            super()._keep_running(ancestors_B)

    def release(self) -> None:
        """Give back pages, states and the program."""
        super().release()
        while self._pending:
            self._pending.popleft().wait()
        # The program first: while pages are held the pool, which it knows, keeps its size.
        if self._launcher is not None:
            draft = self._launcher.program.draft
            cache.give_back(self._model.lm, None if draft is None else draft.lm, self._launcher)
            self._launcher = None
        if self._start is not None:
            self._start.release()
            self._start = None
