"""Coupled rounds: drafted tokens are kept or redrawn, from lossless (λ = 1) towards SMC-SD.

A token b ~ q̃ is kept with probability min(1, λ p̃(b)/q̃(b)), where p̃ = Π_j p_j^α_j · m / Z̃ is the
exact local distribution at its position, and else redrawn from (p̃ − q̃)₊, normalised, which
ends the block. The density of what comes out is

    κ(v) = min(q̃, λ p̃) + (1 − A)(p̃ − q̃)₊/B,   A = Σ min(q̃, λ p̃),   B = Σ (p̃ − q̃)₊,

and the increment of the log-weight log Z̃ + log p̃(v) − log κ(v). With λ = 1, κ = p̃: speculative
decoding without loss (Leviathan et al., arXiv 2211.17192), whose only weight is Z̃. The end of a
block is a stopping time of the particle's own history, so particles may differ in length.

With several drafted paths per particle (λ = 1 only), the paths that agree with what was kept
so far offer their tokens in turn, each kept against what the ones before it left of p̃
(recursive rejection, SpecInfer, arXiv 2305.09781).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from smcprog.potentials.bitmask import restrict
from smcprog.smc.block import DEAD, RUNNING, Progress, allowed_by
from smcprog.smc.draft import AnyDraft
from smcprog.smc.draws import Draws, log_total, pick
from smcprog.smc.factors import Factor
from smcprog.smc.stops import StopStrings

__all__ = ["CoupledBlock"]


@dataclasses.dataclass
class _Drafts:
    """Tokens on trial of P = M · J paths, a particle's paths side by side.

    Attributes
    ----------
    tokens_P_K : Tensor, int64
    counts_P : Tensor, int64
        How many were drafted.
    ended_P : Tensor, bool
        Whether the last of them ends the output (or leaves the target's support).
    logq_P_V, total_P : list of Tensor
        log q̃ at each position, up to the normaliser log Σ.
    mask_P_V : list of Tensor or None
        Of the masking factors, before each position and after the last one.
    logw_P_V : list of Tensor or None
        Of the masking factors that are LM-like too, likewise.
    """

    tokens_P_K: Tensor
    counts_P: Tensor
    ended_P: Tensor
    logq_P_V: list[Tensor]
    total_P: list[Tensor]
    mask_P_V: list[Tensor | None]
    logw_P_V: list[Tensor | None]

    def log_q(self, position: int, row_S: Tensor, token_S: Tensor) -> Tensor:
        """log q̃ of one token a row, float64 [S]."""
        logq_S = pick(self.logq_P_V[position][row_S], token_S).double()
        return logq_S - self.total_P[position][row_S]

    def q(self, position: int, row_S: Tensor) -> Tensor:
        """q̃ of every token, [S, V]."""
        logq_S_V = self.logq_P_V[position][row_S]
        return (logq_S_V - self.total_P[position][row_S].unsqueeze(1).to(logq_S_V.dtype)).exp()


class CoupledBlock(Progress):
    """Draft up to K tokens for each of M rows, keep what the coupling keeps, add one more.

    Parameters
    ----------
    draft : AnyDraft
    drafts_M : Tensor, int64
        K of each row; less than its room. On the host.
    coupling : float
        λ ≥ 1, finite.
    paths : int
        J, drafts per particle; 1 unless λ = 1.
    others
        As for `Progress`.

    Attributes
    ----------
    kept_M, offered_M : Tensor, int64
        Drafted tokens that were kept, and those that were looked at.
    """

    def __init__(
        self,
        factors: Sequence[Factor],
        lead: int,
        draft: AnyDraft,
        draws: Draws,
        stops: StopStrings | None,
        eos_V: Tensor,
        drafts_M: Tensor,
        room_M: Tensor,
        truncate: bool,
        coupling: float,
        paths: int,
    ) -> None:
        self._most = int(drafts_M.max())
        super().__init__(factors, lead, draws, stops, eos_V, self._most + 1, room_M, truncate)
        self._draft = draft
        self._paths = paths
        models = [f for f in factors if f.lm_like]
        self._normalized = len(models) == 1 and models[0].normalized
        self._log_coupling = math.log(coupling)
        device, rows = eos_V.device, len(room_M)
        self._drafts_P = drafts_M.to(device).repeat_interleave(paths)
        self.kept_M = torch.zeros(rows, dtype=torch.int64, device=device)
        self.offered_M = torch.zeros(rows, dtype=torch.int64, device=device)
        trial = draws.paths(paths)
        base = torch.arange(rows)
        if paths > 1:
            every_P = base.repeat_interleave(paths)
            draft.fork(every_P)
        draft.begin()
        scored = [f.copy(paths) for f in self._scored] if paths > 1 else self._scored
        try:
            drafts = self._propose(trial)
            logw_P_B_V = self._look(scored, drafts)
            path_M = self._verify(drafts, logw_P_B_V, trial)
            if paths > 1:
                winner_M = (base.to(device) * paths + path_M).cpu()
                draft.fork(winner_M)
                for factor, twin in zip(self._scored, scored, strict=True):
                    factor.take_over(twin, winner_M, paths)
        finally:
            if paths > 1:
                for twin in scored:
                    twin.release()
        self._commit()

    # ---------------------------------------------------------------- propose

    def _propose(self, draws: Draws) -> _Drafts:
        size, device = self._eos_V.shape[0], self._eos_V.device
        paths = len(self._drafts_P)
        masking = [f.copy(self._paths) for f in self._stepwise]
        models = [f for f in masking if f.lm_like]
        stops = None if self._stops is None else self._stops.copy(self._paths)
        on_P = torch.ones(paths, dtype=torch.bool, device=device)
        out = _Drafts(
            torch.zeros((paths, self._most), dtype=torch.int64, device=device),
            torch.zeros(paths, dtype=torch.int64, device=device),
            torch.zeros(paths, dtype=torch.bool, device=device),
            [],
            [],
            [],
            [],
        )
        try:
            for position in range(self._most + 1):
                mask_P_V = allowed_by(masking, size)
                out.mask_P_V.append(mask_P_V)
                out.logw_P_V.append(_sum([f.next_logw(size) for f in models]))
                on_P = on_P & (self._drafts_P > position)
                rows = torch.nonzero(on_P).flatten()
                if position == self._most or not len(rows):
                    break
                logq_S_V = self._draft.log_probs(rows)
                if mask_P_V is not None:
                    logq_S_V = restrict(logq_S_V, mask_P_V[rows])
                drawn = draws.draw(logq_S_V, position, rows)
                # Where no token may follow, none is drafted; that counts only if it is reached.
                some_S = drawn.log_total_M > -math.inf
                asked, rows, tokens_S = rows, rows[some_S], drawn.tokens_M[some_S]
                on_P = torch.zeros_like(on_P).index_fill_(0, rows, True)
                out.logq_P_V.append(_placed(logq_S_V, asked, paths))
                out.total_P.append(_placed(drawn.log_total_M, asked, paths))
                out.tokens_P_K[rows, position] = tokens_S
                out.counts_P += on_P
                draws.took(tokens_S, rows)
                tokens_P = out.tokens_P_K[:, position]
                ended_P = on_P & self._eos_V[tokens_P]
                if stops is not None:
                    hit = stops.take(tokens_P.tolist(), on_P.tolist())
                    ended_P = ended_P | torch.tensor(hit, device=device)
                self._draft.append(tokens_P, on_P)
                for factor in masking:
                    value_P = factor.advance(tokens_P.unsqueeze(1), on_P.long(), ended_P)
                    ended_P = ended_P | (on_P & (value_P == -math.inf))
                out.ended_P |= ended_P
                on_P = on_P & ~ended_P
        finally:
            for factor in masking:
                factor.release()
        return out

    def _look(self, scored: Sequence[Factor], drafts: _Drafts) -> Tensor | None:
        """The LM-like factors' weights of every token at every position, [P, B, V]."""
        if not scored:
            return None
        before_P = drafts.counts_P - drafts.ended_P.long()  # after an end nothing is asked
        width = int(before_P.max())
        size = self._eos_V.shape[0]
        tokens_P_T = drafts.tokens_P_K[:, :width]
        return _sum([f.lookahead(tokens_P_T, before_P, size) for f in scored])

    # ----------------------------------------------------------------- verify

    def _verify(self, drafts: _Drafts, logw_P_B_V: Tensor | None, draws: Draws) -> Tensor:
        """Keep or redraw, position by position; which path each particle followed, [M]."""
        device, rows = self._eos_V.device, len(self.finish_M)
        first_M = torch.arange(rows, device=device) * self._paths
        agrees_M_J = torch.ones((rows, self._paths), dtype=torch.bool, device=device)
        path_M = torch.zeros(rows, dtype=torch.int64, device=device)
        active_M = self.finish_M == RUNNING
        for position in range(self._most + 1):
            live_S = torch.nonzero(active_M).flatten()
            if not len(live_S):
                break
            row_S = first_M[live_S] + path_M[live_S]
            logp_S_V, log_z_S = self._local(drafts, logw_P_B_V, position, live_S, row_S)
            dead_S = log_z_S == -math.inf
            self.finish_M[live_S[dead_S]] = DEAD
            active_M[live_S[dead_S]] = False
            keep_S = ~dead_S
            live_S, row_S, logp_S_V = live_S[keep_S], row_S[keep_S], logp_S_V[keep_S]
            self._choose(drafts, draws, position, live_S, row_S, logp_S_V, agrees_M_J, active_M)
            took_M = torch.zeros_like(active_M).index_fill_(0, live_S, True)
            chosen_M = self.tokens_M_B[:, position].clone()
            self._book(chosen_M, took_M, position)
            active_M = active_M & (self.finish_M == RUNNING)
            if self._paths > 1:  # go on with the first path that drafted what was kept
                agreeing_M = agrees_M_J.int().argmax(1)
                path_M = torch.where(self.kept_M > position, agreeing_M, path_M)
        return path_M

    def _local(
        self,
        drafts: _Drafts,
        logw_P_B_V: Tensor | None,
        position: int,
        live_S: Tensor,
        row_S: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """log p̃ of every token, [S, V], and log Z̃, float64 [S]."""
        parts = [logw_P_B_V[row_S, position]] if logw_P_B_V is not None else []
        stepwise_P_V = drafts.logw_P_V[position]
        if stepwise_P_V is not None:
            parts.append(stepwise_P_V[row_S])
        logw_S_V = _sum(parts)
        assert logw_S_V is not None  # the target has a model
        mask_P_V = drafts.mask_P_V[position]
        if mask_P_V is not None:
            logw_S_V = restrict(logw_S_V, mask_P_V[row_S])
        last_S_V = self._only_eos(position, live_S)
        if last_S_V is not None:
            logw_S_V = restrict(logw_S_V, last_S_V)
        elif self._normalized and mask_P_V is None:
            return logw_S_V, torch.zeros(len(live_S), dtype=torch.float64, device=live_S.device)
        log_z_S = log_total(logw_S_V)
        return logw_S_V - log_z_S.unsqueeze(1).to(logw_S_V.dtype), log_z_S

    def _choose(
        self,
        drafts: _Drafts,
        draws: Draws,
        position: int,
        live_S: Tensor,
        row_S: Tensor,
        logp_S_V: Tensor,
        agrees_M_J: Tensor,
        active_M: Tensor,
    ) -> None:
        """One token of each live row; rows that redraw or draw their bonus stop here."""
        open_S = torch.ones(len(live_S), dtype=torch.bool, device=live_S.device)
        kept_S = torch.zeros_like(open_S)
        chosen_S = torch.zeros_like(live_S)
        offered_S = torch.zeros_like(open_S)
        # What the paths that were turned down have left of p̃.
        left_S_V: Tensor | None = None
        for path in range(self._paths if position < self._most else 0):
            at_P = live_S * self._paths + path
            try_S = open_S & agrees_M_J[live_S, path] & (drafts.counts_P[at_P] > position)
            some = torch.nonzero(try_S).flatten()
            if not len(some):
                continue
            token_T = drafts.tokens_P_K[at_P[some], position]
            if left_S_V is None:
                log_left_T = pick(logp_S_V[some], token_T).double()
            else:
                log_left_T = pick(left_S_V[some], token_T).double().log()
            log_chance_T = (
                self._log_coupling + log_left_T - drafts.log_q(position, row_S[some], token_T)
            )
            keep_T = draws.accept(log_chance_T, position, at_P[some])
            refused = some[~keep_T]
            if len(refused):
                q_T_V = drafts.q(position, row_S[refused])
                left_T_V = logp_S_V[refused].exp() if left_S_V is None else left_S_V[refused]
                rest_T_V = (left_T_V - q_T_V).clamp_(min=0)
                rest_T = rest_T_V.sum(1, dtype=torch.float64)
                # Where nothing is left to redraw from, the two are one distribution: keep.
                keep_T[~keep_T] = rest_T == 0
                if left_S_V is None:
                    # Another path may ask for a row that has not refused any yet.
                    left_S_V = logp_S_V.exp() if self._paths > 1 else torch.zeros_like(logp_S_V)
                left_S_V[refused] = rest_T_V / rest_T.clamp(min=1e-300).unsqueeze(1).to(
                    rest_T_V.dtype
                )
            offered_S |= try_S
            chosen_S[some] = torch.where(keep_T, token_T, chosen_S[some])
            kept_S[some] = keep_T
            open_S[some] = ~keep_T
            agrees_M_J[live_S[some], path] &= keep_T
        again = torch.nonzero(open_S & offered_S).flatten()
        if len(again):
            assert left_S_V is not None
            at_P = live_S[again] * self._paths
            chosen_S[again] = draws.redraw(left_S_V[again], position, at_P)
        bonus = torch.nonzero(open_S & ~offered_S).flatten()
        if len(bonus):
            drawn = draws.draw(logp_S_V[bonus], position, row_S[bonus])
            chosen_S[bonus] = drawn.tokens_M
        # Paths that go on are those that drafted the token that was kept.
        if self._paths > 1 and position < self._most:
            tokens_S_J = drafts.tokens_P_K[:, position].view(-1, self._paths)[live_S]
            counts_S_J = drafts.counts_P.view(-1, self._paths)[live_S]
            same_S_J = (tokens_S_J == chosen_S.unsqueeze(1)) & (counts_S_J > position)
            agrees_M_J[live_S] &= same_S_J | ~kept_S.unsqueeze(1)
        self.tokens_M_B[live_S, position] = chosen_S
        self.kept_M[live_S] += kept_S.long()
        self.offered_M[live_S] += offered_S.long()
        self._log_q_M[live_S] += self._log_density(
            drafts, position, row_S, logp_S_V, chosen_S, offered_S
        )
        ended_S = kept_S & drafts.ended_P[row_S] & (drafts.counts_P[row_S] == position + 1)
        active_M[live_S] = kept_S & ~ended_S

    def _log_density(
        self,
        drafts: _Drafts,
        position: int,
        row_S: Tensor,
        logp_S_V: Tensor,
        chosen_S: Tensor,
        offered_S: Tensor,
    ) -> Tensor:
        """log κ of what came out, float64 [S]; it is p̃ itself for a bonus, and where λ = 1."""
        log_p_S = pick(logp_S_V, chosen_S).double()
        if self._log_coupling == 0 or not bool(offered_S.any()):
            return log_p_S
        p_S_V = logp_S_V.double().exp()
        q_S_V = drafts.q(position, row_S).double()
        coupled_S_V = p_S_V * math.exp(self._log_coupling)
        refused_S = (q_S_V - coupled_S_V).clamp(min=0).sum(1)  # 1 − A
        rest_S_V = (p_S_V - q_S_V).clamp(min=0)
        share_S = pick(rest_S_V, chosen_S) / rest_S_V.sum(1).clamp(min=1e-300)
        kept_S = torch.minimum(pick(q_S_V, chosen_S), pick(coupled_S_V, chosen_S))
        return torch.where(offered_S, (kept_S + refused_S * share_S).log(), log_p_S)

    # ----------------------------------------------------------------- commit

    def _commit(self) -> None:
        """Move every state over what came out, and weigh it."""
        self._draft.settle(self.kept_M)
        # The last token is new to the draft, unless it was one of its own that ended the row.
        last_M = (self.lengths_M - 1).clamp(min=0)
        new_M = self.lengths_M > self.kept_M
        self._draft.append(pick(self.tokens_M_B, last_M), new_M)
        for factor in self._factors:
            self._advance(factor, self.tokens_M_B, self.lengths_M)
        logp_M_B = self._factors[self._lead].token_logprobs()
        if logp_M_B is not None:
            self.logp_M_B = logp_M_B.double()
        self._weigh()


def _placed(values_S: Tensor, rows_S: Tensor, count: int) -> Tensor:
    """Values of some rows among `count` of them; the others mean nothing."""
    if len(rows_S) == count:
        return values_S
    placed = values_S.new_zeros((count, *values_S.shape[1:]))
    return placed.index_copy_(0, rows_S, values_S)


def _sum(parts: Sequence[Tensor]) -> Tensor | None:
    total: Tensor | None = None
    for part in parts:
        total = part if total is None else total + part
    return total
