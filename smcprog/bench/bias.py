"""How far from the truth outputs are drawn, against what they cost.

The truth of a small target is enumerated. Each method then draws from it in many independent
runs, and the law of the output that it returns is estimated by the mean of the weights it gives
to every output. Methods differ in nothing else:

* *local masking*: tokens under the mask, weights ignored, as constrained decoding does it;
* *importance sampling*: the same runs, with their weights;
* *SMC*: resampling as well;
* *AWRS*: SMC with the grammar as a check that is asked about candidates, not as a mask.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from smcprog.bench.bias_cases import Case
from smcprog.bench.bias_truth import enumerate_outputs
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import BatchError
from smcprog.potentials import Check, Grammar, Potential, Request, Target
from smcprog.smc.posterior import Posterior

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["METHODS", "CountedCheck", "as_check", "distances", "measure"]

METHODS = ("local masking", "importance sampling", "SMC", "AWRS")
EXACT = 1e-6  # distances below it are rounding
LONGEST_TEXT = 4096  # bytes that a check of the benchmark may see

Law = dict[Hashable, float]


class CountedCheck(Check):
    """A check that counts.

    Attributes
    ----------
    candidates : int
        Tokens that were offered to it.
    texts : int
        Times that its function was called: a text that was judged before is known.
    """

    candidates = 0
    texts = 0

    def admits(
        self, state: Any, rows: Sequence[int], tokens: Sequence[int], ended: Sequence[bool]
    ) -> list[bool]:
        self.candidates += len(rows)
        return super().admits(state, rows, tokens, ended)


def as_check(grammar: Grammar) -> CountedCheck:
    """The language of a grammar as a predicate on text."""
    vocab = Vocabulary.from_tokens([*(bytes([b]) for b in range(256)), b"<eos>"], [256])
    request = Request([0], (0,), vocab, LONGEST_TEXT, truncate=False)

    def in_language(text: str, finished: bool) -> bool:
        check.texts += 1
        tokens = [*text.encode(), *([256] if finished else [])]
        state = grammar.start(request, 1)
        state, log_psi_1 = grammar.advance(
            state,
            torch.tensor([tokens], dtype=torch.int64),
            torch.tensor([len(tokens)]),
            torch.tensor([finished]),
        )
        grammar.release(state)
        return bool(log_psi_1[0] > -math.inf)

    check = CountedCheck(in_language, at="prefix", name=grammar.name)
    return check


def distances(
    laws: Sequence[Law], truth: Law, seed: int = 0, resamples: int = 200
) -> dict[str, float]:
    """Total variation and KL(method ‖ truth) of the mean of independent estimates of a law.

    Parameters
    ----------
    laws : sequence of dict
        One estimate a run: output → probability.
    truth : dict
        Output → probability. What is drawn and not in it was not enumerated, and counts for
        TV only.
    seed, resamples : int
        Of the bootstrap over runs that tells how large both would be without any bias.

    Returns
    -------
    dict
        ``tv`` and ``kl``, and ``tv_noise`` and ``kl_noise``: what is to be expected of a method
        without bias whose runs scatter as these do.
    """
    outputs = {y: i for i, y in enumerate(dict.fromkeys([*truth, *(y for m in laws for y in m)]))}
    p_Y = np.array([truth.get(y, 0.0) for y in outputs])
    q_R_Y = np.zeros((len(laws), len(outputs)))
    for r, law in enumerate(laws):
        for y, share in law.items():
            q_R_Y[r, outputs[y]] = share
    q_Y = q_R_Y.mean(0)
    rng = np.random.default_rng(seed)
    picks = rng.multinomial(len(laws), [1 / len(laws)] * len(laws), size=resamples)
    again_B_Y = picks @ q_R_Y / len(laws)
    tv_noise = float(np.abs(again_B_Y - q_Y).sum(1).mean() / 2)
    kl_noise = float(np.mean([_kl(again_Y, q_Y) for again_Y in again_B_Y]))
    return {
        "tv": float(np.abs(q_Y - p_Y).sum() / 2),
        "kl": _kl(q_Y, p_Y),
        "tv_noise": tv_noise,
        "kl_noise": kl_noise,
    }


def _kl(q_Y: Any, p_Y: Any) -> float:
    """KL(q ‖ p) of q given that what it draws was enumerated."""
    both = (q_Y > 0) & (p_Y > 0)
    q_Z = q_Y[both] / q_Y[both].sum()
    return float((q_Z * np.log(q_Z / p_Y[both])).sum())


@dataclasses.dataclass(frozen=True)
class _Runs:
    """Posteriors of one setting, what they cost, and how many runs died."""

    posts: list[Posterior]
    dead: int
    rows: float  # of the model, a run
    seconds: float  # a run


def _run(
    target: Potential, case: Case, n: int, runs: int, seed: int, batch: int, threshold: float
) -> _Runs:
    rows = 0

    def count(event: Any) -> None:
        nonlocal rows
        rows += event.alive - event.finished  # they go on to the next round

    posts: list[Posterior] = []
    begun = time.perf_counter()
    for first in range(seed, seed + runs, batch):
        seeds = list(range(first, min(first + batch, seed + runs)))
        rows += n * len(seeds)
        try:
            got: Iterable[Any] = target.sample(
                [case.prompt] * len(seeds), seed=seeds, particles=n, max_tokens=case.max_tokens,
                truncate=False, ess_threshold=threshold, on_round=count,
            )  # fmt: skip
        except BatchError as error:
            got = error.results
        posts += [post for post in got if isinstance(post, Posterior)]
    seconds = time.perf_counter() - begun
    return _Runs(posts, runs - len(posts), rows / runs, seconds / runs)


def _law(post: Posterior, by_text: bool, weighted: bool) -> Law:
    law: Law = defaultdict(float)
    alive = sum(p.alive for p in post)
    for particle, weight in zip(post, post.weights, strict=True):
        if particle.alive:
            key: Hashable = particle.text if by_text else tuple(particle.tokens)
            law[key] += float(weight) if weighted else 1 / alive
    return dict(law)


def measure(
    cases: Sequence[Case],
    particles: Sequence[int],
    runs: int,
    *,
    lm: LM | None = None,
    batch: int = 64,
    seed: int = 0,
    prefixes: int = 4096,
    tell: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Run every method on every case.

    Parameters
    ----------
    cases : sequence of Case
    particles : sequence of int
        Values of N.
    runs : int
        Independent runs of every cell.
    lm : LM, optional
        For the cases without a table.
    batch : int
        Runs that are worked on in one call.
    seed : int
    prefixes : int
        Most that are expanded for the truth.
    tell : callable, optional
        Told the stage, what is done and what there is to do.

    Returns
    -------
    dict
        ``cases``: each with its ``truth`` and its ``cells``. A cell's ``rows`` (of the model)
        and ``seconds`` are per run, and so are the ``candidates`` of a check, and the ``texts``
        that it judged; texts known from other runs are not judged again.
    """
    report: dict[str, Any] = {"version": 1, "runs": runs, "seed": seed, "cases": []}
    for number, case in enumerate(cases):
        if tell is not None:
            tell("cases", number, len(cases))
        report["cases"].append(_measure(case, particles, runs, lm, batch, seed, prefixes))
    if tell is not None:
        tell("cases", len(cases), len(cases))
    return report


