"""What a reward buys: expected score against compute, five ways of using one score.

Every method has the same model, temperature, form of the answer (but for the first) and score,
and returns one answer:

* *best of N*: N draws of the model alone; the one of highest score. An answer that does not
  have the form scores 0.
* *local masking, reranked*: N draws under the mask; the one of highest score.
* *importance sampling*: the same draws, one of them chosen in proportion to its weight under
  the target (model, mask, exp(β · score)).
* *SMC, reward at the end*: the reward counts when an answer is complete.
* *SMC, reward at boundaries*: unfinished answers are judged, too, at the end of every part.

Of SMC both the sample, which is drawn by weight, and the particle of highest score are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smcprog.bench.rewards_curves import Cell, best_of, compare, summary, weighted
from smcprog.bench.rewards_tasks import Item, Task
from smcprog.errors import AllDeadError
from smcprog.potentials import Potential, Reward, Target
from smcprog.smc import Posterior, Scheduler

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["METHODS", "measure"]

FREE, MASKED, IMPORTANCE = "best of N", "local masking, reranked", "importance sampling"
END, BOUNDARIES = "SMC, reward at the end", "SMC, reward at boundaries"
METHODS = (FREE, MASKED, IMPORTANCE, END, f"{END}, best", BOUNDARIES, f"{BOUNDARIES}, best")

ROWS_AT_A_TIME = 128  # particles that are worked on together, whatever the method
RUNS = 8  # particles of one item that a size gets at least, in runs of their own


def measure(
    lm: LM,
    tasks: Sequence[Task],
    sizes: Sequence[int],
    items: int,
    *,
    temperature: float = 1.0,
    strength: float = 1.0,
    seed: int = 0,
    tell: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Run every method on every item of every task.

    Parameters
    ----------
    lm : LM
    tasks : sequence of Task
    sizes : sequence of int
        Values of N. The draws that are reranked go half as far again, so that they cover
        the compute of SMC.
    items : int
        Questions of every task, at least 2.
    temperature : float
        Of the model, in all methods.
    strength : float
        Factor on the β of every task.
    seed : int
        Of the items and of all draws.
    tell : callable, optional
        Told the stage, what is done and what there is to do.

    Returns
    -------
    dict
        ``tasks``, each with ``cells`` (a method and an N: ``rows`` of the model and ``seconds``
        of processor time for one answer, ``score`` with the bounds ``low`` and ``high`` of its
        95 % interval, ``perfect``, the share of answers whose score is 1) and ``against``: how
        much more SMC with the reward at boundaries scores than the other methods do at its
        rows, and at its seconds, with bounds.
    """
    report: dict[str, Any] = {
        "version": 1, "items": items, "temperature": temperature, "strength": strength,
        "seed": seed, "tasks": [],
    }  # fmt: skip
    for number, task in enumerate(tasks):
        if tell is not None:
            tell("tasks", number, len(tasks))
        bench = _Bench(lm, task, task.make(items, seed), temperature, strength * task.beta, seed)
        report["tasks"].append(bench.report(sorted(sizes)))
    if tell is not None:
        tell("tasks", len(tasks), len(tasks))
    return report


