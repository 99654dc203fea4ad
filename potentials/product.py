"""The product of potentials: the target's own form, γ = Π φ_j."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smcprog.errors import SettingError
from smcprog.potentials.base import Potential, Request, State
from smcprog.potentials.bitmask import unpack_bitmask

__all__ = ["Product", "as_potential"]


def as_potential(factor: Any) -> Potential:
    """A factor as a potential; one of genlm-control becomes a `Genlm`.

    Raises
    ------
    SettingError
        It is none.
    """
    if isinstance(factor, Potential):
        return factor
    from smcprog.potentials.genlm.factor import Genlm, is_genlm

    if not isinstance(factor, type) and is_genlm(factor):
        return Genlm(factor)
    if hasattr(factor, "sequences") and hasattr(factor, "vocab"):
        hint = "write Target(lm) for a language model"
    elif callable(factor) and not isinstance(factor, type):
        hint = "write Reward(fn) for a score of texts, Check(fn) for a condition"
    elif isinstance(factor, (int, float)):
        hint = "a constant factor changes nothing; potential ** c is a power"
    else:
        hint = "write Grammar(...) for a schema or type, Grammar.regex(...) for a pattern"
    raise SettingError(
        f"a target is a product of potentials, and {type(factor).__name__} is none: {hint}"
    )


class Product(Potential):
    """γ = Π φ_j, itself a potential; ``a * b`` makes one.

    Parameters
    ----------
    factors : sequence of Potential
        Nested products are flattened. A factor that occurs twice counts twice.

    Raises
    ------
    SettingError
        A factor is no potential.
    """

    def __init__(self, factors: Sequence[Any]) -> None:
        flat: list[Potential] = []
        for factor in map(as_potential, factors):
            flat.extend(factor.factors if type(factor) is Product else [factor])
        self.factors: tuple[Potential, ...] = tuple(flat)
        self.masks = any(f.masks for f in flat)
        self.positive = all(f.positive for f in flat)
        self.indicator = all(f.indicator for f in flat)

    @property
    def name(self) -> str:
        return " * ".join(f.name for f in self.factors)

    def __repr__(self) -> str:
        return self.name

    @property
    def lm_like(self) -> bool:
        return all(f.lm_like for f in self.factors)

    def __pow__(self, power: float) -> Product:
        """Each factor to the power."""
        return Product([f**power for f in self.factors])

    def explain(self) -> str:
        """What each factor does, those that tokens are drawn from first."""
        drawn = [f for f in self.factors if f.lm_like]
        others = [f for f in self.factors if not f.lm_like]
        return "\n".join(f.explain() for f in drawn + others)

    def start(self, request: Request, n: int) -> State:
        return [f.start(request, n) for f in self.factors]

    def advance(
        self, state: State, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[State, Tensor]:
        moved = [
            f.advance(s, tokens_N_T, lengths_N, ended_N)
            for f, s in zip(self.factors, state, strict=True)
        ]
        log_psi_N = torch.stack([value.cpu() for _, value in moved]).sum(0)
        return [s for s, _ in moved], log_psi_N

    def fork(self, state: State, ancestors_M: Tensor) -> State:
        return [f.fork(s, ancestors_M) for f, s in zip(self.factors, state, strict=True)]

    def mask(self, state: State) -> Tensor | None:
        """Conjunction of the factors' masks, as bool [N, V] where more than one has a say."""
        masks = [
            m
            for f, s in zip(self.factors, state, strict=True)
            if f.masks and (m := f.mask(s)) is not None
        ]
        if len(masks) <= 1:
            return masks[0] if masks else None
        if all(m.dtype == torch.int32 for m in masks):
            both = masks[0]
            for m in masks[1:]:
                both = both & m
            return both
        size = next(m.shape[-1] for m in masks if m.dtype == torch.bool)
        allowed_N_V = unpack_bitmask(masks[0], size)
        for m in masks[1:]:
            allowed_N_V = allowed_N_V & unpack_bitmask(m, size)
        return allowed_N_V

    def next_logw(self, state: State) -> Tensor | None:
        """Sum over the factors where all of them are LM-like; else None."""
        total: Tensor | None = None
        for f, s in zip(self.factors, state, strict=True):
            logw_N_V = f.next_logw(s)
            if logw_N_V is None:
                return None
            total = logw_N_V if total is None else total + logw_N_V
        return total

    def lookahead(self, state: State, tokens_N_T: Tensor, lengths_N: Tensor) -> Tensor | None:
        """Sum over the factors where all of them are LM-like; else None."""
        if not self.lm_like:
            return None
        total: Tensor | None = None
        for f, s in zip(self.factors, state, strict=True):
            logw_N_B_V = f.lookahead(s, tokens_N_T, lengths_N)
            if logw_N_B_V is None:
                return None
            total = logw_N_B_V if total is None else total + logw_N_B_V
        return total

    def release(self, state: State) -> None:
        for f, s in zip(self.factors, state, strict=True):
            f.release(s)
