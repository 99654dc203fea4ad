"""The SMC loop over the populations of one wave of requests.

A wave's requests share target and settings and move in step; rows are particles, request
after request. Between rounds everything about a particle but the potentials' states lies
on the host. States exist only for *running* rows: a finished particle never needs them
again, whether or not resampling copies it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from smcprog.errors import PotentialError, SMCError
from smcprog.particles import ess, logmeanexp
from smcprog.potentials.base import Request
from smcprog.potentials.product import Product
from smcprog.potentials.target import Target
from smcprog.resampling import resample
from smcprog.rng import STREAM_RESAMPLE, uniforms
from smcprog.smc.block import DEAD, RUNNING, Block, Progress
from smcprog.smc.coupled import CoupledBlock
from smcprog.smc.draft import AnyDraft, Draft
from smcprog.smc.draws import Draws
from smcprog.smc.factors import Factor, StartGroup
from smcprog.smc.fed_draft import FedDraftRows, is_fed
from smcprog.smc.pace import Pace
from smcprog.smc.settings import RoundEvent, Settings
from smcprog.smc.stops import StopStrings
from smcprog.smc.strata import extend_keys

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["RoundRecord", "Wave", "WaveRequest"]


@dataclasses.dataclass(frozen=True)
class WaveRequest:
    """One request: its number in the call, what potentials may know, and its seed."""

    index: int
    request: Request
    seed: int


@dataclasses.dataclass(frozen=True)
class RoundRecord:
    """One round of every request of the wave, on the host.

    `log_w_R_N` are the weights before resampling; `active_R` tells which requests played.
    """

    active_R: Tensor
    ess_R: Tensor
    resampled_R: Tensor
    ancestors_R_N: Tensor
    log_w_R_N: Tensor
    log_evidence_R: Tensor
    alive_R: Tensor
    length_R: Tensor


class Wave:
    """R requests × N particles, sampled together.

    Parameters
    ----------
    target : Product
    requests : sequence of WaveRequest
        Requests with the same prompt are adjacent.
    settings : Settings
    truncate : bool
    make_draws : callable, optional
        In place of `Draws`, for tests that enumerate every draw.

    Attributes
    ----------
    tokens_B_T, lengths_B, logp_B_T, finish_B, log_gamma_B : Tensor
        Per particle, B = R·N; tokens beyond `lengths_B` are not real.
    log_w_R_N, log_evidence_R : Tensor, float64
        Weights since the last resampling, and log Ẑ up to it.
    rounds : list of RoundRecord
    failed : dict
        Request number in the wave → the error it ended with.
    deaths : dict
        Request number → (factor number or −1, position) of its last deaths.
    """

    def __init__(
        self,
        target: Product,
        requests: Sequence[WaveRequest],
        settings: Settings,
        truncate: bool,
        make_draws: Callable[..., Draws] = Draws,
    ) -> None:
        self.target = target
        self.requests = list(requests)
        self.settings = settings
        self.truncate = truncate
        self._make_draws = make_draws
        self._lead = next(i for i, f in enumerate(target.factors) if isinstance(f, Target))
        self.target_lm = target.factors[self._lead].lm  # type: ignore[attr-defined]
        self._device = torch.device(self.target_lm.device)
        vocab = self.target_lm.vocab
        r, n, t = len(self.requests), settings.particles, settings.max_tokens
        b = r * n
        self.tokens_B_T = torch.zeros((b, t), dtype=torch.int64)
        self.logp_B_T = torch.zeros((b, t), dtype=torch.float64)
        self.lengths_B = torch.zeros(b, dtype=torch.int64)
        self.finish_B = torch.full((b,), RUNNING, dtype=torch.int8)
        self.log_gamma_B = torch.zeros(b, dtype=torch.float64)
        self.log_w_R_N = torch.zeros((r, n), dtype=torch.float64)
        self.log_evidence_R = torch.zeros(r, dtype=torch.float64)
        self.rounds: list[RoundRecord] = []
        self.failed: dict[int, SMCError] = {}
        self.deaths: dict[int, tuple[int, int]] = {}
        self.timing: dict[str, float] = {}
        self._seeds_B = torch.tensor([q.seed for q in self.requests]).repeat_interleave(n)
        self._particles_B = torch.arange(n).repeat(r)
        self._live_M = torch.arange(b)  # rows that still run, in order
        self._keys_B = extend_keys(
            torch.zeros(b, dtype=torch.int64), torch.arange(r).repeat_interleave(n)
        )
        self._eos_V = torch.zeros(vocab.size, dtype=torch.bool, device=self._device)
        self._eos_V[list(vocab.eos_ids)] = True
        self._stops = StopStrings(settings.stop, vocab, b) if settings.stop else None
        self._factors: list[Factor] = []
        self._draft: AnyDraft | None = None
        self._pace = Pace() if settings.draft_tokens == "auto" else None

    def run(self) -> None:
        """Play rounds until every particle of every request is complete or dead."""
        begun = time.perf_counter()
        try:
            self.start()
            self.timing["prefill_s"] = time.perf_counter() - begun
            while self.running:
                self.play_round()
                self.timing.setdefault("first_token_s", time.perf_counter() - begun)
        finally:
            self.release()
        self.timing["total_s"] = time.perf_counter() - begun

    @property
    def running(self) -> int:
        """Rows that are neither complete nor dead."""
        return len(self._live_M)

    def release(self) -> None:
        """Give back pages and states."""
        for factor in self._factors:
            factor.release()
        if self._draft is not None:
            self._draft.release()

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Prefill the prompts and let ψ(∅) enter the weights."""
        n = self.settings.particles
        groups = self._groups()
        for potential in self.target.factors:
            self._factors.append(Factor(potential, groups, n, self._device))
        if self.settings.draft is not None and self.settings.most_draft_tokens:
            lead = self.target.factors[self._lead]
            temperature = self.settings.draft_temperature
            if temperature is None:
                temperature = lead.local.temperature / lead.power  # type: ignore[attr-defined]
            small, size = self.settings.draft, self.target_lm.vocab.size
            if is_fed(small):
                lead_rows = self._factors[self._lead]
                self._draft = FedDraftRows(small, temperature, lead_rows, self._recent, size)
            else:
                self._draft = Draft(cast("LM", small), temperature, groups, n, size)
        # ψ(∅) enters the evidence once, as the weight every particle starts with.
        rows = len(self._live_M)
        nothing = torch.zeros((rows, 0), dtype=torch.int64, device=self._device)
        zero = torch.zeros(rows, dtype=torch.int64, device=self._device)
        blame_M = torch.full((rows,), -1, dtype=torch.int64)
        for i, factor in enumerate(self._factors):
            factor.log_psi_M = factor.advance(nothing, zero, zero.bool())
            blame_M = blame_M.masked_fill((factor.log_psi_M == -torch.inf).cpu(), i)
        log_psi_M = torch.stack([f.log_psi_M for f in self._factors]).sum(0).cpu()
        self._check_values(log_psi_M)
        self.log_gamma_B = log_psi_M.clone()
        self.log_w_R_N = log_psi_M.view(self.log_w_R_N.shape).clone()
        dead_M = log_psi_M == -torch.inf
        self.finish_B = self.finish_B.masked_fill(dead_M, DEAD)
        self._note_deaths(dead_M, blame_M)
        self._drop_failed()
        self._keep_running(torch.arange(rows))

    def _groups(self) -> list[StartGroup]:
        groups: list[StartGroup] = []
        for i, q in enumerate(self.requests):
            if groups and groups[-1].request is q.request:
                last = groups[-1]
                groups[-1] = StartGroup(last.request, (*last.members, i))
            else:
                groups.append(StartGroup(q.request, (i,)))
        return groups

    # ------------------------------------------------------------------ round

    def play_round(self) -> None:
        """Propose a block for every running row, weigh it, and resample where ESS is low."""
        s = self.settings
        live_M = self._live_M
        active_R = self._requests_of(live_M)
        room_M = s.max_tokens - self.lengths_B[live_M]
        begun = time.perf_counter()
        drafts_M = (room_M - 1).clamp(max=self._draft_tokens())
        block = self._propose(live_M, drafts_M, room_M)
        delta_M = self._book(block, live_M)
        if self._pace is not None and int(drafts_M.max()):
            self._learn(block, live_M, delta_M, drafts_M, time.perf_counter() - begun)
        self._drop_failed()
        self._resample(active_R)
        if s.on_round is not None:
            self._report(active_R)

    def _draft_tokens(self) -> int:
        """K of this round; it depends on the past only."""
        # Round 0 draws the first token, for which the prompt's pass has the distribution.
        if self._draft is None or not self.rounds:
            return 0
        return self.settings.most_draft_tokens if self._pace is None else self._pace.next()

    def _learn(
        self, block: Progress, live_M: Tensor, delta_M: Tensor, drafts_M: Tensor, seconds: float
    ) -> None:
        assert self._pace is not None
        delta_R_N = torch.full_like(self.log_w_R_N, math.nan)
        delta_R_N.view(-1)[live_M] = delta_M
        kept = offered = None
        if isinstance(block, CoupledBlock):
            kept, offered = float(block.kept_M.sum()), float(block.offered_M.sum())
        self._pace.learn(int(drafts_M.max()), seconds, delta_R_N, kept, offered)

    def _propose(self, live_M: Tensor, drafts_M: Tensor, room_M: Tensor) -> Progress:
        s = self.settings
        most = int(drafts_M.max())
        if most and self._draft is not None:
            self._draft.start_round()
        draws = self._make_draws(
            self._seeds_B[live_M].to(self._device),
            self._particles_B[live_M].to(self._device),
            len(self.rounds),
            most + 1,
            self._keys_B[live_M].to(self._device) if s.joint_draws else None,
        )
        if most and s.coupling < math.inf:
            assert self._draft is not None
            return CoupledBlock(
                self._factors, self._lead, self._draft, draws, self._stops, self._eos_V,
                drafts_M, room_M, self.truncate, s.coupling, s.draft_paths,
            )  # fmt: skip
        # Without coupling all running rows have one length.
        return Block(
            self._factors, self._lead, self._draft, draws, self._stops, self._eos_V,
            most, room_M, self.truncate,
        )  # fmt: skip

    def _recent(self, count: int) -> Tensor:
        """The last `count` tokens of every running row, prompt included, int64 [M, count].

        Where there are fewer, zeros stand before them.
        """
        n, live_M = self.settings.particles, self._live_M
        before_R_C = torch.zeros((len(self.requests), count), dtype=torch.int64)
        for r, q in enumerate(self.requests):
            last = q.request.prompt_tokens[-count:]
            before_R_C[r, count - len(last) :] = torch.tensor(last)
        # Place p ‹ 0 of an output is in its prompt.
        place_M_C = self.lengths_B[live_M].unsqueeze(1) - count + torch.arange(count)
        new_M_C = self.tokens_B_T[live_M].gather(1, place_M_C.clamp(min=0))
        old_M_C = before_R_C[live_M // n].gather(1, (place_M_C + count).clamp(max=count - 1))
        return torch.where(place_M_C >= 0, new_M_C, old_M_C).to(self._device)

    def _book(self, block: Progress, live_M: Tensor) -> Tensor:
        """The round's one transfer to the host; increments of the log-weights, [M]."""
        delta_M = block.delta_M.cpu()
        self._check_values(delta_M)
        tokens_M_B, logp_M_B = block.tokens_M_B.cpu(), block.logp_M_B.cpu()
        lengths_M = block.lengths_M.cpu()
        at_M = self.lengths_B[live_M]
        keys_M = self._keys_B[live_M]
        for i in range(int(lengths_M.amax())):
            took_M = lengths_M > i
            rows, place = live_M[took_M], at_M[took_M] + i
            self.tokens_B_T[rows, place] = tokens_M_B[took_M, i]
            self.logp_B_T[rows, place] = logp_M_B[took_M, i]
            keys_M = torch.where(took_M, extend_keys(keys_M, tokens_M_B[:, i]), keys_M)
        self._keys_B[live_M] = keys_M
        self.lengths_B[live_M] += lengths_M
        self.finish_B[live_M] = block.finish_M.cpu()
        self.log_gamma_B[live_M] = block.log_gamma_M.cpu()
        self.log_w_R_N.view(-1)[live_M] += delta_M
        self._note_deaths(self.finish_B[live_M] == DEAD, block.blame_M.cpu())
        return delta_M

    def _resample(self, active_R: Tensor) -> None:
        s = self.settings
        r, n = self.log_w_R_N.shape
        running_R = self._requests_of(torch.nonzero(self.finish_B == RUNNING).flatten())
        ess_R = ess(self.log_w_R_N)
        log_mean_R = logmeanexp(self.log_w_R_N)
        need_R = running_R & (ess_R < s.ess_threshold * n) & (log_mean_R > -torch.inf)
        identity_R_N = torch.arange(n).expand(r, n)
        record = RoundRecord(
            active_R=active_R,
            ess_R=ess_R,
            resampled_R=need_R,
            ancestors_R_N=identity_R_N,
            log_w_R_N=self.log_w_R_N.clone(),
            log_evidence_R=self.log_evidence_R + log_mean_R,
            alive_R=(self.log_w_R_N > -torch.inf).sum(1),
            length_R=self.lengths_B.view(r, n).amax(1),
        )
        if bool(need_R.any()):
            seeds_R = self._seeds_B.view(r, n)[:, 0]
            u_R_N = uniforms(
                seeds_R, torch.zeros_like(seeds_R), len(self.rounds), torch.arange(n),
                STREAM_RESAMPLE,
            )  # fmt: skip
            drawn_R_N = resample(s.resampling, self.log_w_R_N, u_R_N)
            ancestors_R_N = torch.where(need_R.unsqueeze(1), drawn_R_N, identity_R_N)
            record = dataclasses.replace(record, ancestors_R_N=ancestors_R_N)
            self.log_evidence_R = torch.where(need_R, record.log_evidence_R, self.log_evidence_R)
            self.log_w_R_N = self.log_w_R_N.masked_fill(need_R.unsqueeze(1), 0.0)
            flat_B = (ancestors_R_N + torch.arange(r).unsqueeze(1) * n).flatten()
            for name in (
                "tokens_B_T",
                "logp_B_T",
                "lengths_B",
                "finish_B",
                "log_gamma_B",
                "_keys_B",
            ):
                setattr(self, name, getattr(self, name)[flat_B])
        else:
            flat_B = torch.arange(r * n)
        self.rounds.append(record)
        self._keep_running(flat_B)

    def _keep_running(self, ancestors_B: Tensor) -> None:
        """States follow: row i of the wave now continues row ``ancestors_B[i]``."""
        r, n = self.log_w_R_N.shape
        place_B = torch.full((r * n,), -1, dtype=torch.int64)
        place_B[self._live_M] = torch.arange(len(self._live_M))
        live_M = torch.nonzero(self.finish_B == RUNNING).flatten()
        index_M = place_B[ancestors_B[live_M]]
        unchanged = len(live_M) == len(self._live_M) and bool(
            (index_M == torch.arange(len(index_M))).all()
        )
        self._live_M = live_M
        if unchanged or not len(live_M):
            return
        sizes_R = torch.bincount(live_M // n, minlength=r).tolist()
        for factor in self._factors:
            factor.fork(index_M, sizes_R)
        if self._draft is not None:
            self._draft.fork(index_M)
        if self._stops is not None:
            self._stops.fork(index_M.tolist())

    # ------------------------------------------------------------------ books

    def _requests_of(self, rows: Tensor) -> Tensor:
        """Which requests own at least one of the rows, bool [R]."""
        r, n = self.log_w_R_N.shape
        owns_R = torch.zeros(r, dtype=torch.bool)
        owns_R[rows // n] = True
        return owns_R

    def _note_deaths(self, dead_M: Tensor, blame_M: Tensor) -> None:
        n = self.settings.particles
        for m in torch.nonzero(dead_M).flatten().tolist():
            row = int(self._live_M[m])
            # The token that killed is the row's last; where none could be drawn, the next.
            position = int(self.lengths_B[row]) - (int(blame_M[m]) >= 0)
            last = self.deaths.get(row // n, (-1, -1))
            if position >= last[1]:
                self.deaths[row // n] = (int(blame_M[m]), max(position, 0))

    def _drop_failed(self) -> None:
        n = self.settings.particles
        for factor in self._factors:
            for request, error in factor.failed.items():
                self.failed.setdefault(request, error)
        for request in self.failed:
            self.finish_B[request * n : (request + 1) * n] = DEAD
            self.log_w_R_N[request] = -torch.inf

    def _check_values(self, values_M: Tensor) -> None:
        """NaN and +∞ are errors of a potential; find out whose."""
        bad_M = values_M.isnan() | (values_M == torch.inf)
        if not bool(bad_M.any()):
            return
        n = self.settings.particles
        for factor in self._factors:
            psi_M = factor.log_psi_M.cpu()
            faulty_M = bad_M & (psi_M.isnan() | (psi_M == torch.inf))
            for m in torch.nonzero(faulty_M).flatten().tolist():
                request = int(self._live_M[m]) // n
                self.failed.setdefault(
                    request,
                    PotentialError(
                        f"{factor.potential.name}: log ψ is {float(psi_M[m])} at token "
                        f"{int(self.lengths_B[self._live_M[m]])} of the output; it must be "
                        "finite or -inf",
                        potential=factor.potential.name,
                    ),
                )
        for m in torch.nonzero(bad_M).flatten().tolist():
            self.failed.setdefault(
                int(self._live_M[m]) // n,
                PotentialError(
                    f"{self.target.name}: the weight became {float(values_M[m])}",
                    potential=self.target.name,
                ),
            )

    def _report(self, active_R: Tensor) -> None:
        n = self.settings.particles
        record = self.rounds[-1]
        assert self.settings.on_round is not None
        for r in torch.nonzero(active_R).flatten().tolist():
            rows = slice(r * n, (r + 1) * n)
            best = r * n + int(self.log_w_R_N[r].argmax())
            finish = self.finish_B[rows]
            tokens = self.tokens_B_T[best, : int(self.lengths_B[best])].tolist()
            q = self.requests[r]
            self.settings.on_round(
                RoundEvent(
                    request=q.index,
                    round=len(self.rounds) - 1,
                    tokens=int(record.length_R[r]),
                    max_tokens=self.settings.max_tokens,
                    alive=int((finish != DEAD).sum()),
                    finished=int(((finish != DEAD) & (finish != RUNNING)).sum()),
                    ess=float(record.ess_R[r]),
                    text=q.request.output_text(tokens),
                )
            )
