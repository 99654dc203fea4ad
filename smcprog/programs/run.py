"""One run of a program: what its populations have in common, and where it ends."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.errors import AllDeadError, CountsTwiceWarning, SettingError, StepLimitError
from smcprog.limits import MAX_OUTPUT_TOKENS, MAX_PARTICLES
from smcprog.particles import ess
from smcprog.potentials.base import Potential
from smcprog.potentials.product import Product
from smcprog.programs.options import Options
from smcprog.smc.draws import Draws
from smcprog.smc.posterior import RoundInfo

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.programs.state import PopulationState
    from smcprog.programs.tapes import Key, Tapes
    from smcprog.smc.call import Call

__all__ = ["ProgramEnded", "Run", "factors_of"]


class ProgramEnded(BaseException):
    """Unwinds a program, or a branch, in which no particle goes on: what it has is the result."""

    def __init__(self, population: PopulationState) -> None:
        super().__init__()
        self.population = population


class Run:
    """What all verbs of a run share.

    Parameters
    ----------
    options : Options
    seed : int
    make_draws : callable, optional
        In place of `Draws`, for tests that enumerate every draw.
    breathe : callable, optional
        Called between rounds.
    reserve : callable, optional
        Called with the most pages of models that the run is about to need for the first time,
        and what a round's logits may come to; waits until they are free.

    Attributes
    ----------
    rounds : int
        Rounds so far: no uniform may be used twice.
    lm : LM or None
        The model that was last asked: its tokens are those of texts that come from elsewhere.
    death : (str, str, int)
        Verb, potential and token position of the last deaths.
    """

    def __init__(
        self,
        options: Options,
        seed: int,
        make_draws: Callable[..., Draws] = Draws,
        breathe: Callable[[], None] = lambda: None,
        reserve: Callable[[dict[LM, int], int, list[Any]], None] | None = None,
    ) -> None:
        self.options = options
        self.seed = seed
        self.make_draws = make_draws
        self.breathe = breathe
        self._reserve = reserve
        self.prompt: Any = None
        self.steps = 0
        self.rounds = 0
        self.lm: LM | None = None
        self.records: list[RoundInfo] = []
        self.death = ("", "", 0)
        self.rows = options.particles  # of all populations together
        self.reshaped = False  # rounds alone do not tell the genealogy
        self._keys: dict[Key, int] = {}
        self._beside: dict[LM, int] = {}
        self._factors: dict[int, Potential] = {}
        self._weighed: dict[int, Potential] = {}
        self._warned: set[int] = set()
        self._tapes: list[Tapes] = []
        self._verb = ""

    # ------------------------------------------------------------------ steps

    def step(self, verb: str) -> None:
        """A verb begins.

        Raises
        ------
        StepLimitError
        """
        self.steps += 1
        self._verb = f"step {self.steps} ({verb})"
        most = self.options.max_steps
        if self.steps > most:
            raise StepLimitError(
                f"the program has taken max_steps={most} steps and is not done: a loop may never "
                "end; leave it when no particle goes on (p.running), or raise max_steps",
                steps=most,
            )

    def note_death(self, potential: str, position: int) -> None:
        """Particles have died."""
        self.death = (self._verb, potential, position)

    def check_alive(self, p: PopulationState) -> None:
        """Raise if the whole population is dead.

        Raises
        ------
        AllDeadError
        """
        if p.parent is not None or bool((p.log_w_N > -math.inf).any()):
            return
        from smcprog.programs.result import posterior_of

        verb, potential, position = self.death
        raise AllDeadError(
            f"all {p.n} particles are dead: in {verb}, {potential} gave the last of them weight "
            f"zero at token {position} of the text; more particles, or a target less at odds with "
            "the model, would help",
            posterior=posterior_of(p),
            potential=potential,
            position=position,
        )

    # ----------------------------------------------------------------- random

    def next_round(self) -> int:
        """A round number of its own for a verb that draws once."""
        self.rounds += 1
        return self.rounds - 1

    def seeds(self, count: int) -> Tensor:
        """The seed, once a row."""
        return torch.full((count,), self.seed, dtype=torch.int64)

    # ----------------------------------------------------------------- memory

    def keep(self, tapes: Tapes) -> Tapes:
        """Tapes that the run closes at its end, whatever happens."""
        self._tapes.append(tapes)
        return tapes

    def close(self) -> None:
        """Give all memory back."""
        for tapes in self._tapes:
            tapes.close()

    def need(
        self,
        keys: list[Key],
        call: Call,
        copies: int = 1,
        longest: int = 0,
        memory: Mapping[LM, int] | None = None,
    ) -> None:
        """The run is about to use models; wait until there is room for them.

        Parameters
        ----------
        keys : list of (LM, prompt tokens)
            With repetition where one model keeps several rows a particle.
        call : Call
            Whose targets they are.
        copies, longest : int
            Copies of each row beside it, and how many tokens they take, at most.
        memory : mapping, optional
            Pages that factors hold in models of their own, until the verb is done.
        """
        if self._reserve is None:
            return
        counts: dict[Key, int] = {}
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        pages: dict[LM, int] = {}
        for key, count in counts.items():
            more = count - self._keys.get(key, 0)
            if more > 0:
                self._keys[key] = count
                need = key[0].pages_needed(len(key[1]), self.rows, self.options.max_tokens)
                pages[key[0]] = pages.get(key[0], 0) + more * need
        beside = dict(memory or {})
        if copies > 1:  # each copy has a tail page, and pages for its tokens
            rows = self.rows * copies
            for lm, _ in keys:
                need = lm.pages_needed(0, rows, longest) + lm.pages_needed(0, rows, 1)
                beside[lm] = beside.get(lm, 0) + need
        for lm, more in self._beyond(beside).items():
            pages[lm] = pages.get(lm, 0) + more
        paths = call.settings.draft_paths if call.draft_tokens else 1  # counted by the call
        self._reserve(pages, call.logits * copies // paths, call.target_engines)

    def borrow(self, memory: Mapping[LM, int]) -> None:
        """The run is about to use so many pages for a moment; wait until they are free."""
        if self._reserve is not None:
            self._reserve(self._beyond(memory), 0, [])

    def _beyond(self, memory: Mapping[LM, int]) -> dict[LM, int]:
        """What is lacking of pages for a moment; those of earlier moments are there again."""
        more = {lm: max(0, need - self._beside.get(lm, 0)) for lm, need in memory.items()}
        for lm, count in more.items():
            self._beside[lm] = self._beside.get(lm, 0) + count
        return more

    def grow(self, rows: int) -> None:
        """So many more particles are about to be made.

        Raises
        ------
        SettingError
        """
        total = self.rows + rows
        if total > MAX_PARTICLES or total * self.options.max_tokens > MAX_OUTPUT_TOKENS:
            raise SettingError(
                f"fork: {total} particles of up to {self.options.max_tokens} tokens are more than "
                "one program may have; fork less, or lower particles or max_tokens"
            )
        if self._reserve is not None:
            pages: dict[LM, int] = {}
            for (lm, tokens), count in self._keys.items():
                need = lm.pages_needed(len(tokens), rows, self.options.max_tokens)
                pages[lm] = pages.get(lm, 0) + count * need
            self._reserve(pages, 0, [])
        self.rows = total

    # ---------------------------------------------------------------- factors

    def uses(self, target: Product) -> None:
        """An extension has these factors."""
        self._factors.update({id(f): f for f in target.factors})
        self._warn_of_twins()

    def weighs(self, potential: Potential) -> None:
        """A potential is weighed; perhaps it was a factor before."""
        self._weighed.update({id(f): f for f in factors_of(potential)})
        self._warn_of_twins()

    def _warn_of_twins(self) -> None:
        for key in self._factors.keys() & self._weighed.keys() - self._warned:
            self._warned.add(key)
            warnings.warn(
                f"{self._factors[key].name} is a factor of an extension and is weighed as well: "
                "it counts twice. Leave one of them out, or ignore this if the target is meant so",
                CountsTwiceWarning,
                stacklevel=5,
            )

    # ---------------------------------------------------------------- records

    def record(
        self,
        p: PopulationState,
        log_w_N: Tensor,
        ancestors_N: Tensor | None,
        length: int,
    ) -> None:
        """Note what became of the population in one round.

        Parameters
        ----------
        p : Population
        log_w_N : Tensor
            Before resampling.
        ancestors_N : Tensor or None
            None where there was none.
        length : int
        """
        if p.parent is not None:
            return
        self.records.append(
            RoundInfo(
                ess=float(ess(log_w_N[None])[0]),
                resampled=ancestors_N is not None,
                ancestors=list(range(p.n)) if ancestors_N is None else ancestors_N.tolist(),
                log_evidence=float(log_w_N.logsumexp(0)) - math.log(self.options.particles),
                length=length,
                alive=int((log_w_N > -math.inf).sum()),
                log_weights=log_w_N.tolist(),
            )
        )

    @contextlib.contextmanager
    def closing(self) -> Iterator[Run]:
        """Close it at the end."""
        try:
            yield self
        finally:
            self.close()


def factors_of(potential: Potential) -> tuple[Potential, ...]:
    """The factors of a product, or the one."""
    return potential.factors if isinstance(potential, Product) else (potential,)
