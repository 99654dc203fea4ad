"""From a finished wave to what the user gets: one `Posterior` a request."""

from __future__ import annotations

import torch

from smcprog.errors import AllDeadError
from smcprog.particles import logmeanexp, normalized
from smcprog.rng import STREAM_CHOICE, uniforms
from smcprog.smc.block import DEAD, FINISH_REASONS
from smcprog.smc.draws import categorical
from smcprog.smc.posterior import Particle, Posterior, RoundInfo
from smcprog.smc.wave import Wave

__all__ = ["build_posterior", "no_survivor"]


def build_posterior(wave: Wave, r: int) -> Posterior:
    """The posterior of request `r` of a finished wave."""
    n = wave.settings.particles
    q = wave.requests[r]
    particles = []
    for b in range(r * n, (r + 1) * n):
        length = int(wave.lengths_B[b])
        tokens = wave.tokens_B_T[b, :length].tolist()
        particles.append(
            Particle(
                text=q.request.output_text(tokens),
                tokens=tokens,
                log_weight=float(wave.log_w_R_N[r, b - r * n]),
                logprobs=wave.logp_B_T[b, :length].tolist(),
                log_target=float(wave.log_gamma_B[b]),
                finish_reason=FINISH_REASONS[int(wave.finish_B[b])],  # type: ignore[arg-type]
            )
        )
    rounds = [
        RoundInfo(
            ess=float(record.ess_R[r]),
            resampled=bool(record.resampled_R[r]),
            ancestors=record.ancestors_R_N[r].tolist(),
            log_evidence=float(record.log_evidence_R[r]),
            length=int(record.length_R[r]),
            alive=int(record.alive_R[r]),
            log_weights=record.log_w_R_N[r].tolist(),
            moves=0 if record.moves_R is None else int(record.moves_R[r]),
            moves_accepted=0 if record.accepted_R is None else int(record.accepted_R[r]),
        )
        for record in wave.rounds
        if record.active_R[r]
    ]
    log_w_1_N = wave.log_w_R_N[r : r + 1]
    log_evidence = float(wave.log_evidence_R[r] + logmeanexp(log_w_1_N)[0])
    chosen: int | None = None
    if log_evidence > -torch.inf:
        seed = torch.tensor([q.seed])
        u = uniforms(seed, torch.zeros_like(seed), len(rounds), 0, STREAM_CHOICE)
        chosen = int(categorical(normalized(log_w_1_N), u)[0])
    return Posterior(
        particles=particles,
        rounds=rounds,
        log_evidence=log_evidence,
        sample_index=chosen,
        seed=q.seed,
        prompt_text=wave.target_lm.vocab.decode(q.request.prompt_tokens)
        if not isinstance(q.request.prompt, str)
        else q.request.prompt,
        timing=dict(wave.timing),
        resampling=wave.settings.resampling,
        ess_threshold=wave.settings.ess_threshold,
        one_run_tells=wave.settings.waste_free == 1 and wave.settings.first_tokens == "drawn",
    )


def no_survivor(wave: Wave, r: int, post: Posterior) -> AllDeadError:
    """The error of a population in which nobody is left."""
    factor, position = wave.deaths.get(r, (-1, 0))
    factors = wave.target.factors
    if factor >= 0:
        culprit = factors[factor].name
        what = f"{culprit} gave the last of them weight zero at token {position}"
    else:
        culprit = " * ".join(f.name for f in factors if f.masks) or wave.target.name
        what = f"at token {position} no next token had any weight under {wave.target.name}"
    hint = ""
    if position + 2 >= wave.settings.max_tokens:  # a grammar sees the end one token early
        hint = f"; max_tokens={wave.settings.max_tokens} may be too short for a complete output"
    n_dead = int((wave.finish_B[r * len(post) : (r + 1) * len(post)] == DEAD).sum())
    return AllDeadError(
        f"all {n_dead} particles are dead: {what}{hint}; more particles, or a target less at "
        "odds with the model, would help",
        posterior=post,
        potential=culprit,
        position=position,
    )
