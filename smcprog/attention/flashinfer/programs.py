"""Planned kernels: attention of one kind for one table, ready to run in every layer."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from smcprog.attention.flashinfer.kernels import Kernels, Kind

__all__ = ["Cascade", "Program", "Single", "by_token"]


@dataclasses.dataclass(frozen=True, eq=False)
class Single:
    """Each row reads all of its pages: one kernel, and one more where keys are split."""

    kernels: Kernels
    kind: Kind
    wrapper: Any

    def run(self, query_S_H_D: Tensor, cache: Tensor) -> Tensor:
        out = _empty(query_S_H_D)
        self.kernels.run(self.wrapper, self.kind, query_S_H_D, cache, out)
        return out


@dataclasses.dataclass(frozen=True, eq=False)
class Cascade:
    """Shared pages are read once a group, own pages once a row, and the results merged.

    FlashInfer's `MultiLevelCascadeAttentionWrapper` does the same. It is not used because it
    takes no backend: on Hopper it would run the FA3 kernels, which do not split the keys of a
    group, so that a long prefix would keep a few multiprocessors busy and leave the others idle.

    Attributes
    ----------
    shared, own
        Wrappers of both levels.
    """

    kernels: Kernels
    kind: Kind
    shared: Any
    own: Any

    def run(self, query_S_H_D: Tensor, cache: Tensor) -> Tensor:
        results = []
        for wrapper in (self.own, self.shared):
            out = _empty(query_S_H_D)
            lse = torch.empty(out.shape[:2], dtype=torch.float32, device=out.device)
            self.kernels.run(wrapper, self.kind, query_S_H_D, cache, out, lse)
            results.append((out, lse))
        (out, lse), (other, other_lse) = results
        self.kernels.merge(out, lse, other, other_lse)
        return out


Program = Single | Cascade


def _empty(query: Tensor) -> Tensor:
    """Contiguous, as the kernels write it, however the queries lie."""
    return torch.empty(query.shape, dtype=query.dtype, device=query.device)


def by_token(x_M_H_T_D: Tensor) -> Tensor:
    """[M, H, T, D] to [M * T, H, D], moved only if the kernels could not read it as it lies."""
    x = x_M_H_T_D.transpose(1, 2).flatten(0, 1)
    return x if x.stride(-1) == 1 else x.contiguous()
