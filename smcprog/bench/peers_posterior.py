"""The same posterior: ours and genlm-control's against the exact one, on languages of few texts.

All token sequences that spell the texts of a language are scored, which gives Z and the
probability of every text. Several runs of a sampler, each weighted by its Ẑ, estimate the same
(the estimate of the numerator, and of Z, is unbiased). How far an estimate is off is judged by
its own noise: the total variation between it and estimates from runs drawn again with
replacement (bootstrap).
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smcprog.bench.peers import Peer, peer_load, peer_order, prompt_tokens
from smcprog.errors import AllDeadError, SMCError
from smcprog.potentials import Grammar, Request, Target
from smcprog.validate import whole

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = [
    "LANGUAGES",
    "Language",
    "compare_posteriors",
    "distance",
    "exact_posterior",
    "spellings",
]

_BOOTSTRAPS = 400
_ROWS = 64  # sequences scored in one pass


@dataclasses.dataclass(frozen=True)
class Language:
    """All texts of a language, a pattern for it, and what to ask for."""

    texts: tuple[str, ...]
    prompt: str

    @property
    def pattern(self) -> str:
        return "(" + "|".join(self.texts) + ")"


LANGUAGES = {
    "colours": Language(
        ("red", "green", "blue", "black", "white", "pink"),
        "Name one colour, in one lower-case word without punctuation.",
    ),
    "animals": Language(
        ("cat", "dog", "cow", "fish", "bird", "horse"),
        "Name one animal, in one lower-case word without punctuation.",
    ),
    "numbers": Language(
        tuple(f"{a}{b}" for a in "123" for b in "05"), "Write a number between ten and forty."
    ),
}


def spellings(lm: LM, text: str) -> list[tuple[int, ...]]:
    """Every token sequence whose bytes are those of a text."""
    ids: dict[bytes, list[int]] = {}
    for v, token in enumerate(lm.vocab.token_bytes):
        if token:
            ids.setdefault(token, []).append(v)
    data = text.encode()
    ends: list[list[tuple[int, ...]]] = [[] for _ in range(len(data) + 1)]
    ends[0] = [()]
    for end in range(1, len(data) + 1):
        for begin in range(end):
            for v in ids.get(data[begin:end], ()):
                ends[end] += [(*before, v) for before in ends[begin]]
    return ends[-1]


def exact_posterior(
    lm: LM, prompt: list[int], texts: Sequence[str], max_tokens: int
) -> tuple[float, dict[str, float]]:
    """log Z and the probability of each text, by scoring all that spells it.

    Parameters
    ----------
    texts : sequence of str
    max_tokens : int
        Longest output, EOS included.
    """
    outputs = [
        (text, (*tokens, eos))
        for text in texts
        for tokens in spellings(lm, text)
        if len(tokens) < max_tokens
        for eos in lm.vocab.eos_ids
    ]
    target = Target(lm)
    request = Request(prompt, tuple(prompt), lm.vocab, max_tokens)
    mass = dict.fromkeys(texts, 0.0)
    for first in range(0, len(outputs), _ROWS):
        rows = outputs[first : first + _ROWS]
        width = max(len(tokens) for _, tokens in rows)
        padded = torch.tensor([[*t, *[0] * (width - len(t))] for _, t in rows])
        lengths = torch.tensor([len(t) for _, t in rows])
        state = target.start(request, len(rows))
        state, logp = target.advance(state, padded, lengths, torch.zeros(len(rows)).bool())
        target.release(state)
        for (text, _), value in zip(rows, logp.tolist(), strict=True):
            mass[text] += math.exp(value)
    z = sum(mass.values())
    return math.log(z), {text: m / z for text, m in mass.items()}


def compare_posteriors(
    lm: LM,
    peer: Peer,
    *,
    particles: int = 16,
    max_tokens: int = 16,
    runs: int = 20,
    sampler: str = "awrs",
    tuned: bool = False,
    cap_s: float = 300.0,
    seed: int = 0,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Both samplers on each language, against the exact posterior.

    Parameters
    ----------
    runs : int
        Calls of each, with seeds `seed`, `seed` + 1, …
    others
        As for `smcprog.bench.peers.compare`.

    Yields
    ------
    dict
        ``name``, ``texts`` (how many), ``log_z``, and for ``ours`` and ``peer``: ``tv`` to the
        exact posterior, ``tv_noise`` and ``tv_limit`` (mean and 95 % quantile of what noise
        explains), ``z_error`` (mean Ẑ less Z, in standard errors), ``seconds`` (median call),
        ``outside`` (texts that are none of the language's). ``peer_failed`` counts the peer's
        calls that raised, which are left out.
    """
    whole("runs", runs, 2, 10_000)
    on_stage("loading the peer's model")
    batching = {"batch_size": particles, "timeout": 0.001} if tuned else {}
    versions = peer_load(lm, peer, batching)
    for name, language in LANGUAGES.items():
        prompt = prompt_tokens(lm, language.prompt)
        on_stage(f"{name}: the exact posterior")
        log_z, exact = exact_posterior(lm, prompt, language.texts, max_tokens)
        order = peer_order(lm, language.pattern, prompt, particles, max_tokens, cap_s)
        order |= {"sampler": sampler, "keep_prompt": tuned}
        target = Target(lm) * Grammar.regex(language.pattern)
        peer.ask("accepts", pattern=language.pattern, texts=[])
        ours: list[Run] = []
        theirs: list[Run] = []
        failed = 0
        for run in range(-1, runs):  # the first warms both up
            on_stage(f"{name}: run {run + 1} of {runs}")
            mine = _ours(target, prompt, particles, max_tokens, seed + run + 1)
            try:
                other = _peers(peer.ask("sample", **order, seed=seed + run + 1), particles)
            except SMCError:  # assertions of its own, about rounding
                failed += run >= 0
                other = None
            if run >= 0:
                ours.append(mine)
                theirs += [] if other is None else [other]
        yield {
            "name": name,
            "texts": len(exact),
            "log_z": log_z,
            "versions": versions,
            "ours": distance(ours, log_z, exact, seed),
            "peer": distance(theirs, log_z, exact, seed) if len(theirs) > 1 else None,
            "peer_failed": failed,
        }


