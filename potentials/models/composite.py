"""Several language models that make one factor: rows of each, in step.

The base of `Mixture` and `Guidance`. Components that are the same model under the same local
distribution, each with a prompt of its own, are rows of one batch, so that all of them take one
forward.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.errors import SettingError
from smcprog.potentials.base import Request, State
from smcprog.potentials.models.factor import ModelFactor, fit_width
from smcprog.potentials.models.target import Target

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import Sequences

__all__ = ["Composite", "CompositeState"]

MAX_COMPONENTS = 64


@dataclasses.dataclass
class CompositeState:
    """States of the components.

    Attributes
    ----------
    parts : list
        One state a group of components, which holds the rows of the first of them, then those
        of the next.
    log_psi_N : Tensor, float64
        Of the composite.
    memory_N : Tensor, [..., N], optional
        What a subclass keeps besides.
    token_logp_N_T : Tensor, float64, optional
        Of the tokens last advanced.
    """

    parts: list[State]
    log_psi_N: Tensor
    memory_N: Tensor | None = None
    token_logp_N_T: Tensor | None = None

    @property
    def n(self) -> int:
        return len(self.log_psi_N)


class Composite(ModelFactor):
    """A model factor made of others.

    Parameters
    ----------
    components : sequence of ModelFactor
        Of one vocabulary and positive powers. The first leads: its model spells the outputs.

    Raises
    ------
    SettingError
        There are none, too many, or something else among them.
    VocabularyMismatchError
        They do not share one token-id map.
    """

    def __init__(self, components: Sequence[ModelFactor]) -> None:
        kind = type(self).__name__
        if not 0 < len(components) <= MAX_COMPONENTS:
            raise SettingError(f"{kind} takes 1 to {MAX_COMPONENTS} models, got {len(components)}")
        for c in components:
            if not isinstance(c, ModelFactor):
                raise SettingError(
                    f"{kind} is made of language models, Target(lm, ...), got {type(c).__name__}"
                )
            if c.power < 0 or c.greedy:
                which = "greedy" if c.greedy else "of negative power"
                raise SettingError(f"{kind}: {c.name} is {which}, and cannot be part of it")
        self.components = tuple(components)
        self.lm = components[0].lm
        for c in components[1:]:
            self.lm.vocab.check_same(c.lm.vocab, this=self.lm.name, that=c.lm.name)
        self._groups = _grouped(components)

    @property
    def models(self) -> tuple[tuple[LM, Any], ...]:
        return tuple(m for c in self.components for m in c.models)

    @property
    def draft_temperature(self) -> float:
        return self.components[0].draft_temperature / abs(self.power)

    @property
    def truncated(self) -> bool:
        return all(c.truncated for c in self.components)

    # ------------------------------------------------------------------ states

    def start(self, request: Request, n: int) -> CompositeState:
        parts: list[State] = []
        try:
            for group in self._groups:
                states = []
                try:
                    for i in group:
                        states.append(self.components[i].start(request, n))
                except BaseException:
                    for i, state in zip(group, states, strict=False):
                        self.components[i].release(state)
                    raise
                one = self.components[group[0]]
                parts.append(states[0] if len(states) == 1 else one.join(states))
        except BaseException:
            self._release_parts(parts)
            raise
        log_psi_N = torch.zeros(n, dtype=torch.float64, device=self.lm.device)
        return CompositeState(parts, log_psi_N, self._first_memory(n))

    def fork(self, state: CompositeState, ancestors_M: Tensor) -> CompositeState:
        index_M = ancestors_M.to(state.log_psi_N.device)
        memory_N = state.memory_N
        return CompositeState(
            [
                self.components[group[0]].fork(part, _stacked(ancestors_M, len(group), state.n))
                for group, part in zip(self._groups, state.parts, strict=True)
            ],
            state.log_psi_N[index_M],
            None if memory_N is None else memory_N[..., index_M],
        )

    def join(self, states: Sequence[CompositeState]) -> CompositeState:
        parts = []
        sizes = [s.n for s in states]
        for at, group in enumerate(self._groups):
            one = self.components[group[0]]
            joined = one.join([s.parts[at] for s in states])
            if len(group) > 1:  # state after state; wanted is component after component
                mixed, joined = joined, one.fork(joined, _by_component(sizes, len(group)))
                one.release(mixed)
            parts.append(joined)
        memories = [s.memory_N for s in states if s.memory_N is not None]
        return CompositeState(
            parts,
            torch.cat([s.log_psi_N for s in states]),
            torch.cat(memories, dim=-1) if memories else None,
        )

    def release(self, state: CompositeState) -> None:
        self._release_parts(state.parts)

    def rows(self, state: CompositeState) -> list[Sequences]:
        nested: list[list[Sequences]] = [[] for _ in self.components]
        for group, part in zip(self._groups, state.parts, strict=True):
            whole = self.components[group[0]].rows(part)
            if len(group) == 1:
                nested[group[0]] = whole
                continue
            for c, i in enumerate(group):
                nested[i] = [whole[0].fork(torch.arange(c * state.n, (c + 1) * state.n))]
            whole[0].close()
        return [rows for several in nested for rows in several]

    def token_logprobs(self, state: CompositeState) -> Tensor | None:
        """Local log p of the tokens last advanced, the power left out."""
        return state.token_logp_N_T

    def _first_memory(self, n: int) -> Tensor | None:
        """What a subclass keeps besides, for rows that have no token yet."""
        return None

    def _release_parts(self, parts: Sequence[State]) -> None:
        for group, part in zip(self._groups, parts, strict=False):
            self.components[group[0]].release(part)

    # -------------------------------------------------------- of all components

    def _advance_all(
        self, state: CompositeState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Move them; log ψ of each, [C, N], and of each of the tokens (powers in), [C, N, T]."""
        psi, token = self._new_list(), self._new_list()
        for at, group in enumerate(self._groups):
            one, times = self.components[group[0]], len(group)
            state.parts[at], value = one.advance(
                state.parts[at],
                tokens_N_T.repeat(times, 1),
                lengths_N.repeat(times),
                ended_N.repeat(times),
            )
            each = one.token_logprobs(state.parts[at])
            assert each is not None  # of a model
            each = (one.power * each.double()).to(self.lm.device)
            for c, i in enumerate(group):
                rows = slice(c * state.n, (c + 1) * state.n)
                psi[i], token[i] = value[rows].to(self.lm.device), each[rows]
        return torch.stack(psi), torch.stack(token)

    def _next_all(self, state: CompositeState) -> Tensor:
        """`next_logw` of each, [C, N, V]."""
        out = self._new_list()
        for group, part in zip(self._groups, state.parts, strict=True):
            logw = self.components[group[0]].next_logw(part)
            assert logw is not None
            self._spread(out, group, logw, state.n)
        return torch.stack(out)

    def _look_all(self, state: CompositeState, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor:
        """`lookahead` of each, [C, N, T + 1, V]."""
        out = self._new_list()
        for group, part in zip(self._groups, state.parts, strict=True):
            times = len(group)
            logw = self.components[group[0]].lookahead(
                part, tokens_N_T.repeat(times, 1), lengths_N.repeat(times)
            )
            assert logw is not None
            self._spread(out, group, logw, state.n)
        return torch.stack(out)

    def _new_list(self) -> list[Tensor]:
        return [torch.empty(0)] * len(self.components)

    def _spread(self, out: list[Tensor], group: Sequence[int], logw: Tensor, n: int) -> None:
        logw = fit_width(logw.to(self.lm.device), self.lm.vocab.size)
        for c, i in enumerate(group):
            out[i] = logw[c * n : (c + 1) * n]


def _grouped(components: Sequence[ModelFactor]) -> list[list[int]]:
    """Numbers of components that may be rows of one batch."""
    groups: list[list[int]] = []
    for i, c in enumerate(components):
        for group in groups:
            first = components[group[0]]
            if (
                type(c) is Target
                and type(first) is Target
                and (c.lm is first.lm and c.local == first.local and c.power == first.power)
            ):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _stacked(rows_M: Tensor, times: int, n: int) -> Tensor:
    """The same rows of each of several blocks of n."""
    if times == 1:
        return rows_M
    first_C_1 = n * torch.arange(times, device=rows_M.device).unsqueeze(1)
    return (first_C_1 + rows_M).flatten()


def _by_component(sizes: Sequence[int], times: int) -> Tensor:
    """Where the rows of each component stand, if states of `times` blocks follow each other."""
    index, at = [], 0
    for n in sizes:
        index.append((at + torch.arange(times * n)).view(times, n))
        at += times * n
    return torch.cat(index, dim=1).flatten()
