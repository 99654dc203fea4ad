"""The factors of a target, each with its states for the rows of a wave.

A wave holds the running rows of several requests, request after request. A factor that
joins works on all of them in one call; any other is called once a request, so that a
failure in it stays with its request.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.engine.faults import advice, fault_of, first_line
from smcprog.errors import PotentialError, SMCError
from smcprog.potentials.base import Potential, Request, State
from smcprog.potentials.bitmask import pack_bitmask, unpack_bitmask
from smcprog.potentials.models.factor import ModelFactor, fit_width
from smcprog.smc.guard import Guard

__all__ = ["Factor", "StartGroup", "fit_width"]


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
        self._guarded = Guard(potential)
        self.masks = potential.masks
        self.rejects = potential.rejects
        self.lm_like = potential.lm_like
        #: Whether `next_logw` is a log-probability distribution over the whole vocabulary.
        self.normalized = isinstance(potential, ModelFactor) and potential.normalized
        self.failed: dict[int, SMCError] = {}  # request → what its potential ended with
        self._device = device
        self._parts: list[State | None] = []
        self._sizes: list[int] = []  # rows of each part
        self._owners: list[int | None] = []  # request of each part; None: all of them
        try:
            for group in groups:
                if potential.joins:
                    rows = particles * len(group.members)
                    self._parts.append(
                        self._guard(None, self._call, potential.start, group.request, rows)
                    )
                    self._sizes.append(rows)
                else:
                    for member in group.members:
                        start = potential.start
                        state = self._guard(member, self._call, start, group.request, particles)
                        self._parts.append(state)
                        self._sizes.append(particles)
                        self._owners.append(member)
            if potential.joins:
                if len(self._parts) > 1:
                    self._parts = [self._guard(None, self._call, potential.join, self._parts)]
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

    def packed_mask(self, size: int) -> NDArray[np.int32] | None:
        """The same as `allowed`, packed and on the host, [M, ceil(size / 32)]."""
        parts = self._map(self._packed_mask_of, size)
        if all(p is None for p in parts):
            return None
        rows = [n for n in self._sizes if n]
        words = -(-size // 32)
        filled = [
            np.full((n, words), -1, dtype=np.int32) if p is None else p
            for n, p in zip(rows, parts, strict=True)
        ]
        return np.concatenate(filled)

    def admits(
        self, rows: Sequence[int], tokens: Sequence[int], ended: Sequence[bool]
    ) -> list[bool]:
        """Whether log ψ stays above −∞ where each row takes its token, [S]; nothing moves.

        Rows are in order.
        """
        out: list[bool] = []
        at = 0
        for state, size, owner in zip(self._parts, self._sizes, self._owners, strict=True):
            span = slice(len(out), bisect.bisect_left(rows, at + size, len(out)))
            answers = None
            if span.stop > span.start and state is not None and owner not in self.failed:
                local = [row - at for row in rows[span]]
                answers = self._guard(
                    owner, self._admits_of, state, local, tokens[span], ended[span]
                )
            out += [False] * (span.stop - span.start) if answers is None else answers
            at += size
        return out

    def lookahead(self, tokens_M_T: Tensor, lengths_M: Tensor, size: int) -> Tensor:
        """`next_logw` before and after each of T tokens on trial, [M, T + 1, size]."""
        parts, at = [], 0
        for state, rows, owner in zip(self._parts, self._sizes, self._owners, strict=True):
            span = slice(at, at + rows)
            at += rows
            if not rows:
                continue
            part = None
            if state is not None and owner not in self.failed:
                part = self._guard(
                    owner, self._lookahead_of, state, rows, tokens_M_T[span], lengths_M[span], size
                )
            if part is None:
                shape = (rows, tokens_M_T.shape[1] + 1, size)
                part = torch.full(shape, -torch.inf, device=self._device)
            parts.append(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def hidden(self) -> tuple[Tensor, NDArray[np.int64]]:
        """`ModelFactor.hidden` of every row of a target model."""
        assert isinstance(self.potential, ModelFactor)  # all of whose rows are in one part
        return self.potential.hidden(self._parts[0])

    def copy(self, paths: int = 1) -> Factor:
        """The same rows again, `paths` neighbours for each, with states of their own.

        Failures of the copy are failures of the original.
        """
        twin = copy.copy(self)
        twin._parts = [None] * len(self._parts)
        twin._sizes = [n * paths for n in self._sizes]
        twin.log_psi_M = self.log_psi_M.repeat_interleave(paths)
        for i, (state, size, owner) in enumerate(
            zip(self._parts, self._sizes, self._owners, strict=True)
        ):
            if state is not None and size and owner not in self.failed:
                rows = torch.arange(size).repeat_interleave(paths)
                twin._parts[i] = self._guard(owner, self._call, self.potential.fork, state, rows)
        return twin

    def take_over(self, twin: Factor, winner_M: Tensor, paths: int) -> None:
        """Row i goes on from row ``winner_M[i]`` of a copy made with that many paths."""
        at = 0
        for i, (size, owner) in enumerate(zip(self._sizes, self._owners, strict=True)):
            state, copied = self._parts[i], twin._parts[i]
            local = winner_M[at : at + size] - at * paths
            at += size
            if copied is not None and owner not in self.failed:
                self._parts[i] = self._guard(owner, self._call, self.potential.fork, copied, local)
                if state is not None:
                    self._guarded.release(state)

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
                    self._parts[i] = self._guard(
                        owner, self._call, self.potential.fork, state, local
                    )
            finally:
                self._guarded.release(state)

    def select(self, ancestors_M: Tensor, sizes_R: Sequence[int]) -> Factor:
        """As `fork`, but the rows are new ones of a factor of its own; these stay valid.

        Failures of the copy are failures of the original.
        """
        twin = copy.copy(self)
        twin.log_psi_M = self.log_psi_M[ancestors_M.to(self._device)]
        twin._parts, twin._sizes = [None] * len(self._parts), []
        new_at, old_at = 0, 0
        for i, (owner, old_size) in enumerate(zip(self._owners, self._sizes, strict=True)):
            size = sum(sizes_R) if owner is None else sizes_R[owner]
            state = self._parts[i]
            local = ancestors_M[new_at : new_at + size] - old_at
            new_at, old_at = new_at + size, old_at + old_size
            twin._sizes.append(size)
            if state is not None and size and owner not in self.failed:
                twin._parts[i] = self._guard(owner, self._call, self.potential.fork, state, local)
        return twin

    def release(self) -> None:
        """Give back everything the states hold."""
        for i, state in enumerate(self._parts):
            if state is not None:
                self._parts[i] = None
                self._guarded.release(state)

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return self._guarded.call(method, *arguments)

    def _advance_part(
        self, part: int, state: State, tokens: Tensor, lengths: Tensor, ended: Tensor
    ) -> Tensor:
        self._parts[part], value = self._call(self.potential.advance, state, tokens, lengths, ended)
        rows = tokens.shape[0]
        if not isinstance(value, Tensor) or value.shape != (rows,) or not value.is_floating_point():
            self._refuse("advance", f"log ψ as a floating tensor of shape ({rows},)", value)
        return value.detach().double().to(self._device)

    def _next_logw_of(self, state: State, rows: int, size: int) -> Tensor:
        value = self._call(self.potential.next_logw, state)
        return self._checked_logw("next_logw", value, (rows, size))

    def _admits_of(
        self, state: State, rows: Sequence[int], tokens: Sequence[int], ended: Sequence[bool]
    ) -> list[bool]:
        answers = list(self._call(self.potential.admits, state, rows, tokens, ended))
        if len(answers) != len(rows) or not all(isinstance(a, bool) for a in answers):
            self._refuse("admits", f"{len(rows)} bools", repr(answers)[:80])
        return answers

    def _lookahead_of(
        self, state: State, rows: int, tokens: Tensor, lengths: Tensor, size: int
    ) -> Tensor:
        value = self._call(self.potential.lookahead, state, tokens, lengths)
        return self._checked_logw("lookahead", value, (rows, tokens.shape[1] + 1, size))

    def _checked_logw(self, method: str, value: Any, shape: tuple[int, ...]) -> Tensor:
        model = isinstance(self.potential, ModelFactor)
        fits = (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.shape[:-1] == shape[:-1]
            and (model or value.shape == shape)
        )
        if not fits:
            self._refuse(method, f"a floating tensor of shape {shape}", value)
        if model:  # its padding is known to mean nothing
            return fit_width(value, shape[-1])
        value = value.detach().to(self._device)
        if bool((value.isnan() | (value == torch.inf)).any()):
            self._refuse(method, "finite numbers or -inf", "NaN or +inf")
        return value

    def _mask_of(self, state: State, rows: int, size: int) -> Tensor | None:
        value = self._checked_mask(state, rows, size)
        if value is None:
            return None
        return unpack_bitmask(value.to(self._device), size)  # packed, it is moved at an eighth

    def _packed_mask_of(self, state: State, rows: int, size: int) -> NDArray[np.int32] | None:
        value = self._checked_mask(state, rows, size)
        return None if value is None else pack_bitmask(value)

    def _checked_mask(self, state: State, rows: int, size: int) -> Tensor | None:
        value = self._call(self.potential.mask, state)
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
        return value

    def _token_logprobs_of(self, state: State, rows: int) -> Tensor | None:
        return self._call(self.potential.token_logprobs, state)

    def _refuse(self, method: str, wanted: str, got: Any) -> NoReturn:
        if isinstance(got, Tensor):
            got = f"a {got.dtype} tensor of shape {tuple(got.shape)}"
        elif not isinstance(got, str):
            got = type(got).__name__
        raise PotentialError(
            f"{self.potential.name}: {method} must return {wanted}, got {got}",
            potential=self.potential.name,
        )

    def _map(self, call: Callable[..., Any], *arguments: Any) -> list[Any]:
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
            fault = fault_of(error) if isinstance(error, PotentialError) else None
            if fault is not None:  # of a function that the potential called
                error = PotentialError(f"{error}{advice(fault)}", potential=self.potential.name)
            if owner is None:
                raise error
            self.failed[owner] = error
        except Exception as error:
            fault = fault_of(error)
            if fault is not None and isinstance(self.potential, ModelFactor):
                raise  # the engine's affair, and that of all requests
            text = str(error) if fault is None else first_line(error)
            wrapped = PotentialError(
                f"{self.potential.name} raised {type(error).__name__}: {text}{advice(fault)}",
                potential=self.potential.name,
            )
            wrapped.__cause__ = error
            if owner is None:
                raise wrapped from error
            self.failed[owner] = wrapped
        return None