@dataclasses.dataclass(frozen=True)
class Run:
    """One call: the estimate of γ(text) for each text, and how long it took."""

    mass: dict[str, float]
    seconds: float


def _ours(target: Any, prompt: list[int], particles: int, max_tokens: int, seed: int) -> Run:
    begun = time.perf_counter()
    try:
        post = target.sample(
            prompt, particles=particles, max_tokens=max_tokens, ess_threshold=0.5, seed=seed
        )
        z = math.exp(post.log_evidence)
        mass = {text: z * p for text, p in post.probabilities().items()}
    except AllDeadError:
        mass = {}
    return Run(mass, time.perf_counter() - begun)


def _peers(answer: dict[str, Any], particles: int) -> Run:
    mass: dict[str, float] = {}
    for text, log_w in zip(answer.get("texts", ()), answer.get("log_weights", ()), strict=True):
        mass[text] = mass.get(text, 0.0) + math.exp(log_w) / particles
    return Run(mass, answer["seconds"])


def distance(
    runs: Sequence[Run], log_z: float, exact: dict[str, float], seed: int
) -> dict[str, Any]:
    """How far the runs are from the exact posterior, and how far noise explains."""
    texts = sorted({*exact, *(t for run in runs for t in run.mass)})
    mass_S_X = np.array([[run.mass.get(t, 0.0) for t in texts] for run in runs])
    truth_X = np.array([exact.get(t, 0.0) for t in texts])
    z_S = mass_S_X.sum(1)
    found_X = _normalised(mass_S_X.mean(0))
    pick = np.random.default_rng(seed)
    noise = []
    for _ in range(_BOOTSTRAPS):
        again_X = _normalised(mass_S_X[pick.integers(len(runs), size=len(runs))].mean(0))
        noise.append(0.5 * float(np.abs(again_X - found_X).sum()))
    error = float(z_S.std(ddof=1)) / math.sqrt(len(runs))
    difference = float(z_S.mean()) - math.exp(log_z)
    return {
        "tv": 0.5 * float(np.abs(found_X - truth_X).sum()),
        "tv_noise": statistics.fmean(noise),
        "tv_limit": float(np.quantile(noise, 0.95)),
        "z_error": difference / error if error > 1e-9 * z_S.mean() else None,
        "seconds": statistics.median(run.seconds for run in runs),
        "outside": sum(t not in exact for t in texts),
    }


def _normalised(mass_X: np.ndarray) -> np.ndarray:
    total = mass_X.sum()
    return mass_X / total if total > 0 else mass_X
