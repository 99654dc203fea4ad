"""The factors of a target, each with its states for the rows of a wave.

A wave holds the running rows of several requests, request after request. A factor that
joins works on all of them in one call; any other is called once a request, so that a
failure in it stays with its request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from smcprog.errors import PotentialError, SMCError
from smcprog.potentials.base import Potential, Request, State
from smcprog.potentials.bitmask import unpack_bitmask
from smcprog.potentials.target import Target

__all__ = ["Factor", "StartGroup", "fit_width"]


def fit_width(logw_M_V: Tensor, size: int) -> Tensor:
    """Log-weights over `size` ids: models of one vocabulary may pad their logits differently."""
    missing = size - logw_M_V.shape[1]
    if missing > 0:
        pad = logw_M_V.new_full((logw_M_V.shape[0], missing), -torch.inf)
        return torch.cat([logw_M_V, pad], dim=1)
    return logw_M_V[:, :size]


@dataclasses.dataclass(frozen=True)
class StartGroup:
    """Requests that differ in their seeds only, so that one start serves them all."""

    request: Request
    members: tuple[int, ...]  # consecutive request numbers of the wave


class Factor:
    """One potential and its states.

    Parameters
    ----------
    potential : Potential
    groups : sequence of StartGroup
        Covering the wave's requests in order.
    particles : int
        Rows per request at the start.
    device : torch.device
        Where values are collected.
    """

    def __init__(
        self,
        potential: Potential,
        groups: Sequence[StartGroup],
        particles: int,
        device: torch.device,
    ) -> None:
        self.potential = potential
        self.masks = potential.masks
        self.lm_like = type(potential).next_logw is not Potential.next_logw
        self.failed: dict[int, SMCError] = {}  # request → what its potential ended with
        self._device = device
        self._parts: list[State | None] = []
        self._sizes: list[int] = []  # rows of each part
        self._owners: list[int | None] = []  # request of each part; None: all of them
        try:
            for group in groups:
                if potential.joins:
                    rows = particles * len(group.members)
                    self._parts.append(self._guard(None, potential.start, group.request, rows))
                    self._sizes.append(rows)
                else:
                    for member in group.members:
                        state = self._guard(member, potential.start, group.request, particles)
                        self._parts.append(state)
                        self._sizes.append(particles)
                        self._owners.append(member)
            if potential.joins:
                if len(self._parts) > 1:
                    self._parts = [self._guard(None, potential.join, self._parts)]
                self._sizes = [sum(self._sizes)]
                self._owners = [None]
        except BaseException:
            self.release()
            raise
        self.log_psi_M = torch.zeros(sum(self._sizes), dtype=torch.float64, device=device)

    def advance(self, tokens_M_T: Tensor, lengths_M: Tensor, ended_M: Tensor) -> Tensor:
        """log ψ of every row after T more tokens, float64 [M]; `failed` grows on errors."""
        values = []
        at = 0
        for i, (state, size, owner) in enumerate(
            zip(self._parts, self._sizes, self._owners, strict=True)
        ):
            rows = slice(at, at + size)
            at += size
            value = None
            if size and owner not in self.failed:
                value = self._guard(
                    owner,
                    self._advance_part,
                    i,
                    state,
                    tokens_M_T[rows],
                    lengths_M[rows],
                    ended_M[rows],
                )
            if value is None:  # nothing to do, or a failed request: no row of it goes on
                value = torch.full((size,), -torch.inf, dtype=torch.float64, device=self._device)
            values.append(value)
        return values[0] if len(values) == 1 else torch.cat(values)

    def next_logw(self, size: int) -> Tensor:
        """log ψ(y v) − log ψ(y), [M, size], of an LM-like factor."""
        parts = self._map(self._next_logw_of, size)
        rows = [n for n in self._sizes if n]
        filled = [
            torch.full((n, size), -torch.inf, device=self._device) if p is None else p
            for n, p in zip(rows, parts, strict=True)
        ]
        return filled[0] if len(filled) == 1 else torch.cat(filled)

    def allowed(self, size: int) -> Tensor | None:
        """Bool mask [M, V] of next tokens, or None where the factor has no say."""
        parts = self._map(self._mask_of, size)
        if all(p is None for p in parts):
            return None
        rows = [n for n in self._sizes if n]
        filled = [
            torch.ones((n, size), dtype=torch.bool, device=self._device) if p is None else p
            for n, p in zip(rows, parts, strict=True)
        ]
        return filled[0] if len(filled) == 1 else torch.cat(filled)

    def token_logprobs(self) -> Tensor | None:
        """Of the tokens last advanced, [M, T]."""
        parts = [p for p in self._map(self._token_logprobs_of) if p is not None]
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def fork(self, ancestors_M: Tensor, sizes_R: Sequence[int]) -> None:
        """Rows become copies of their ancestors; `sizes_R` is the new row count a request."""
        self.log_psi_M = self.log_psi_M[ancestors_M.to(self._device)]
        new_at, old_at = 0, 0
        for i, (owner, old_size) in enumerate(zip(self._owners, self._sizes, strict=True)):
            size = sum(sizes_R) if owner is None else sizes_R[owner]
            state = self._parts[i]
            local = ancestors_M[new_at : new_at + size] - old_at
            new_at, old_at = new_at + size, old_at + old_size
            self._sizes[i] = size
            if state is None:
                continue
            same = size == old_size and bool((local == torch.arange(size)).all())
            if same:
                continue
            self._parts[i] = None
            try:
                if size and owner not in self.failed:
                    self._parts[i] = self._guard(owner, self.potential.fork, state, local)
            finally:
                self.potential.release(state)

    def release(self) -> None:
        """Give back everything the states hold."""
        for i, state in enumerate(self._parts):
            if state is not None:
                self._parts[i] = None
                self.potential.release(state)

    def _advance_part(
        self, part: int, state: State, tokens: Tensor, lengths: Tensor, ended: Tensor
    ) -> Tensor:
        self._parts[part], value = self.potential.advance(state, tokens, lengths, ended)
        rows = tokens.shape[0]
        if not isinstance(value, Tensor) or value.shape != (rows,) or not value.is_floating_point():
            self._refuse("advance", f"log ψ as a floating tensor of shape ({rows},)", value)
        return value.detach().double().to(self._device)

    def _next_logw_of(self, state: State, rows: int, size: int) -> Tensor:
        value = self.potential.next_logw(state)
        model = isinstance(self.potential, Target)
        fits = (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.ndim == 2
            and value.shape[0] == rows
            and (model or value.shape[1] == size)
        )
        if not fits:
            self._refuse("next_logw", f"a floating tensor of shape ({rows}, {size})", value)
        assert value is not None
        if model:  # its padding is known to mean nothing
            return fit_width(value, size)
        value = value.detach().to(self._device)
        if bool((value.isnan() | (value == torch.inf)).any()):
            self._refuse("next_logw", "finite numbers or -inf", "NaN or +inf")
        return value

    def _mask_of(self, state: State, rows: int, size: int) -> Tensor | None:
        value = self.potential.mask(state)
        if value is None:
            return None
        shapes = {torch.bool: (rows, size), torch.int32: (rows, -(-size // 32))}
        if not isinstance(value, Tensor) or shapes.get(value.dtype) != tuple(value.shape):
            self._refuse(
                "mask",
                f"a bool tensor of shape {shapes[torch.bool]} or a packed int32 tensor of "
                f"shape {shapes[torch.int32]}",
                value,
            )
        return unpack_bitmask(value, size).to(self._device)

    def _token_logprobs_of(self, state: State, rows: int) -> Tensor | None:
        return self.potential.token_logprobs(state)

    def _refuse(self, method: str, wanted: str, got: Any) -> NoReturn:
        if isinstance(got, Tensor):
            got = f"a {got.dtype} tensor of shape {tuple(got.shape)}"
        elif not isinstance(got, str):
            got = type(got).__name__
        raise PotentialError(
            f"{self.potential.name}: {method} must return {wanted}, got {got}",
            potential=self.potential.name,
        )

    def _map(self, call: Callable[..., Tensor | None], *arguments: Any) -> list[Any]:
        """`call` on each part that has rows, failures kept with their request (as None)."""
        out = []
        for state, size, owner in zip(self._parts, self._sizes, self._owners, strict=True):
            if size:
                ok = state is not None and owner not in self.failed
                out.append(self._guard(owner, call, state, size, *arguments) if ok else None)
        return out

    def _guard(self, owner: int | None, call: Callable[..., Any], *arguments: Any) -> Any:
        """Run a potential's code; where it serves one request, its error becomes that one's."""
        try:
            return call(*arguments)
        except SMCError as error:
            if owner is None:
                raise
            self.failed[owner] = error
        except Exception as error:
            wrapped = PotentialError(
                f"{self.potential.name} raised {type(error).__name__}: {error}",
                potential=self.potential.name,
            )
            wrapped.__cause__ = error
            if owner is None:
                raise wrapped from error
            self.failed[owner] = wrapped
        return None
