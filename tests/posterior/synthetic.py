"""Posteriors with made-up weights and ancestors, for what only shows or stores them."""

from __future__ import annotations

import numpy as np

from smcprog.smc.posterior import Particle, Posterior, RoundInfo

TEXTS = [
    '{"name": "Ada Lovelace", "born": 1815}',
    '<script>alert(1)</script> & "quotes" $x^2$ \\alpha',
    "line one\n  line two\ttab \x00\x1b[31m",
    "\U0001f600 emoji \u65e5\u672c\u8a9e \u202eabc \ud800",
    "",
    "a long text that has to be cut somewhere " * 12,
]


def posterior(
    n: int,
    rounds: int,
    *,
    seed: int = 0,
    death: float = 0.0,
    threshold: float = 0.5,
    scheme: str = "systematic",
) -> Posterior:
    """A random-walk population: weights drift, ESS triggers systematic resampling."""
    rng = np.random.default_rng(seed)
    log_w, log_z, log_gamma = np.zeros(n), 0.0, rng.normal(-20, 1, n)
    infos = []
    for t in range(rounds):
        log_w = log_w + rng.normal(0, 0.5, n)
        log_w[rng.random(n) < death] = -np.inf
        top = log_w.max()
        w = np.exp(log_w - top) if top > -np.inf else np.zeros(n)
        mean = np.log(w.mean()) + top if w.any() else -np.inf
        ess = w.sum() ** 2 / (w**2).sum() if w.any() else 0.0
        resampled = bool(0 < ess < threshold * n)
        ancestors = np.arange(n)
        if resampled:
            u = (np.arange(n) + rng.random()) / n
            ancestors = np.searchsorted(np.cumsum(w / w.sum()), u).clip(0, n - 1)
        infos.append(
            RoundInfo(
                ess=float(ess),
                resampled=resampled,
                ancestors=ancestors.tolist(),
                log_evidence=float(log_z + mean),
                length=t + 1,
                alive=int((log_w > -np.inf).sum()),
                log_weights=log_w.tolist(),
            )
        )
        if resampled:
            log_z, log_w, log_gamma = log_z + mean, np.zeros(n), log_gamma[ancestors]
        if not w.any():
            break
    alive = log_w > -np.inf
    particles = [
        Particle(
            text=TEXTS[i % len(TEXTS)],
            tokens=[5, 6, 0],
            log_weight=float(log_w[i]),
            logprobs=[-1.0, -2.0, -0.5],
            log_target=float(log_gamma[i]) if alive[i] else -np.inf,
            finish_reason="eos" if alive[i] else "dead",
        )
        for i in range(n)
    ]
    return Posterior(
        particles=particles,
        rounds=infos,
        log_evidence=float(log_z + np.log(np.exp(log_w).mean())) if alive.any() else -np.inf,
        sample_index=int(rng.choice(np.nonzero(alive)[0])) if alive.any() else None,
        seed=seed,
        prompt_text="Describe Ada.",
        timing={"total_s": 1.5},
        resampling=scheme,
        ess_threshold=threshold,
    )


def dead_posterior(n: int = 4) -> Posterior:
    """Every particle dies in the first rounds."""
    post = posterior(n, 40, death=0.6, threshold=0.0)
    assert not post.alive
    return post
