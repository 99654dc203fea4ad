"""One output as a reward follows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from smcprog.potentials.base import Request
from smcprog.potentials.rewards.boundaries import Boundary
from smcprog.potentials.texts import unfinished_text

__all__ = ["RewardRow"]


@dataclasses.dataclass(frozen=True)
class RewardRow:
    """One output so far.

    Attributes
    ----------
    data : bytes
    marks : tuple of int
        Places in the text after boundary tokens.
    log_psi : float
    ended : bool
    known : dict
        Place in the text → score of the text up to it, where scores add up.
    tokens : tuple of int
        Of the output, where they are needed.
    """

    request: Request
    prompt: str
    data: bytes = b""
    marks: tuple[int, ...] = ()
    log_psi: float = 0.0
    ended: bool = False
    known: dict[int, float] = dataclasses.field(default_factory=dict)
    tokens: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The text of an output that has ended, or the part of it that is settled."""
        if self.ended:
            return self.request.finished_text(self.data)
        return unfinished_text(self.data, self.request.stop)

    def longer(self, new: Sequence[int], ended: bool, boundary: Boundary | None) -> RewardRow:
        """The output with some tokens more."""
        if boundary is None:
            data = self.data + self.request.vocab.to_bytes(new)
            return dataclasses.replace(self, data=data, ended=ended)
        token_bytes = self.request.vocab.token_bytes
        data, marks = self.data, list(self.marks)
        for token in new:
            data += token_bytes[token]
            mark = boundary.mark(token, data)
            if mark is not None:
                marks.append(mark)
        return dataclasses.replace(self, data=data, marks=tuple(marks), ended=ended)
