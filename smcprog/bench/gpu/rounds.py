"""Rounds of one cell on a device: seconds, tokens, idle time, and the roofline's bound."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smcprog.bench.gpu.bounds import Bound, Rows, round_bound
from smcprog.bench.gpu.cells import GpuCell, output_tokens
from smcprog.bench.gpu.launches import LaunchClock, forget_programs
from smcprog.bench.outside import Generate
from smcprog.bench.pair import endless
from smcprog.bench.runs import Run, output_of, run_cell

if TYPE_CHECKING:
    from smcprog.bench.gpu.machine import Machine
    from smcprog.bench.gpu.pair import LoadedPair
    from smcprog.smc.posterior import Posterior

__all__ = ["CellRunner", "Timed"]

PLAIN_ROUNDS = 96  # of a run without a draft, at most


@dataclasses.dataclass(frozen=True)
class Timed:
    """One timed run.

    Attributes
    ----------
    decode, prompt : float
        Seconds after the first token, and up to it.
    launched : bool
        Whether rounds were of fixed shape, one launch each; else they went step by step.
    captured : bool or None
        Whether their launches were graphs.
    rounds : int
        Rounds after the one of the first token.
    waves : int
        How often requests were put together; 1 if all were worked on at once.
    tokens : float
        Mean tokens of a particle.
    ess : float
        Mean ESS/N.
    resampled : float
        Share of the rounds that resampled.
    idle : float or None
        Share of the time between the first launch and the end of the last in which no launched
        round ran; None where there were no launches.
    """

    decode: float
    prompt: float
    launched: bool
    captured: bool | None
    rounds: int
    waves: int
    tokens: float
    ess: float
    resampled: float
    idle: float | None


class CellRunner:
    """Runs cells of one pair.

    Parameters
    ----------
    pair : LoadedPair
    machine : Machine
    rounds : int
        Rounds of every run with a draft, if all drafts are kept.
    repeats : int
        Timed runs of a cell, at most; one more goes before.
    patience : float
        Seconds after which a cell is not repeated again.
    """

    def __init__(
        self,
        pair: LoadedPair,
        machine: Machine,
        rounds: int = 16,
        repeats: int = 3,
        patience: float = 6.0,
    ) -> None:
        self._pair = pair
        self._machine = machine
        self._rounds = rounds
        self._plain_rounds = min(PLAIN_ROUNDS, 6 * rounds)
        self._repeats = repeats
        self._patience = patience
        self._prompts: dict[tuple[int, int], list[int]] = {}

    def run(self, what: GpuCell) -> dict[str, Any]:
        """Everything about one cell, with its bound."""
        cell, begun = what.cell, time.perf_counter()
        k = int(cell.draft_tokens) if cell.mode.drafts else 0
        tokens = output_tokens(self._rounds if k else self._plain_rounds, k)
        once = self._outside if cell.mode.outside else self._inside
        runs: list[Timed] = []
        with self._pair.variant(what.cascade, what.graphs), endless(*self._pair.models):
            once(what, tokens, 0)  # whatever is built on first use
            for repeat in range(self._repeats):
                runs.append(once(what, tokens, 1 + repeat))
                if time.perf_counter() - begun > self._patience:
                    break
        decode = statistics.median(r.decode for r in runs)
        rounds, last = statistics.median(r.rounds for r in runs), runs[-1]
        bound = self._bound(what, tokens)
        each = [r.decode / max(1, r.rounds) for r in runs]
        per_round = statistics.median(each)
        decoded = last.tokens - 1
        idle = [r.idle for r in runs if r.idle is not None]
        return {
            "name": what.name,
            "kind": "rounds",
            "mode": what.mode,
            "particles": cell.particles,
            "draft_tokens": int(cell.draft_tokens),
            "requests": cell.requests,
            "prompt_tokens": what.prompt_tokens,
            "cascade": None if cell.mode.outside else what.cascade,
            "graphs": None if cell.mode.outside else what.graphs,
            "launched": last.launched,
            "captured": last.captured,
            "tokens": last.tokens,
            "rounds": rounds,
            "waves": last.waves,
            "round_ms": 1e3 * per_round,
            "round_ms_repeats": [1e3 * seconds for seconds in each],
            "prompt_ms": 1e3 * statistics.median(r.prompt for r in runs),
            "speed": decoded / decode,
            "throughput": cell.requests * decoded / decode,
            "particle_throughput": cell.requests * cell.particles * decoded / decode,
            "speed_with_prompt": last.tokens / (decode + last.prompt),
            "tokens_per_round": decoded / max(1.0, rounds),
            "ess": last.ess,
            "resampled": last.resampled,
            "idle": statistics.median(idle) if idle else None,
            "roofline_ms": 1e3 * bound.seconds,
            "bandwidth_ms": 1e3 * bound.memory,
            "limited_by": bound.limited_by,
            "share": bound.seconds / per_round,
            "bandwidth_share": bound.memory / per_round,
        }

    def clear(self) -> None:
        """Free what a cell left behind: the next one has another form."""
        forget_programs(self._pair.lm)

    def _bound(self, what: GpuCell, tokens: int) -> Bound:
        """Of a round in the middle of the run, with all rows running."""
        cell, k = what.cell, int(what.cell.draft_tokens) if what.cell.mode.drafts else 0
        target, draft = self._pair.sizes
        rows = Rows(cell.particles * cell.requests, tokens / 2, what.prompt_tokens, cell.requests)
        return round_bound(self._machine.accelerator, target, draft, rows, k)

    def _asked(self, what: GpuCell) -> list[tuple[int, list[int]]]:
        vocab = self._pair.lm.vocab.size
        found = []
        for i in range(what.cell.requests):
            key = (i, what.prompt_tokens)
            if key not in self._prompts:
                rng = np.random.default_rng(key)
                self._prompts[key] = rng.integers(vocab, size=what.prompt_tokens).tolist()
            found.append((i, self._prompts[key]))
        return found

    def _inside(self, what: GpuCell, tokens: int, seed: int) -> Timed:
        pair = self._pair
        with LaunchClock(pair.lm) as clock:
            _, posts = run_cell(
                what.cell,
                pair.lm,
                pair.draft if what.cell.mode.drafts else None,
                self._asked(what),
                max_tokens=tokens,
                seed=1000 * seed,
                watch=False,
            )
        return _timed(posts, clock)

    def _outside(self, what: GpuCell, tokens: int, seed: int) -> Timed:
        pair = self._pair
        other = Generate(
            pair.lm, pair.models_of_transformers[0],
            pair.models_of_transformers[1] if what.assisted else None,
        )  # fmt: skip

        def run(count: int) -> Run:
            return other.run(
                what.cell, self._asked(what), max_tokens=count, seed=seed, quality=False
            )[0]

        first, whole = run(1), run(tokens)
        made = whole.tokens / len(whole.outputs)
        decode = max(whole.seconds - first.seconds, 1e-9)
        return Timed(decode, first.seconds, False, None, int(made) - 1, 1, made, 1.0, 0.0, None)


def _timed(posts: Sequence[Posterior], clock: LaunchClock) -> Timed:
    """From what the posteriors of one call say; requests of one wave tell the same times."""
    # Rounds of fixed shape draw the first token with the prompt, others in a round of its own.
    launched = clock.launches > 0
    until = "prefill_s" if launched else "first_token_s"
    waves = {tuple(sorted(p.timing.items())): p for p in posts}
    decode = prompt = 0.0
    rounds = 0
    for post in waves.values():
        first = post.timing[until]
        decode += post.timing["total_s"] - first
        prompt += first
        mates = [p for p in posts if p.timing == post.timing]
        rounds += max(len(p.rounds) for p in mates) - 1
    outputs = [output_of(p, i) for i, p in enumerate(posts)]
    every = [r.resampled for p in posts for r in p.rounds]
    return Timed(
        decode=decode,
        prompt=prompt,
        launched=launched,
        captured=clock.captured if launched else None,
        rounds=rounds,
        waves=len(waves),
        tokens=float(np.mean([o.tokens for o in outputs])),
        ess=float(np.mean([o.ess for o in outputs])),
        resampled=float(np.mean(every)),
        idle=clock.idle(),
    )
