"""A reward as a factor: log φ(y) = β · score(text of y)."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from smcprog.errors import InputError, PotentialError, SettingError
from smcprog.potentials.base import Potential, Request
from smcprog.potentials.rewards.boundaries import Boundary, boundary_of
from smcprog.potentials.rewards.calls import ScoreCalls
from smcprog.potentials.rewards.rows import RewardRow
from smcprog.potentials.texts import prompt_text
from smcprog.validate import real

__all__ = ["Reward", "RewardRow"]

SHORTEST_CALL, LONGEST_CALL = 1e-3, 1e9


class Reward(Potential):
    r"""log φ(y) = β · score(text of y), with hints of it on the way.

    Parameters
    ----------
    score : callable
        Takes a list of M texts (without EOS, cut before a stop string) and returns M
        finite numbers; −∞ forbids a text. If it has a parameter `prompts`, it gets the prompts
        there, one text for each of the M. It may be asynchronous. It must be a function of the
        text (and the prompt): each text is scored once, and the score is kept.
    beta : float
        Strength β; may be negative. ``Reward(...) ** c`` has the strength c·β.
    at : "end", "round", str, re.Pattern, or set or list of int
        When the output is looked at before it is complete. "end": never. "round": whenever the
        particles are weighed. Anything else is a *boundary*: after a string such as
        ``"\n"``, after a match of a compiled pattern, or after one of some token ids.
    kind : {"last", "sum"}
        "last": the score of the last text looked at counts. "sum": the scores of all of them
        add up, as those of a process reward do; only with a boundary.
    anneal : bool
        Resample by a share of the reward only, as large as the effective sample size allows; the
        rest stays in the weights for later rounds. The final target is the same.
    prune : bool
        Whether −∞ for an unfinished text ends the particle at once; it must then mean that every
        continuation is forbidden as well. Otherwise such a score is no hint, and what counts
        is the score at the end.
    time_limit : float, optional
        Seconds that one call of `score` may take. A call that takes longer is given up, and the
        request fails with a PotentialError; its thread is left alone.
    name : str, optional
        What errors call it; by default the function's name.

    Notes
    -----
    *Values.* For ``kind="last"``, log ψ of an unfinished output is β times the score of its text
    so far ("round") or of its text up to and including the last boundary; between boundaries the
    last value stands, and before the first one it is 0. log φ is always β times the score of the
    full text: `at` shapes the intermediate targets and leaves the final one as it is. For
    ``kind="sum"``, log ψ is β times the sum over all boundaries so far, and log φ adds the score
    of the full text where something follows the last boundary.

    *Unfinished texts* are the part that is settled: without a character of which bytes are
    missing, and without what may turn out to begin a stop string. Where there is no text yet,
    ψ = 1.

    *Calls.* One call a round for the particles of all requests that are worked on together.
    Scores are kept for the last 65,536 texts (16 Mi characters). Under a `Scheduler` calls are
    made in a thread beside, so that other requests go on meanwhile, and all texts that wait when
    a call ends go into the next one.

    Raises
    ------
    SettingError
        `score` is not callable, `beta` is not finite, or `at`, `kind` or another argument is none
        of its values.
    PotentialError
        While sampling: `score` raised, took too long, returned another number of values than
        texts, or returned NaN or +∞. Only the request at hand fails.

    Examples
    --------
    >>> short_lines = Reward(lambda texts: [-abs(len(t) - 40) / 10 for t in texts], at="\n")
    """

    joins = True
    aside = False  # the function that may hang is called aside, with a time limit of its own

    def __init__(
        self,
        score: Callable[..., Any],
        beta: float = 1.0,
        *,
        at: Any = "end",
        kind: str = "last",
        anneal: bool = False,
        prune: bool = False,
        time_limit: float | None = None,
        name: str | None = None,
    ) -> None:
        if not callable(score):
            raise SettingError(
                f"Reward takes a function of a list of texts, got {type(score).__name__}"
            )
        self.at = at
        self._boundary: Boundary | None = None
        if not (isinstance(at, str) and at in ("end", "round")):
            self._boundary = boundary_of(at)
        if kind not in ("last", "sum"):
            raise SettingError(f'kind must be "last" or "sum", got {kind!r}')
        if kind == "sum" and self._boundary is None:
            raise SettingError(
                f'kind="sum" adds up the scores at boundaries, and at={at!r} is none: give a '
                "string such as '\\n', a compiled pattern or a set of token ids as at"
            )
        for option, value in (("anneal", anneal), ("prune", prune)):
            if not isinstance(value, bool):
                raise SettingError(f"{option} must be True or False, got {value!r}")
        self.score = score
        self.beta = real("beta", beta)
        self.kind = kind
        self.anneal = anneal
        self.prune = prune
        self.time_limit = None
        if time_limit is not None:
            self.time_limit = real("time_limit", time_limit, SHORTEST_CALL, LONGEST_CALL)
        self._name = name or str(getattr(score, "__name__", type(score).__name__))
        self._calls = ScoreCalls(score, self.name, self.time_limit)
        # A summand that is −∞ stays one, if its boundary does.
        self._prunes = prune or (
            kind == "sum" and self._boundary is not None and self._boundary.stable
        )

    @staticmethod
    def model(model: Any, tokenizer: Any = None, **options: Any) -> Reward:
        """A reward by a reward model or classifier of `transformers`.

        Parameters
        ----------
        model : str, path or transformers.PreTrainedModel
            A local folder, a hub id, or a ``…ForSequenceClassification`` in memory, whose
            weights are shared.
        tokenizer : optional
            By default the one that comes with the path.
        label : int or str, optional
            The score is the log-probability of this label. A model with one logit has no
            labels: its logit is the score.
        prompt : bool, default True
            Whether the prompt is part of what is judged.
        chat : bool, optional
            Whether prompt and output become turns of a chat, by the tokenizer's chat template.
            By default where the prompt is a list of messages and there is a template.
        template : callable, optional
            From the texts of prompt and output to the text that is judged, instead.
        device, dtype : optional
            Of a model from a path; as for `LM`.
        kv_pages : int, optional
            Pages of a decoder, as for `LM`.
        **options
            `beta`, `at`, `kind`, `anneal`, `prune`, `name` (and `time_limit`, where the model is
            an encoder) as for `Reward`.

        Returns
        -------
        Reward

        Notes
        -----
        A model for decoders (with a head `score` read at the last token) runs in the engine: its
        rows have key/value memory of their own, which forks with the particles, so that only new
        tokens are run. Where its tokenizer is the target's, the output's own tokens are judged,
        otherwise the text is encoded anew and run from the first token that differs. Any other
        classifier is called with whole texts, in batches.

        Raises
        ------
        ModelError
            The model cannot be loaded safely or run by the engine.
        SettingError
            An argument is not of its kind, or the label is none of the model's.
        """
        from smcprog.potentials.rewards.model import reward_of_model

        return reward_of_model(model, tokenizer, **options)

    @property
    def name(self) -> str:
        return f"Reward({self._name})"

    def __call__(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[float]:
        """Scores of texts, without β; for use outside of a target."""
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise InputError(f"{self.name} takes a list of texts, got {type(texts).__name__}")
        if prompts is not None and len(prompts) != len(texts):
            raise InputError(f"{self.name}: {len(prompts)} prompts for {len(texts)} texts")
        if prompts is None or not self._calls.wants_prompts:
            prompts = [""] * len(texts)
        keys = list(zip(prompts, texts, strict=True))
        scores = self._calls.of(keys)
        return [scores[key] for key in keys]

    @property
    def calls(self) -> int:
        """How often `score` was called so far."""
        return self._calls.calls

    def __repr__(self) -> str:
        shown = [self._name, f"beta={self.beta:g}"]
        if self.at != "end":
            shown.append(f"at={self.at!r}")
        if self.kind != "last":
            shown.append(f"kind={self.kind!r}")
        return f"Reward({', '.join(shown)})"

    def __pow__(self, power: float) -> Reward:
        """The same reward, β times as strong; scores that are known are shared."""
        scaled = copy.copy(self)
        scaled.beta = real("beta", self.beta * real("power", power))
        return scaled

    def start(self, request: Request, n: int) -> Any:
        if self._boundary is not None:
            self._boundary.check(request.vocab)
        prompt = prompt_text(request) if self._calls.wants_prompts else ""
        return [RewardRow(request, prompt)] * n

    def advance(
        self, state: Any, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[Any, Tensor]:
        rows, judged = self._move(state, tokens_N_T, lengths_N, ended_N)
        keys = [[(row.prompt, text) for text in judged[i].values()] for i, row in enumerate(rows)]
        scores = self._calls.of(key for of_row in keys for key in of_row)
        found = [
            dict(zip(judged[i], (scores[key] for key in keys[i]), strict=True))
            for i in range(len(rows))
        ]
        return self._valued(state, rows, judged, found)

    def fork(self, state: Any, ancestors_M: Tensor) -> Any:
        return [state[i] for i in ancestors_M.tolist()]

    def join(self, states: Sequence[Any]) -> Any:
        return [row for state in states for row in state]

    # ------------------------------------------------------------------ inside

    def _move(
        self, rows: Sequence[RewardRow], tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[list[RewardRow], list[dict[int, str]]]:
        """Rows with new tokens, and the texts whose scores each now needs, by their lengths."""
        news = [t[:n] for t, n in zip(tokens_N_T.tolist(), lengths_N.tolist(), strict=True)]
        moved: list[RewardRow] = []
        judged: list[dict[int, str]] = []
        for row, new, ended in zip(rows, news, ended_N.tolist(), strict=True):
            texts: dict[int, str] = {}
            if new or (ended and not row.ended):
                row = self._longer(row, new, ended)
                texts = self._texts(row)
                if self.kind == "sum":
                    row = self._with_known(row, texts)
                    texts = {p: t for p, t in texts.items() if p not in row.known}
            moved.append(row)
            judged.append(texts)
        return moved, judged

    def _longer(self, row: RewardRow, new: Sequence[int], ended: bool) -> RewardRow:
        """A row with some tokens more; its value is not known yet."""
        return row.longer(new, ended, self._boundary)

    def _texts(self, row: RewardRow) -> dict[int, str]:
        """The texts whose scores make a row's value, by their lengths, in order."""
        if not row.ended and self.at == "end":
            return {}
        text = row.text
        places: Iterable[int] = ()
        if self._boundary is not None and (self.kind == "sum" or not row.ended):
            places = self._boundary.places(text, row.marks)
        if self.kind == "sum":
            last = [len(text)] if row.ended and text else []
            places = dict.fromkeys([*places, *last])
        elif row.ended:
            places = [len(text)]
        elif self.at == "round":
            places = [len(text)] if text else []
        else:
            places = list(places)[-1:]
        return {place: text[:place] for place in places}

    @staticmethod
    def _with_known(row: RewardRow, texts: dict[int, str]) -> RewardRow:
        """Of the scores that are known, those that count now."""
        known = {place: row.known[place] for place in texts if place in row.known}
        return dataclasses.replace(row, known=known)

    def _valued(
        self,
        before: Sequence[RewardRow],
        rows: Sequence[RewardRow],
        judged: Sequence[dict[int, str]],
        found: Sequence[dict[int, float]],
    ) -> tuple[list[RewardRow], Tensor]:
        """Rows with their values, given the scores of their texts."""
        out = [
            row if row is old else self._value(row, texts, scores)
            for old, row, texts, scores in zip(before, rows, judged, found, strict=True)
        ]
        return out, torch.tensor([row.log_psi for row in out], dtype=torch.float64)

    def _value(self, row: RewardRow, texts: dict[int, str], new: dict[int, float]) -> RewardRow:
        scores = {**row.known, **new}
        total = 0.0
        for place in sorted(scores):
            # β = 0 switches a reward off, and 0·(−∞) must not become NaN.
            value = self.beta * scores[place] if self.beta else 0.0
            if value == math.inf:
                raise PotentialError(
                    f"{self.name}: beta * score is +inf for text {texts.get(place, '')!r} (score "
                    f"{scores[place]}); return a finite number, or -inf to forbid a text",
                    potential=self.name,
                )
            if value > -math.inf or row.ended or self._prunes:
                total += value
        known = scores if self.kind == "sum" else {}
        return dataclasses.replace(row, log_psi=total, known=known)
