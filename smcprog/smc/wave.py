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

from smcprog.errors import SMCError
from smcprog.particles import ess, logmeanexp
from smcprog.potentials.models.factor import ModelFactor, lead_index
from smcprog.potentials.product import Product
from smcprog.resampling import resample
from smcprog.rng import STREAM_RESAMPLE, uniforms
from smcprog.smc.block import DEAD, RUNNING, Block, Progress
from smcprog.smc.books import Valued, report, wrong_values
from smcprog.smc.coupled import CoupledBlock
from smcprog.smc.draft import AnyDraft, Draft
from smcprog.smc.draws import Draws
from smcprog.smc.factors import Factor, StartGroup
from smcprog.smc.fed_draft import FedDraftRows, is_fed, last_tokens
from smcprog.smc.pace import Pace
from smcprog.smc.records import RoundRecord, WaveRequest
from smcprog.smc.settings import Settings
from smcprog.smc.stops import StopStrings
from smcprog.smc.strata import extend_keys
from smcprog.smc.together import compare, crew_for, ranks_for, together
from smcprog.smc.variants.first_tokens import FirstTokens, PlainBlock
from smcprog.smc.variants.lookahead import Lookahead
from smcprog.smc.variants.moves import BlockMoves
from smcprog.smc.variants.row_states import RowStates
from smcprog.smc.variants.tempering import Tempering
from smcprog.smc.variants.waste_free import chain_heads

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["RoundRecord", "Wave", "WaveRequest"]

