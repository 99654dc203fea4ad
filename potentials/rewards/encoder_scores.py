"""A sequence classifier that reads a text as a whole (BERT and its like), as a score of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SettingError
from smcprog.potentials.rewards.judged import Judged
from smcprog.potentials.rewards.labels import Label

__all__ = ["EncoderScores"]

BATCH = 64
"""Texts of one forward."""
MOST_TOKENS = 1 << 20


class EncoderScores:
    """Scores of texts by plain forwards; a function as `Reward` takes it.

    Texts longer than the model's context are cut at their beginning.

    Parameters
    ----------
    model : transformers.PreTrainedModel
    judged : Judged
    label : Label
    """

    def __init__(self, model: Any, judged: Judged, label: Label) -> None:
        self._model = model
        self._judged = judged
        self._label = label
        tokenizer = judged.tokenizer
        if isinstance(tokenizer, Vocabulary):
            raise SettingError(
                "an encoder needs the tokenizer of transformers that it was made with"
            )
        tokenizer.truncation_side = "left"
        positions = getattr(model.config, "max_position_embeddings", None) or MOST_TOKENS
        if getattr(model.config, "model_type", "") in ("roberta", "xlm-roberta", "camembert"):
            positions -= int(model.config.pad_token_id) + 1  # where their positions begin
        self._longest = min(int(tokenizer.model_max_length), int(positions), MOST_TOKENS)

    @torch.no_grad()
    def __call__(self, texts: list[str], prompts: Sequence[str]) -> list[float]:
        """Scores, one a text."""
        whole = [
            self._judged.whole(prompt, prompt, text)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        scores: list[float] = []
        # Texts of similar length side by side need the least padding.
        order = sorted(range(len(whole)), key=lambda i: len(whole[i]))
        for begin in range(0, len(order), BATCH):
            batch = [whole[i] for i in order[begin : begin + BATCH]]
            encoded = self._judged.tokenizer(
                batch, padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
            )
            logits = self._model(**encoded.to(self._model.device)).logits
            scores += self._label.scores(logits)
        placed = dict(zip(order, scores, strict=True))
        return [placed[i] for i in range(len(whole))]