def _measure(
    case: Case,
    particles: Sequence[int],
    runs: int,
    lm: LM | None,
    batch: int,
    seed: int,
    prefixes: int,
) -> dict[str, Any]:
    model: Any = case.table() if case.table is not None else lm
    by_text = case.table is None  # the tables are about spellings, too
    target, grammar = Target(model), case.grammar()
    request = Request(
        case.prompt, tuple(model.encode(case.prompt)), model.vocab, case.max_tokens, truncate=False
    )
    found = enumerate_outputs(
        target, grammar, request, share=1e-3 if by_text else 0.0, most=prefixes
    )
    total = sum(found.gamma.values())
    truth: Law = defaultdict(float)
    for y, weight in found.gamma.items():
        truth[request.output_text(y) if by_text else y] += weight / total
    cells: list[dict[str, Any]] = []
    for n in particles:
        plain = _run(target * grammar, case, n, runs, seed, batch, 0.0)
        # Ignoring the weights, each particle is a draw of its own.
        alone = dataclasses.replace(plain, rows=plain.rows / n, seconds=plain.seconds / n)
        if n == max(particles):
            cells.append(_cell("local masking", 1, alone, truth, by_text, weighted=False))
        cells.append(_cell("importance sampling", n, plain, truth, by_text))
        smc = _run(target * grammar, case, n, runs, seed, batch, 0.5)
        cells.append(_cell("SMC", n, smc, truth, by_text))
        check = as_check(grammar)
        awrs = _run(target * check, case, n, runs, seed, batch, 0.5)
        cell = _cell("AWRS", n, awrs, truth, by_text)
        cells.append({**cell, "candidates": check.candidates / runs, "texts": check.texts / runs})
    return {
        "case": case.name,
        "truth": {
            "outputs": len(truth),
            "log_evidence": math.log(total),
            "unexplored": found.unexplored / total,
            "prefixes": found.prefixes,
        },
        "cells": cells,
        "closer": _closer(cells, max(particles)),
    }


def _cell(
    method: str, n: int, runs: _Runs, truth: Law, by_text: bool, weighted: bool = True
) -> dict[str, Any]:
    laws = [_law(post, by_text, weighted) for post in runs.posts]
    return {
        "method": method,
        "particles": n,
        "rows": runs.rows,
        "seconds": runs.seconds,
        "dead_runs": runs.dead,
        **(distances(laws, truth) if laws else {}),
    }


def _closer(cells: Sequence[dict[str, Any]], n: int) -> dict[str, float | None]:
    """How many times closer SMC with N particles is than local masking, as far as noise tells."""
    by = {(c["method"], c["particles"]): c for c in cells}
    local, smc = by["local masking", 1], by["SMC", n]
    out: dict[str, float | None] = {}
    for key in ("tv", "kl"):
        out[key] = None
        if key in local and key in smc:
            least = max(smc[key], smc[f"{key}_noise"], EXACT)
            out[key] = local[key] / least
    return out