ROUNDING = 1e-9  # share of an ESS that rounding may be


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
    ranks : Ranks or None
        Processes of a launcher that play it, each with parts of the models.
    crew : Crew or None
        Followers that hold parts of the models.
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
        self.ranks = ranks_for(target, settings)
        self.crew = crew_for(target, settings)
        self._make_draws = make_draws
        self._lead = cast("int", lead_index(target.factors))
        self.target_lm = cast("ModelFactor", target.factors[self._lead]).lm
        self._device = torch.device(self.target_lm.device)
        vocab = self.target_lm.vocab
        r, n, t = len(self.requests), settings.particles, settings.max_tokens
        b = r * n
        self.tokens_B_T = torch.zeros((b, t), dtype=torch.int64)
        self.logp_B_T = torch.zeros((b, t), dtype=torch.float64)
        self.lengths_B = torch.zeros(b, dtype=torch.int64)
        self.finish_B = torch.full((b,), RUNNING, dtype=torch.int8)
        self.log_gamma_B = torch.zeros(b, dtype=torch.float64)
        self.annealed_B = torch.zeros(b, dtype=torch.float64)  # log ψ of annealed rewards
        self.log_w_R_N = torch.zeros((r, n), dtype=torch.float64)
        self.log_evidence_R = torch.zeros(r, dtype=torch.float64)
        self.rounds: list[RoundRecord] = []
        self.failed: dict[int, SMCError] = {}
        self.deaths: dict[int, tuple[int, int]] = {}
        self.timing: dict[str, float] = {}
        self._seeds_B = torch.tensor([q.seed for q in self.requests]).repeat_interleave(n)
        self._particles_B = torch.arange(n).repeat(r)
        self._live_M = torch.arange(b)  # rows that still run, in order
        # A program goes on with a population: what rows weigh already, how many tokens each may
        # take, and how many rounds there were (their uniforms must not come again).
        self._log_w_0_B = torch.zeros(b, dtype=torch.float64)
        self._limit_B = torch.full((b,), t, dtype=torch.int64)
        self._first_round = 0
        self._keys_B = extend_keys(
            torch.zeros(b, dtype=torch.int64), torch.arange(r).repeat_interleave(n)
        )
        self._eos_V = torch.zeros(vocab.size, dtype=torch.bool, device=self._device)
        self._eos_V[list(vocab.eos_ids)] = True
        self._stops = StopStrings(settings.stop, vocab, b) if settings.stop else None
        self._factors: list[Factor] = []
        self._draft: AnyDraft | None = None
        self._pace = Pace() if settings.draft_tokens == "auto" else None
        self._moves = BlockMoves(self) if settings.moves or settings.waste_free > 1 else None
        self._tempering = Tempering.of(self)
        self._lookahead = Lookahead(self) if settings.lookahead else None

    def run(self) -> None:
        """Play rounds until every particle of every request is complete or dead."""
        begun = time.perf_counter()
        try:
            with together(self):
                self.start()
                self.timing["prefill_s"] = time.perf_counter() - begun
                while self.running:
                    self.play_round()
                    self.timing.setdefault("first_token_s", time.perf_counter() - begun)
                compare(self)
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
        if self._moves is not None:
            self._moves.release()

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Prefill the prompts and let ψ(∅) enter the weights."""
        n = self.settings.particles
        groups = self._groups()
        for potential in self.target.factors:
            self._factors.append(Factor(potential, groups, n, self._device))
        if self.settings.draft is not None and self.settings.most_draft_tokens:
            temperature = self.settings.draft_temperature
            if temperature is None:
                lead = cast("ModelFactor", self.target.factors[self._lead])
                temperature = lead.draft_temperature
            small, size = self.settings.draft, self.target_lm.vocab.size
            if is_fed(small):
                lead_rows = self._factors[self._lead]
                self._draft = FedDraftRows(small, temperature, lead_rows, self._recent, size)
            else:
                lm = cast("LM", small)
                self._draft = Draft(lm, temperature, groups, n, size, self._device)
        # ψ(∅) enters the evidence once, as the weight every particle starts with.
        rows = len(self._live_M)
        nothing = torch.zeros((rows, 0), dtype=torch.int64, device=self._device)
        zero = torch.zeros(rows, dtype=torch.int64, device=self._device)
        blame_M = torch.full((rows,), -1, dtype=torch.int64)
        for i, factor in enumerate(self._factors):
            factor.log_psi_M = factor.advance(nothing, zero, zero.bool())
            blame_M = blame_M.masked_fill((factor.log_psi_M == -torch.inf).cpu(), i)
        log_psi_M = torch.stack([f.log_psi_M for f in self._factors]).sum(0).cpu()
        self.check_values(log_psi_M, self._live_M, self._factors)
        self.log_gamma_B = log_psi_M.clone()
        self.log_w_R_N = (self._log_w_0_B + log_psi_M).view(self.log_w_R_N.shape)
        dead_M = log_psi_M == -torch.inf
        self.finish_B = self.finish_B.masked_fill(self.log_w_R_N.view(-1) == -torch.inf, DEAD)
        self._note_deaths(dead_M, blame_M)
        self._drop_failed()
        self._keep_running(torch.arange(rows))
        compare(self)

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
        room_M = self._limit_B[live_M] - self.lengths_B[live_M]
        begun = time.perf_counter()
        drafts_M = (room_M - 1).clamp(max=self._draft_tokens())
        if self._moves is not None:
            self._moves.remember(drafts_M)
        block = self._propose(live_M, drafts_M, room_M)
        delta_M = self._book(block, live_M)
        if self._pace is not None and int(drafts_M.max()):
            self._learn(block, live_M, delta_M, drafts_M, time.perf_counter() - begun)
        self._drop_failed()
        ancestors_B = self._resample(active_R)
        if self._moves is not None:
            self._moves.play(ancestors_B, delta_M)
        if s.on_round is not None:
            report(self, active_R)
        compare(self)

    @property
    def round_number(self) -> int:
        """Of this round, for its uniforms."""
        return self._first_round + len(self.rounds)

    def _draft_tokens(self) -> int:
        """K of this round; it depends on the past only."""
        # Round 0 draws the first token, for which the prompt's pass has the distribution.
        if self._draft is None or not self.rounds:
            return 0
        if self._pace is None:
            return self.settings.most_draft_tokens
        k = self._pace.next()
        return k if self.ranks is None else self.ranks.agree([k])[0]  # times differ

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
        draws = self.draws(
            self._seeds_B[live_M],
            self._particles_B[live_M],
            int(drafts_M.max()) + 1,
            self._keys_B[live_M],
        )
        return self.block(self._factors, self._draft, self._stops, draws, drafts_M, room_M)

    def draws(self, seeds_M: Tensor, particles_M: Tensor, positions: int, keys_M: Tensor) -> Draws:
        """What some rows draw in this round; rows off the record count as particles from N on."""
        make = self._make_draws
        if self.settings.first_tokens != "drawn" and not self.rounds:
            make = FirstTokens
        return make(
            seeds_M.to(self._device),
            particles_M.to(self._device),
            self.round_number,
            positions,
            keys_M.to(self._device) if self.settings.joint_draws else None,
        )

    def states(self) -> RowStates:
        """The states of the running rows."""
        return RowStates(self._factors, self._draft, self._stops)

    def block(
        self,
        factors: Sequence[Factor],
        draft: AnyDraft | None,
        stops: StopStrings | None,
        draws: Draws,
        drafts_M: Tensor,
        room_M: Tensor,
        coupled: bool = True,
    ) -> Progress:
        """Play a block on some rows; K of each, and the tokens left to it, lie on the host."""
        s, most = self.settings, int(drafts_M.max())
        if most and draft is not None:
            draft.start_round()
        if most and coupled and s.coupling < math.inf:
            assert draft is not None
            return CoupledBlock(
                factors, self._lead, draft, draws, stops, self._eos_V, drafts_M, room_M,
                self.truncate, s.coupling, s.draft_paths,
            )  # fmt: skip
        # Without coupling all rows draft alike.
        kind, least = Block if draws.by_rejection else PlainBlock, int(drafts_M.min())
        return kind(
            factors, self._lead, draft, draws, stops, self._eos_V, least, room_M, self.truncate
        )

    def _recent(self, count: int) -> Tensor:
        return self.recent(count, self._live_M, self.lengths_B[self._live_M])

    def recent(self, count: int, rows_M: Tensor, lengths_M: Tensor) -> Tensor:
        """The last `count` of the first so many tokens of rows, prompt before, [M, count]."""
        prompts = [q.request.prompt_tokens for q in self.requests]
        owners_M = rows_M // self.settings.particles
        recent_M_C = last_tokens(count, self.tokens_B_T[rows_M], lengths_M, owners_M, prompts)
        return recent_M_C.to(self._device)

    def _book(self, block: Progress, live_M: Tensor) -> Tensor:
        """The round's one transfer to the host; increments of the log-weights, [M]."""
        delta_M = block.delta_M.cpu()
        self.check_values(delta_M, live_M, self._factors)
        self.take_over(live_M, block, slice(None), self.lengths_B[live_M], self._keys_B[live_M])
        self.log_w_R_N.view(-1)[live_M] += delta_M
        self._note_deaths(self.finish_B[live_M] == DEAD, block.blame_M.cpu())
        return delta_M

    def take_over(
        self,
        rows_S: Tensor,
        block: Progress,
        index_S: Tensor | slice,
        at_S: Tensor,
        keys_S: Tensor,
    ) -> None:
        """Rows take over rows of a block: the first `at_S` tokens, of keys `keys_S`, stay."""
        tokens_S_B, logp_S_B = block.tokens_M_B.cpu()[index_S], block.logp_M_B.cpu()[index_S]
        lengths_S = block.lengths_M.cpu()[index_S]
        for i in range(int(lengths_S.amax())):
            took_S = lengths_S > i
            rows, place = rows_S[took_S], at_S[took_S] + i
            self.tokens_B_T[rows, place] = tokens_S_B[took_S, i]
            self.logp_B_T[rows, place] = logp_S_B[took_S, i]
            keys_S = torch.where(took_S, extend_keys(keys_S, tokens_S_B[:, i]), keys_S)
        self._keys_B[rows_S] = keys_S
        self.lengths_B[rows_S] = at_S + lengths_S
        self.finish_B[rows_S] = block.finish_M.cpu()[index_S]
        self.log_gamma_B[rows_S] = block.log_gamma_M.cpu()[index_S]
        if self._tempering is not None:
            self.annealed_B[rows_S] = self._tempering.value(block)[index_S]

    def _resample(self, active_R: Tensor) -> Tensor:
        """Draw ancestors where ESS is low; the row that each row continues, [B]."""
        s = self.settings
        r, n = self.log_w_R_N.shape
        # Where all have finished, copies stay copies; but moves can draw the last blocks anew.
        still_R = self._requests_of(torch.nonzero(self.finish_B == RUNNING).flatten())
        running_R = still_R if self._moves is None else active_R
        ess_R = ess(self.log_w_R_N)
        log_mean_R = logmeanexp(self.log_w_R_N)
        # Weights that differ by rounding only are equal: which do depends on the batch.
        low_R = ess_R < s.ess_threshold * n * (1 - ROUNDING)
        if s.waste_free > 1:  # moves must not depend on what they move, and these need ancestors
            low_R = torch.ones_like(low_R)
        need_R = running_R & low_R & (log_mean_R > -torch.inf)
        if s.first_tokens != "drawn" and not self.rounds:
            need_R = torch.zeros_like(need_R)  # it would undo what keeps the tokens distinct
        need_R, log_eta_R_N = self._log_eta(need_R)
        flat_B = torch.arange(r * n)
        record = RoundRecord(
            active_R=active_R,
            ess_R=ess_R,
            resampled_R=need_R,
            ancestors_R_N=torch.arange(n).expand(r, n),
            log_w_R_N=self.log_w_R_N.clone(),
            log_evidence_R=self.log_evidence_R + log_mean_R,
            alive_R=(self.log_w_R_N > -torch.inf).sum(1),
            length_R=self.lengths_B.view(r, n).amax(1),
        )
        if bool(need_R.any()):
            log_v_R_N = self.log_w_R_N + log_eta_R_N
            need_R_1 = need_R.unsqueeze(1)
            ancestors_R_N = torch.where(
                need_R_1, self._ancestors(log_v_R_N, need_R), record.ancestors_R_N
            )
            record = dataclasses.replace(record, ancestors_R_N=ancestors_R_N)
            flat_B = (ancestors_R_N + torch.arange(r).unsqueeze(1) * n).flatten()
            gained_R = torch.where(need_R, logmeanexp(log_v_R_N), 0.0)
            self.log_evidence_R = self.log_evidence_R + gained_R
            left_R_N = -log_eta_R_N.view(-1)[flat_B].view(r, n)
            self.log_w_R_N = torch.where(need_R_1, left_R_N, self.log_w_R_N)
            for name in (
                "tokens_B_T",
                "logp_B_T",
                "lengths_B",
                "finish_B",
                "log_gamma_B",
                "annealed_B",
                "_keys_B",
            ):
                setattr(self, name, getattr(self, name)[flat_B])
        self.rounds.append(record)
        self._keep_running(flat_B)
        return flat_B

    def _log_eta(self, need_R: Tensor) -> tuple[Tensor, Tensor]:
        """Which requests resample, and log η of every particle, finite, [R, N].

        Ancestors are drawn in proportion to w·η and then weigh 1/η. Whatever η › 0 is made of
        the past and the present population, and of randomness of its own, E[Ẑ] = Z.
        """
        log_eta_R_N = torch.zeros_like(self.log_w_R_N)
        for part in (self._tempering, self._lookahead):
            if part is not None and bool(need_R.any()):
                need_R, log_part_R_N = part.log_eta(need_R)
                log_eta_R_N = log_eta_R_N + log_part_R_N
        return need_R, log_eta_R_N

    def _ancestors(self, log_v_R_N: Tensor, need_R: Tensor) -> Tensor:
        """Ancestors of populations, [R, N], in proportion to exp(log_v); those in need count."""
        r, n = log_v_R_N.shape
        seeds_R = self._seeds_B.view(r, n)[:, 0]
        u_R_N = uniforms(
            seeds_R, torch.zeros_like(seeds_R), self.round_number, torch.arange(n), STREAM_RESAMPLE
        )
        drawn_R_N = resample(self.settings.resampling, log_v_R_N, u_R_N)
        if self.settings.waste_free > 1:
            return chain_heads(drawn_R_N, self.settings.waste_free, seeds_R, self.round_number)
        return drawn_R_N

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

    def check_values(self, values_M: Tensor, rows_M: Tensor, factors: Sequence[Valued]) -> None:
        """NaN and +∞ are errors of a potential; find out whose."""
        if bool((values_M.isnan() | (values_M == torch.inf)).any()):
            owners_M = rows_M // self.settings.particles
            found = wrong_values(self.target, values_M, owners_M, self.lengths_B[rows_M], factors)
            self.failed = found | self.failed
