"""Any potential of genlm-control as a factor: log ψ is its `prefix`, log φ its `complete`."""

from __future__ import annotations

import contextvars
import dataclasses
import math
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SettingError
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.genlm.calls import Calls
from smcprog.potentials.genlm.tokens import TokenItems, Words, kind_of
from smcprog.validate import real, whole

__all__ = ["Genlm", "is_genlm"]

GUIDES = ("mask", "reject", "weights")
DEFAULT_CHECKS, MOST_CHECKS = 64, 1 << 16
SHORTEST_CALL, LONGEST_CALL = 1e-3, 1e9

Context = tuple[Any, ...]  # of their items
Asked = tuple[Context, bool]  # a context, and whether it is complete


def is_genlm(value: Any) -> bool:
    """Whether a value looks like a potential of genlm-control, which need not be installed."""
    methods = ("prefix", "complete", "batch_score", "batch_logw_next")
    return hasattr(value, "vocab_eos") and all(callable(getattr(value, m, None)) for m in methods)


@dataclasses.dataclass(frozen=True, eq=False)
class Binding:
    """Their potential, ready for one token-id map of ours."""

    potential: Any
    tokens: TokenItems
    words: Words | None
    eos_ids: frozenset[int]


@dataclasses.dataclass(eq=False)
class GenlmState:
    """Outputs so far in their items; None once one holds what their vocabulary does not."""

    binding: Binding
    contexts: list[Context | None]
    log_psi_N: Tensor | None = None
    logw_N_V: Tensor | None = None
    known: dict[Asked, float] = dataclasses.field(default_factory=dict)  # asked ahead of time


