"""Scores of texts by a model in paged memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from smcprog.engine.prefix import sharing_allowed
from smcprog.engine.scoring import ScoringLM
from smcprog.engine.sequences import PagedSequences
from smcprog.potentials.rewards.judged import Judged
from smcprog.potentials.rewards.kept import Kept
from smcprog.potentials.rewards.labels import Label
from smcprog.potentials.rewards.model_rows import Ids, Rows

__all__ = ["PagedScores"]


class PagedScores:
    """Scores of texts by a model in paged memory; a function as `Reward` takes it.

    Called by itself it runs every text from its beginning; `ModelReward` goes on with rows.

    Attributes
    ----------
    passes : int
        How often rows were run.
    """

    def __init__(self, lm: ScoringLM, judged: Judged, label: Label) -> None:
        self.lm = lm
        self.judged = judged
        self.passes = 0
        self._label = label
        self._known: Kept[Ids] = Kept(len)
        self._lock = threading.Lock()

    def __call__(self, texts: list[str], prompts: Sequence[Any] | None = None) -> list[float]:
        if not texts:
            return []
        asked = [""] * len(texts) if prompts is None else prompts
        ids = [self.encoded(p, _text(p), t) for t, p in zip(texts, asked, strict=True)]
        rows = Rows(PagedSequences.empty(self.lm.engine, len(ids)), [()] * len(ids))
        try:
            scores = self.run(rows, dict(enumerate(ids)))
        finally:
            rows.close()
        return [scores[i] for i in range(len(ids))]

    def encoded(self, prompt: Any, prompt_text: str, text: str) -> Ids:
        """Ids of all that is judged, by the reward model's own tokenizer."""
        whole = self.judged.whole(prompt, prompt_text, text)
        return self.some(self.judged.encode(whole, special=not self.judged.is_chat(prompt)))

    def some(self, ids: Sequence[int]) -> Ids:
        """The ids, or one that stands for no text, since a model cannot judge nothing at all."""
        if ids:
            return tuple(ids)
        for which in ("bos_token_id", "eos_token_id", "pad_token_id"):
            token = getattr(self.lm.tokenizer, which, None)
            if token is not None:
                return (int(token),)
        return self.lm.vocab.eos_ids[:1]

    def run(self, rows: Rows, wanted: Mapping[int, Ids]) -> dict[int, float]:
        """Score of some rows, given what each shall hold."""
        # Where bits must not depend on what ran before, nothing is taken from there.
        remember = sharing_allowed()
        scores: dict[int, float] = {}
        if remember:
            with self._lock:
                found = {i: self._known.get(ids) for i, ids in wanted.items()}
            scores = {i: score for i, score in found.items() if score is not None}
        missing = {i: ids for i, ids in wanted.items() if i not in scores}
        if missing:
            self.passes += 1
            fresh = self._label.scores(rows.rewrite(missing))
            scores.update(zip(missing, fresh, strict=True))
            if remember:
                with self._lock:
                    for i, ids in missing.items():
                        self._known.put(ids, scores[i])
        return scores


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else ""
