"""A predicate on text as a factor: ψ is 1 where the text is, or can still become, a good one."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smcprog.errors import PotentialError, SettingError
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.texts import settled_text
from smcprog.validate import whole

__all__ = ["Check"]

DEFAULT_CHECKS = 256
MOST_CHECKS = 1 << 20
CACHED_TEXTS = 1 << 16
CACHED_CHARACTERS = 1 << 24

Judged = tuple[str, bool]  # a text, and whether it is finished


@dataclasses.dataclass
class CheckState:
    """The bytes of the outputs so far."""

    request: Request
    outputs: list[bytes]


class Check(Potential):
    """φ(y) = 1 where a predicate holds for the text of y, else 0.

    Parameters
    ----------
    fn : callable
        With ``at="end"``: from a finished text to True or False. With ``at="prefix"``:
        from a text and whether it is finished to True or False; of a text that goes on it
        says whether *some* continuation, or the text itself, can be good.
    at : {"end", "prefix"}
        Which of the two forms `fn` has.
    prefix : callable, optional
        With ``at="end"``: from the text of an unfinished output to whether some
        continuation, or the text itself, can be good. Together with `fn` the same as one
        function with ``at="prefix"``.
    rejection : bool, optional
        Whether tokens are drawn by adaptive weighted rejection sampling (see Notes). By
        default where prefixes can be judged. With a predicate of finished texts only, True
        rejects the ends of outputs that are no good, so that the output goes on instead.
    max_checks : int
        Most candidates that are looked at for one token; 1 draws blindly and lets the
        particle die. With several checks the smallest of theirs counts.
    batch : bool
        Whether the functions take lists (of texts; and of bools with ``at="prefix"``) and
        return one bool each.
    name : str, optional
        What errors call it; by default the function's name.

    Notes
    -----
    *Monotone.* Where a prefix is judged False, every continuation must be, finished or not.
    `smcprog.testing.check_potential` finds violations. The functions must answer the same
    for the same text: answers are kept, for the last 65,536 texts.

    *Texts* are those of `Reward`: without EOS and cut before a stop string. An unfinished
    output is judged by the part of its text that is settled: without a character of which
    bytes are missing, and without what may turn out to begin a stop string. Bytes that are
    no UTF-8 become U+FFFD.

    *Rejection.* Candidates are drawn from the local distribution without replacement until
    one is accepted, and a few more tell how much of the distribution would be accepted:
    `smcprog.smc.rejection` has the algorithm and why it is unbiased. Drafted tokens of
    coupled rounds (``coupling`` below infinity) are not drawn by rejection: there a check is
    weighed after the draw.

    Raises
    ------
    SettingError
        An argument is not of its kind, or two exclude each other.
    PotentialError
        While sampling: a function raised, or returned what is no bool. Only the request at
        hand fails.

    Examples
    --------
    >>> check = Check(lambda text: text.count("a") == 2, prefix=lambda text: text.count("a") <= 2)
    """

    indicator = True
    aside = True  # it runs a user's code

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        at: str = "end",
        prefix: Callable[..., Any] | None = None,
        rejection: bool | None = None,
        max_checks: int = DEFAULT_CHECKS,
        batch: bool = False,
        name: str | None = None,
    ) -> None:
        if not callable(fn):
            raise SettingError(f"Check takes a function of a text, got {type(fn).__name__}")
        if at not in ("end", "prefix"):
            raise SettingError(f'at must be "end" or "prefix", got {at!r}')
        if prefix is not None and not callable(prefix):
            raise SettingError(f"prefix must be a function of a text, got {type(prefix).__name__}")
        if prefix is not None and at == "prefix":
            raise SettingError(
                'at="prefix" says that fn judges prefixes, too: leave prefix= out, or at='
            )
        for option, value in (("rejection", rejection), ("batch", batch)):
            if value not in (True, False) and not (option == "rejection" and value is None):
                raise SettingError(f"{option} must be True or False, got {value!r}")
        self.at = at
        self.rejects = bool(
            at == "prefix" or prefix is not None if rejection is None else rejection
        )
        self.max_checks = whole("max_checks", max_checks, 1, MOST_CHECKS)
        self._fn = fn
        self._prefix = prefix
        self._batch = bool(batch)
        self._name = name or getattr(fn, "__name__", type(fn).__name__)
        self._known: OrderedDict[Judged, bool] = OrderedDict()
        self._characters = 0  # of the texts in `_known`

    @property
    def name(self) -> str:
        return f"Check({self._name})"

    def __repr__(self) -> str:
        return self.name

    @property
    def judges_prefixes(self) -> bool:
        """Whether unfinished texts are judged; otherwise all of them pass."""
        return self.at == "prefix" or self._prefix is not None

    def start(self, request: Request, n: int) -> CheckState:
        return CheckState(request, [b""] * n)

    def advance(
        self, state: CheckState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[CheckState, Tensor]:
        to_bytes = state.request.vocab.to_bytes
        rows, lengths, ended = tokens_N_T.tolist(), lengths_N.tolist(), ended_N.tolist()
        outputs = [
            old + to_bytes(row[:length]) if length else old
            for old, row, length in zip(state.outputs, rows, lengths, strict=True)
        ]
        holds = self._judge(state.request, outputs, ended)
        log_psi_N = torch.tensor([0.0 if h else -math.inf for h in holds], dtype=torch.float64)
        return CheckState(state.request, outputs), log_psi_N

    def fork(self, state: CheckState, ancestors_M: Tensor) -> CheckState:
        return CheckState(state.request, [state.outputs[i] for i in ancestors_M.tolist()])

    def admits(
        self,
        state: CheckState,
        rows: Sequence[int],
        tokens: Sequence[int],
        ended: Sequence[bool],
    ) -> list[bool]:
        token_bytes = state.request.vocab.token_bytes
        outputs = [state.outputs[r] + token_bytes[t] for r, t in zip(rows, tokens, strict=True)]
        return self._judge(state.request, outputs, ended)

    # ------------------------------------------------------------------ inside

    def _judge(
        self, request: Request, outputs: Sequence[bytes], ended: Sequence[bool]
    ) -> list[bool]:
        """Whether each output passes; an unfinished one by the part that is settled."""
        judged: list[Judged | None] = [
            (request.finished_text(data), True)
            if end
            else ((settled_text(data, request.stop), False) if self.judges_prefixes else None)
            for data, end in zip(outputs, ended, strict=True)
        ]
        answers: dict[Judged, bool] = {}
        new: list[Judged] = []
        for at in dict.fromkeys(j for j in judged if j is not None):
            known = self._known.get(at)
            if known is None:
                new.append(at)
            else:
                with contextlib.suppress(KeyError):  # forgotten meanwhile, in another thread
                    self._known.move_to_end(at)
                answers[at] = known
        if new:
            for at, answer in zip(new, self._ask(new), strict=True):
                answers[at] = answer
                self._keep(at, answer)
        return [True if j is None else answers[j] for j in judged]

    def _keep(self, judged: Judged, answer: bool) -> None:
        self._known[judged] = answer
        self._characters += len(judged[0])
        while len(self._known) > CACHED_TEXTS or (
            self._characters > CACHED_CHARACTERS and len(self._known) > 1
        ):
            (text, _), _ = self._known.popitem(last=False)
            self._characters -= len(text)

    def _ask(self, new: Sequence[Judged]) -> list[bool]:
        """The user's answers about texts that are not known yet."""
        if self.at == "prefix":
            return self._call("fn", self._fn, new, with_finished=True)
        answers: dict[Judged, bool] = {}
        for which, function, finished in (
            ("fn", self._fn, True),
            ("prefix", self._prefix, False),
        ):
            asked = [j for j in new if j[1] is finished]
            if asked and function is not None:
                answers.update(zip(asked, self._call(which, function, asked), strict=True))
        return [answers[j] for j in new]

    def _call(
        self,
        which: str,
        function: Callable[..., Any],
        asked: Sequence[Judged],
        with_finished: bool = False,
    ) -> list[bool]:
        if not self._batch:
            return [
                self._bool(
                    which, self._run(which, function, j if with_finished else j[:1], j[0]), j[0]
                )
                for j in asked
            ]
        texts = [text for text, _ in asked]
        arguments = (texts, [f for _, f in asked]) if with_finished else (texts,)
        returned = self._run(which, function, arguments, texts[0])
        if isinstance(returned, (Tensor, np.ndarray)):
            returned = returned.tolist()
        if not isinstance(returned, Iterable) or isinstance(returned, (str, bytes)):
            raise PotentialError(
                f"{self.name}: {which} must return one bool a text, got {type(returned).__name__}",
                potential=self.name,
            )
        answers = list(returned)
        if len(answers) != len(texts):
            raise PotentialError(
                f"{self.name}: {which} must return one bool a text, {len(texts)} of them, got "
                f"{len(answers)}",
                potential=self.name,
            )
        return [self._bool(which, a, t) for a, t in zip(answers, texts, strict=True)]

    def _run(
        self, which: str, function: Callable[..., Any], arguments: Sequence[Any], text: str
    ) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise PotentialError(
                f"{self.name}: {which} raised {type(error).__name__}: {error} "
                f"(called with {_show(text)})",
                potential=self.name,
            ) from error

    def _bool(self, which: str, value: Any, text: str) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            raise PotentialError(
                f"{self.name}: {which} must return True or False, got {type(value).__name__} for "
                f"{_show(text)}",
                potential=self.name,
            )
        return bool(value)


def _show(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
