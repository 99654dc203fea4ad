"""One timed run of a cell in the engine, with what it says of speed and quality."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smcprog.bench.cells import Cell
from smcprog.bench.clock import ForwardClock, Ran
from smcprog.potentials import Target

if TYPE_CHECKING:
    from smcprog.drafts.fed import FedDraft
    from smcprog.engine.lm import LM
    from smcprog.smc.posterior import Posterior
    from smcprog.smc.settings import RoundEvent

__all__ = ["Output", "Round", "Run", "output_of", "run_cell"]


@dataclasses.dataclass(frozen=True)
class Round:
    """One round of a wave.

    Attributes
    ----------
    seconds : float
    ran : tuple of Ran
        Its forwards; none if no clock watched.
    rows : int
        Particles that ran at its start, over all requests.
    length : int
        Tokens of the longest of them at its start.
    """

    seconds: float
    ran: tuple[Ran, ...]
    rows: int
    length: int

    @property
    def forwards(self) -> float:
        """Seconds inside forwards."""
        return sum(one.seconds for one in self.ran)

    @property
    def draft_tokens(self) -> int:
        """K: forwards of the draft."""
        return sum(one.model == 1 for one in self.ran)


@dataclasses.dataclass(frozen=True)
class Output:
    """What one request of a run gave.

    Attributes
    ----------
    prompt : int
        Number of its prompt.
    tokens, logp : float
        Tokens of the returned output, and the sum of their log-probabilities under the target:
        their expectation over which particle is returned.
    particle_tokens : int
        Tokens of all its particles.
    ess, distinct : float
        Mean over rounds of ESS/N; share of different outputs among the particles at the end.
    """

    prompt: int
    tokens: float
    logp: float
    particle_tokens: int
    ess: float
    distinct: float


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a cell.

    Attributes
    ----------
    seconds, prefill : float
        Wall-clock of the whole call, and of the prompts' share in it (NaN if not known).
    outputs : list of Output
    rounds : list of Round
        Empty outside the engine.
    context : float
        Mean length of the prompts in tokens.
    """

    seconds: float
    prefill: float
    outputs: list[Output]
    rounds: list[Round]
    context: float

    @property
    def tokens(self) -> float:
        """Tokens of the returned outputs, over all requests."""
        return sum(o.tokens for o in self.outputs)


def run_cell(
    cell: Cell,
    lm: LM,
    draft: LM | FedDraft | None,
    prompts: Sequence[tuple[int, Any]],
    *,
    max_tokens: int,
    seed: int,
    scheduler: Any = None,
    clock: ForwardClock | None = None,
    watch: bool = True,
) -> tuple[Run, list[Posterior]]:
    """Run a cell of the engine once.

    Parameters
    ----------
    cell : Cell
        Not of mode ``generate``.
    lm, draft : LM
    prompts : list of (number, prompt)
        One for each request of the cell.
    max_tokens : int
    seed : int
        Requests get it and the seeds after it.
    scheduler : Scheduler, optional
        Submit the requests there one by one, rather than in one call.
    clock : ForwardClock, optional
        Watching the models, to tell forwards from the rest of each round.
    watch : bool, default True
        Observe every round. An observer is told of a round when it is over, so rounds that could
        overlap with the host's work then do not.
    """
    seen = _Watch(cell.particles * len(prompts), clock or ForwardClock())
    settings: dict[str, Any] = {"particles": cell.particles, "max_tokens": max_tokens}
    if cell.mode.drafts:
        settings |= {
            "draft": draft,
            "draft_tokens": cell.draft_tokens,
            "coupling": cell.mode.coupling,
            "draft_paths": cell.mode.paths,
        }
    target = Target(lm, temperature=cell.temperature)
    asked = [prompt for _, prompt in prompts]
    seeds = [seed + i for i in range(len(prompts))]
    begun = time.perf_counter()
    if scheduler is not None:
        handles = [
            scheduler.submit(target, p, seed=s, **settings)
            for p, s in zip(asked, seeds, strict=True)
        ]
        posts = [handle.result() for handle in handles]
    else:
        seen.begin()
        observer = seen.on_round if watch else None
        posts = target.sample(asked, seed=seeds, on_round=observer, **settings)
    seconds = time.perf_counter() - begun
    outputs = [output_of(post, number) for post, (number, _) in zip(posts, prompts, strict=True)]
    prefill = math.nan if scheduler is not None else float(posts[0].timing["prefill_s"])
    one_wave = len({post.timing.get("total_s") for post in posts}) == 1
    rounds = seen.rounds(prefill) if one_wave and watch and scheduler is None else []
    context = float(np.mean([len(lm.encode(p)) for p in asked]))
    return Run(seconds, prefill, outputs, rounds, context), posts


def output_of(post: Posterior, prompt: int) -> Output:
    """The figures of one posterior."""
    weights = post.weights
    lengths = np.array([len(p.tokens) for p in post.particles], dtype=float)
    logp = np.array([sum(p.logprobs) for p in post.particles])
    n = len(post.particles)
    return Output(
        prompt=prompt,
        tokens=float(weights @ lengths),
        logp=float(weights @ logp),
        particle_tokens=int(lengths.sum()),
        ess=float(np.mean([r.ess for r in post.rounds])) / n,
        distinct=len({tuple(p.tokens) for p in post.particles}) / n,
    )


class _Watch:
    """Turns the events of a call into rounds."""

    def __init__(self, rows: int, clock: ForwardClock) -> None:
        self._rows = rows
        self._clock = clock
        self._begun = 0.0
        self._events: dict[int, list[tuple[float, int, int, int]]] = {}

    def begin(self) -> None:
        self._begun = time.perf_counter()

    def on_round(self, event: RoundEvent) -> None:
        running = event.alive - event.finished
        self._events.setdefault(event.round, []).append(
            (time.perf_counter(), len(self._clock.ran), running, event.tokens)
        )

    def rounds(self, prefill: float) -> list[Round]:
        """The rounds of a call that was one wave."""
        found: list[Round] = []
        last, rows, length = self._begun + prefill, self._rows, 0
        seen: int | None = None  # nothing but the prompts' forwards before the first round
        for number in sorted(self._events):
            events = self._events[number]
            ended, count, _, _ = events[-1]
            ran = () if seen is None else tuple(self._clock.ran[seen:count])
            found.append(Round(ended - last, ran, rows, length))
            last, seen = ended, count
            rows = sum(running for _, _, running, _ in events)
            length = max(tokens for _, _, _, tokens in events)
        return found
