"""Infilling side by side with llamppl: the same template, blanks, model and N.

A template is a text with blanks. Before each of its segments stands a blank of n tokens, none of
them EOS, after which the segment's tokens are observed: a particle is weighed by their
probability, and the population is resampled where its ESS is low. Both play it as a program of
their own kind: llamppl for each particle, token by token; here for the whole population, which
keeps keys and values, and for which a segment is one pass.
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
from torch import Tensor

from smcprog.bench.peers import Peer, peer_load
from smcprog.errors import AllDeadError
from smcprog.potentials import Potential, Request, Target
from smcprog.programs import program
from smcprog.validate import whole

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["TEMPLATES", "Filled", "Template", "compare_infilling", "infill"]


@dataclasses.dataclass(frozen=True)
class Template:
    """A beginning, and segments each of which has a blank before it."""

    beginning: str
    segments: tuple[str, ...]


TEMPLATES = {
    "letter": Template(
        "Dear Anna,\n\nI am writing to tell you that", (" on Monday", " and that we", " soon.")
    ),
    "story": Template(
        "Once upon a time there was a",
        (" who lived", " near the sea.", " One day,", " never came back."),
    ),
    "facts": Template(
        "The capital of France is", (". The river", " is called the", " and flows into the")
    ),
}


@dataclasses.dataclass(frozen=True)
class Filled:
    """One run: texts with their log-weights (whose mean is Ẑ), and how long it took."""

    texts: list[str]
    log_weights: list[float]
    seconds: float

    @property
    def log_evidence(self) -> float:
        top = max(self.log_weights)
        if top == -math.inf:
            return top
        return top + math.log(statistics.fmean(math.exp(w - top) for w in self.log_weights))


class NoEos(Potential):
    """ψ is 0 once an output holds an EOS token, else 1."""

    masks = True
    joins = True

    def start(self, request: Request, n: int) -> tuple[Tensor, int]:
        allowed_V = torch.ones(request.vocab.size, dtype=torch.bool)
        allowed_V[list(request.vocab.eos_ids)] = False
        return allowed_V, n

    def advance(
        self, state: tuple[Tensor, int], tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[tuple[Tensor, int], Tensor]:
        allowed_V, n = state
        real_N_T = torch.arange(tokens_N_T.shape[1]) < lengths_N.cpu().unsqueeze(1)
        dead_N = (~allowed_V[tokens_N_T.cpu()] & real_N_T).any(dim=1)
        return state, torch.zeros(n, dtype=torch.float64).masked_fill(dead_N, -math.inf)

    def fork(self, state: tuple[Tensor, int], ancestors_M: Tensor) -> tuple[Tensor, int]:
        return state[0], len(ancestors_M)

    def join(self, states: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, int]:
        return states[0][0], sum(n for _, n in states)

    def mask(self, state: tuple[Tensor, int]) -> Tensor:
        return state[0].expand(state[1], -1)


def infill(
    lm: LM, template: Template, *, particles: int = 16, blank: int = 3, seed: int = 0
) -> Filled:
    """Fill the blanks of a template.

    Parameters
    ----------
    template : Template
    particles : int
        N.
    blank : int
        Tokens of each blank.
    """
    free = Target(lm) * NoEos()

    @program
    def fill(p: Any) -> None:
        p.prompt(template.beginning)
        for segment in template.segments:
            p.extend(free, max_tokens=blank, truncate=True)
            p.observe(segment)
            if segment is not template.segments[-1]:
                p.resample(0.5)

    begun = time.perf_counter()
    try:
        post = fill(particles=particles, seed=seed)
    except AllDeadError as error:
        post = error.posterior
    seconds = time.perf_counter() - begun
    # Equal to the peer's weights, whose mean is Ẑ, too.
    log_z, n = post.log_evidence, len(post.particles)
    weights = [float(w) for w in post.weights]
    logs = [log_z + math.log(n * w) if w > 0 else -math.inf for w in weights]
    return Filled([p.text for p in post.particles], logs, seconds)


def compare_infilling(
    lm: LM,
    peer: Peer,
    *,
    particles: int = 16,
    runs: int = 8,
    blank: int = 3,
    tuned: bool = False,
    seed: int = 0,
    on_stage: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Both on each template, in turn.

    Parameters
    ----------
    peer : Peer
        That has llamppl.
    runs : int
        Calls of each, with seeds `seed`, `seed` + 1, …
    tuned : bool
        Keep the prompt's keys and values for the peer, and let it wait one millisecond for a
        batch to fill. Else it is as it comes.
    others
        As for `infill`.

    Yields
    ------
    dict
        ``name``, ``tokens`` (of the template), ``seconds`` of a median call for ``ours`` and
        ``peer``, their ``ratio``, log of the mean Ẑ of each (``log_z``) and the difference of
        the means in standard errors (``z_difference``), ``examples``.
    """
    whole("runs", runs, 2, 10_000)
    on_stage("loading the peer's model")
    batching = {"batch_size": particles, "timeout": 0.001} if tuned else {}
    versions = peer_load(lm, peer, batching)
    for name, template in TEMPLATES.items():
        prompt = lm.encode(template.beginning)
        segments = [lm.encode(s) for s in template.segments]
        shared: dict[str, int] = {"particles": particles, "blank": blank}
        ours, theirs = [], []
        for run in range(-1, runs):  # the first warms both up
            on_stage(f"{name}: run {run + 1} of {runs}")
            mine = infill(lm, template, **shared, seed=seed + run + 1)
            answer = peer.ask(
                "infill",
                prompt=template.beginning,
                prompt_ids=prompt,
                segments=segments,
                eos_ids=list(lm.vocab.eos_ids),
                keep_prompt=tuned,
                seed=seed + run + 1,
                **shared,
            )
            if run >= 0:
                ours.append(mine)
                theirs.append(Filled(answer["texts"], answer["log_weights"], answer["seconds"]))
        yield _row(name, ours, theirs) | {
            "tokens": len(prompt) + sum(map(len, segments)),
            "versions": versions,
        }


def _row(name: str, ours: Sequence[Filled], theirs: Sequence[Filled]) -> dict[str, Any]:
    seconds = [statistics.median(f.seconds for f in arm) for arm in (ours, theirs)]
    z_S = [np.exp([f.log_evidence for f in arm]) for arm in (ours, theirs)]
    error = math.hypot(*(float(z.std(ddof=1)) / math.sqrt(len(z)) for z in z_S))
    difference = float(z_S[0].mean() - z_S[1].mean())
    return {
        "name": name,
        "seconds": {"ours": seconds[0], "peer": seconds[1]},
        "ratio": seconds[1] / seconds[0],
        "log_z": {
            arm: math.log(z.mean()) if z.mean() > 0 else None
            for arm, z in zip(("ours", "peer"), z_S, strict=True)
        },
        "z_difference": difference / error if error > 1e-9 * z_S[0].mean() else None,
        "examples": [
            max(zip(f.log_weights, f.texts, strict=True))[1] for f in (ours[0], theirs[0])
        ],
    }