class _Bench:
    """One task."""

    def __init__(
        self,
        lm: LM,
        task: Task,
        items: Sequence[Item],
        temperature: float,
        beta: float,
        seed: int,
    ) -> None:
        self.task, self.items, self.beta, self.seed = task, items, beta, seed
        self.model = Target(lm, temperature=temperature)

    def report(self, sizes: Sequence[int]) -> dict[str, Any]:
        most = sizes[-1]
        # What is built once, and every prompt's keys and values, are not timed.
        self._run([self.model * item.grammar for item in self.items], 1, 1, max_tokens=2)
        cells = [
            *self._free([*_doubled(most)], most),
            *self._masked(sizes, most + (most + 1) // 2),
        ]
        for method, at in ((END, "end"), (BOUNDARIES, self.task.at)):
            for n in sizes:
                cells += self._smc(method, at, n)
        return {
            "task": self.task.name,
            "beta": self.beta,
            "cells": [summary(cell, self.seed) for cell in cells],
            "against": [
                compare(cells, method, rival, by, self.seed)
                for method in (BOUNDARIES, f"{BOUNDARIES}, best")
                for rival in (FREE, MASKED, IMPORTANCE)
                for by in ("rows", "seconds")
            ],
        }

    def _free(self, sizes: Sequence[int], pool: int) -> list[Cell]:
        posts, rows, seconds = self._run(
            [self.model] * len(self.items), pool, 1, ess_threshold=0.0, joint_draws=False
        )
        scores = [
            np.array([self._score(item, p.text) for p in post])
            for item, (post,) in zip(self.items, posts, strict=True)
        ]
        return [_reranked(FREE, n, scores, rows / pool, seconds / pool) for n in sizes]

    def _masked(self, sizes: Sequence[int], pool: int) -> list[Cell]:
        posts, rows, seconds = self._run(
            [self.model * item.grammar for item in self.items],
            pool, 1, ess_threshold=0.0, joint_draws=False,
        )  # fmt: skip
        scores, logw = [], []
        for item, (post,) in zip(self.items, posts, strict=True):
            scores.append(np.array([self._score(item, p.text) for p in post]))
            logw.append(np.array([p.log_weight for p in post]) + self.beta * scores[-1])
        cells = [
            _reranked(MASKED, n, scores, rows / pool, seconds / pool)
            for n in dict.fromkeys((*_doubled(sizes[-1]), pool))
        ]
        rng = np.random.default_rng(self.seed)
        for n in sizes:
            drawn = [weighted(s, w, n, rng) for s, w in zip(scores, logw, strict=True)]
            cells.append(
                Cell(
                    IMPORTANCE, n, n * rows / pool, n * seconds / pool,
                    np.array([d[0] for d in drawn]), np.array([d[1] for d in drawn]),
                )
            )  # fmt: skip
        return cells

    def _smc(self, method: str, at: str, n: int) -> list[Cell]:
        runs = -(-RUNS // n)
        targets = [
            self.model * item.grammar * Reward(_batch(item), self.beta, at=at)
            for item in self.items
        ]
        posts, rows, seconds = self._run(targets, n, runs)
        sample_I, sample_whole_I, best_I, best_whole_I = [], [], [], []
        for item, some in zip(self.items, posts, strict=True):
            scores = [np.array([self._score(item, p.text) for p in post]) for post in some]
            weights = [np.nan_to_num(np.asarray(post.weights)) for post in some]
            sample_I.append(np.mean([w @ s for w, s in zip(weights, scores, strict=True)]))
            sample_whole_I.append(
                np.mean([w @ (s == 1) for w, s in zip(weights, scores, strict=True)])
            )
            best_I.append(np.mean([s.max() for s in scores]))
            best_whole_I.append(np.mean([s.max() == 1 for s in scores]))
        rows, seconds = rows / runs, seconds / runs
        return [
            Cell(method, n, rows, seconds, np.array(sample_I), np.array(sample_whole_I)),
            Cell(f"{method}, best", n, rows, seconds, np.array(best_I), np.array(best_whole_I)),
        ]

    def _score(self, item: Item, text: str) -> float:
        return item.score(text) if item.grammar.accepts(text) else 0.0

    def _run(
        self, targets: Sequence[Potential], n: int, runs: int, **settings: Any
    ) -> tuple[list[list[Posterior]], float, float]:
        """Posteriors of every item, and rows of the model and seconds an item."""
        rows = n * len(targets) * runs  # the first token

        def count(event: Any) -> None:
            nonlocal rows
            rows += event.alive - event.finished  # they go on to the next round

        settings = {"max_tokens": self.task.max_tokens, **settings}
        begun = time.process_time()
        with Scheduler(max_running=max(1, ROWS_AT_A_TIME // n)) as scheduler:
            handles = [
                [
                    scheduler.submit(
                        target, item.prompt, particles=n, on_round=count,
                        seed=self.seed + 1000 * run + i, **settings,
                    )
                    for run in range(runs)
                ]
                for i, (target, item) in enumerate(zip(targets, self.items, strict=True))
            ]  # fmt: skip
            posts = [[_posterior(handle) for handle in some] for some in handles]
        seconds = time.process_time() - begun
        return posts, rows / len(targets), seconds / len(targets)


def _posterior(handle: Any) -> Posterior:
    try:
        post: Posterior = handle.result()
    except AllDeadError as error:
        post = error.posterior
    return post


def _batch(item: Item) -> Callable[[list[str]], list[float]]:
    return lambda texts: [item.score(text) for text in texts]


def _doubled(most: int) -> list[int]:
    """1, 2, 4 … and `most`."""
    return [*(1 << i for i in range(most.bit_length()) if 1 << i < most), most]


def _reranked(
    method: str, n: int, scores: Sequence[np.ndarray[Any, Any]], rows: float, seconds: float
) -> Cell:
    both = [best_of(s, n) for s in scores]
    return Cell(
        method, n, n * rows, n * seconds,
        np.array([b[0] for b in both]), np.array([b[1] for b in both]),
    )  # fmt: skip
