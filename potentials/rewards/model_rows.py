"""Rows of a model whose tokens may be replaced from any place on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.engine.sequences import PagedSequences

__all__ = ["Ids", "Rows", "common_length"]

Ids = tuple[int, ...]


class Rows:
    """Token sequences of one model, and what they hold.

    Attributes
    ----------
    sequences : PagedSequences
    ids : list of tuple of int
    """

    def __init__(self, sequences: PagedSequences, ids: Sequence[Ids]) -> None:
        self.sequences = sequences
        self.ids = list(ids)

    def fork(self, ancestors_K: Tensor) -> Rows:
        """New rows that continue the given ones."""
        return Rows(self.sequences.fork(ancestors_K), [self.ids[i] for i in ancestors_K.tolist()])

    def close(self) -> None:
        """Give the memory back."""
        self.sequences.close()

    def rewrite(self, wanted: Mapping[int, Ids]) -> Tensor:
        """Let some rows hold other ids; the common beginning is kept, and only the rest is run.

        After an error the rows are of no use any more.

        Parameters
        ----------
        wanted : mapping
            Row number → ids, at least one.

        Returns
        -------
        Tensor, [len(wanted), L]
            Logits after the last id, in the order of `wanted`.
        """
        # The last id is always run, for its logits.
        keep = {i: min(common_length(self.ids[i], ids), len(ids) - 1) for i, ids in wanted.items()}
        going = [i for i in wanted if keep[i]]
        order = [*going, *(i for i in wanted if not keep[i])]
        others = [i for i in range(len(self.ids)) if i not in keep]
        in_place = going == list(range(len(self.ids)))
        work = self.sequences
        if not in_place:
            work, rest = self.sequences.fork(going), self.sequences.fork(others)
            self.sequences.close()  # so that the forks need no copies of their last pages
            self.sequences = rest
        try:
            self._cut(work, going, keep)
            if len(order) > len(going):
                fresh = PagedSequences.empty(work.engine, len(order) - len(going))
                work = PagedSequences.join([work, fresh])
            news = [wanted[i][keep[i] :] for i in order]
            width = max(map(len, news))
            tokens = torch.tensor([[*n, *[0] * (width - len(n))] for n in news])
            work.append(tokens, np.array([len(n) for n in news], dtype=np.int64))
            logits = work.next_logits()
        except BaseException:
            work.close()
            raise
        if not in_place:
            place = {row: at for at, row in enumerate([*order, *others])}
            with PagedSequences.join([work, self.sequences]) as joined:
                self.sequences = joined.fork([place[i] for i in range(len(self.ids))])
        for i, ids in wanted.items():
            self.ids[i] = ids
        at = {row: k for k, row in enumerate(order)}
        return logits[[at[i] for i in wanted]]

    def _cut(self, work: PagedSequences, going: Sequence[int], keep: Mapping[int, int]) -> None:
        if all(keep[i] == len(self.ids[i]) for i in going):
            return
        lengths = np.array([keep[i] for i in going], dtype=np.int64)
        # Nobody asks for the logits where they are cut, since more ids come at once.
        engine = work.engine
        nothing = torch.zeros((len(going), engine.vocab_size), device=engine.device)
        work.truncate(lengths, nothing)


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the common beginning."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))