class Genlm(Potential):
    """A potential of genlm-control (0.4.1 or later) as a factor.

    ``Target(lm) * potential`` makes one without being told; this class has the options.

    Parameters
    ----------
    potential : genlm.control.Potential
        Over tokens of the target's tokenizer, byte strings, or single bytes. A token that its
        vocabulary does not hold has weight zero.
    guide : {"mask", "reject", "weights"}, optional
        What tokens are drawn by. None: by the other factors; this one weighs each block, in one
        call of `batch_score` a round. "reject": by the others, each token asked about before it
        is taken (rejection sampling with proper weights). "mask": under its support, from
        `batch_logw_next` at every token. "weights": from the product with its `logw_next`;
        drafted tokens are weighed only, so that a round costs one call of each.
    max_checks : int
        Most tokens asked about for one draw, with ``guide="reject"``.
    time_limit : float, optional
        Seconds that one call may take; the request fails where it takes longer.
    name : str, optional
        What errors call it; by default the class's name.

    Notes
    -----
    Its coroutines run on one private event loop that all such factors share, in a copy of the
    context variables at the time this object is made: a `PromptedLLM` keeps the prompt that it
    had then. Contexts begin after the prompt of the request, which it does not see.

    A value of NaN counts as −∞, with a RuntimeWarning.

    Raises
    ------
    SettingError
        `potential` is none of genlm-control, or an option is out of range. When sampling: its
        vocabulary cannot be translated.
    VocabularyMismatchError
        When sampling: its tokens are those of another tokenizer.
    PotentialError
        When sampling: a call raised or took too long, or a value was +∞ or of a wrong shape.
    """

    joins = True
    aside = False  # its loop is a thread of its own, where calls of several requests meet

    def __init__(
        self,
        potential: Any,
        *,
        guide: str | None = None,
        max_checks: int = DEFAULT_CHECKS,
        time_limit: float | None = None,
        name: str | None = None,
    ) -> None:
        if not is_genlm(potential):
            raise SettingError(
                f"Genlm takes a potential of genlm-control, got {type(potential).__name__}"
            )
        if guide is not None and guide not in GUIDES:
            raise SettingError(f"guide must be None or one of {', '.join(GUIDES)}, got {guide!r}")
        self.potential = potential
        self.guide = guide
        self.masks = guide == "mask"
        self.rejects = guide == "reject"
        self.max_checks = whole("max_checks", max_checks, 1, MOST_CHECKS)
        if time_limit is not None:
            self.time_limit = real("time_limit", time_limit, SHORTEST_CALL, LONGEST_CALL)
        self._name = name or type(potential).__name__
        self._terminal = bool(getattr(potential, "is_terminal_only", lambda: False)())
        self._calls = Calls(self.name, contextvars.copy_context(), self.time_limit)
        self._bindings: weakref.WeakKeyDictionary[Vocabulary, Binding] = weakref.WeakKeyDictionary()

    @property
    def name(self) -> str:
        return f"Genlm({self._name})"

    def __repr__(self) -> str:
        return self.name if self.guide is None else f"Genlm({self._name}, guide={self.guide!r})"

    @property
    def lm_like(self) -> bool:
        """Whether tokens are drawn from its `logw_next`."""
        return self.guide == "weights"

    # ------------------------------------------------------------------ the contract

    def start(self, request: Request, n: int) -> GenlmState:
        binding = self._bindings.get(request.vocab)
        if binding is None:
            binding = self._bindings[request.vocab] = self._bind(request.vocab)
        return GenlmState(binding, [()] * n)

    def advance(
        self, state: GenlmState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[GenlmState, Tensor]:
        old: list[float | None] = [None] * len(state.contexts)
        if state.log_psi_N is not None:
            old = state.log_psi_N.tolist()
        lengths, ends = lengths_N.tolist(), ended_N.tolist()
        logw_N_V, eos_ids = state.logw_N_V, state.binding.eos_ids
        asked: dict[int, Asked] = {}  # row → what its value depends on
        values = [-math.inf] * len(old)
        for i, row in enumerate(tokens_N_T.tolist()):
            before = old[i]
            if before is not None and (before == -math.inf or not lengths[i]):
                values[i] = before
                continue
            state.contexts[i] = context = self._longer(
                state.binding, state.contexts[i], row[: lengths[i]], ends[i]
            )
            if context is None:
                continue
            told = logw_N_V is not None and lengths[i] == 1 and (row[0] in eos_ids) == ends[i]
            if before is None or logw_N_V is None or not told:
                asked[i] = (context, bool(ends[i]))
            else:  # its `logw_next` has said it
                values[i] = before + float(logw_N_V[i, row[0]])
        answers = self._scores(state, list(asked.values()))
        for i, answer in zip(asked, answers, strict=True):
            values[i] = answer
        log_psi_N = torch.tensor(values, dtype=torch.float64)
        return GenlmState(state.binding, state.contexts, log_psi_N), log_psi_N

    def fork(self, state: GenlmState, ancestors_M: Tensor) -> GenlmState:
        index_M = ancestors_M.cpu()
        log_psi, logw = state.log_psi_N, state.logw_N_V
        return GenlmState(
            state.binding,
            [state.contexts[i] for i in index_M.tolist()],
            None if log_psi is None else log_psi[index_M],
            None if logw is None else logw[index_M],
        )

    def join(self, states: Sequence[GenlmState]) -> GenlmState:
        values = [s.log_psi_N for s in states]
        known = [v for v in values if v is not None]
        return GenlmState(
            states[0].binding,
            [context for s in states for context in s.contexts],
            torch.cat(known) if len(known) == len(values) else None,
        )

    def mask(self, state: GenlmState) -> Tensor | None:
        return None if self.guide != "mask" else self._next(state) > -math.inf

    def next_logw(self, state: GenlmState) -> Tensor | None:
        return None if self.guide != "weights" else self._next(state)

    def admits(
        self,
        state: GenlmState,
        rows: Sequence[int],
        tokens: Sequence[int],
        ended: Sequence[bool],
    ) -> list[bool]:
        asked: dict[int, Asked] = {}
        for i, (r, token, end) in enumerate(zip(rows, tokens, ended, strict=True)):
            context = self._longer(state.binding, state.contexts[r], [token], end)
            if context is not None:
                asked[i] = (context, bool(end))
        answers = dict(zip(asked, self._scores(state, list(asked.values())), strict=True))
        state.known.update((asked[i], value) for i, value in answers.items())
        return [answers.get(i, -math.inf) > -math.inf for i in range(len(rows))]

    # ------------------------------------------------------------------ inside

    def _bind(self, vocab: Vocabulary) -> Binding:
        potential = self.potential
        tokens = TokenItems.of(self.name, potential.vocab, vocab)
        words = None
        if self.guide in ("mask", "weights"):
            kind = kind_of(self.name, potential.vocab)
            if kind in ("bytes", "ints"):  # theirs knows how to walk over all tokens at once
                from genlm.backend.tokenization import Token

                ours = [Token(v, vocab.token_bytes[v]) for v, x in enumerate(tokens.items_V) if x]
                potential = potential.coerce(
                    types.SimpleNamespace(vocab=ours), f=_as_ints if kind == "ints" else _as_bytes
                )
                tokens = TokenItems.of(self.name, potential.vocab, vocab)
            words = Words.of(potential, tokens, vocab)
        return Binding(potential, tokens, words, frozenset(vocab.eos_ids))

    @staticmethod
    def _longer(
        binding: Binding, context: Context | None, tokens: Sequence[int], ended: bool
    ) -> Context | None:
        """A context with some of our tokens more; None if theirs holds no such thing."""
        if context is None:
            return None
        if ended and tokens and tokens[-1] in binding.eos_ids:
            tokens = tokens[:-1]
        longer = list(context)
        for token in tokens:
            items = binding.tokens.items_V[token]
            if items is None:
                return None
            longer += items
        return tuple(longer)

    def _scores(self, state: GenlmState, asked: Sequence[Asked]) -> list[float]:
        """log ψ of contexts, log φ of complete ones; what is equal is asked about once."""
        values = {a: state.known[a] for a in asked if a in state.known}
        if self._terminal:
            values |= {a: 0.0 for a in asked if not a[1]}
        new = [a for a in dict.fromkeys(asked) if a not in values]
        if new:
            potential = state.binding.potential
            contexts = [[*context, potential.eos] if end else [*context] for context, end in new]
            values |= zip(new, self._calls.scores(potential, contexts), strict=True)
        return [values[a] for a in asked]

    def _next(self, state: GenlmState) -> Tensor:
        """Their next-token log-weights over our ids, float64 [N, V]; −∞ in dead rows."""
        if state.logw_N_V is None:
            binding = state.binding
            assert binding.words is not None
            rows = range(len(state.contexts))
            dead = [False for _ in rows]
            if state.log_psi_N is not None:
                dead = (state.log_psi_N == -math.inf).tolist()
            alive = {i: c for i in rows if (c := state.contexts[i]) is not None and not dead[i]}
            new = list(dict.fromkeys(alive.values()))
            size = len(binding.words.column_V)
            logw_N_V = torch.full((len(rows), size), -math.inf, dtype=torch.float64)
            if new:
                contexts = [[*context] for context in new]
                found = self._calls.next_logw(binding.potential, contexts)
                logw_M_V = binding.words.spread(found)
                place = {context: i for i, context in enumerate(new)}
                at = torch.tensor([place[c] for c in alive.values()])
                logw_N_V[torch.tensor(list(alive))] = logw_M_V[at]
            state.logw_N_V = logw_N_V
        return state.logw_N_V


def _as_ints(tokens: Sequence[bytes]) -> bytes:
    return b"".join(tokens)  # whose items are ints


def _as_bytes(tokens: Sequence[bytes]) -> list[bytes]:
    return [bytes([b]) for token in tokens for b in token]
