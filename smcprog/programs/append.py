"""Texts that are not weighed: the prompt, and what is appended to every particle."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import PromptError, SettingError
from smcprog.programs.pieces import Piece, encode_text

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.programs.population import Population

__all__ = ["append_texts", "read_by", "set_prompt"]


def set_prompt(p: Population, prompt: Any) -> None:
    """See `Population.prompt`."""
    run = p.run
    if run.prompt is None and p.parent is None and not any(p.histories) and not p.busy:
        run.step("prompt")
        if hasattr(prompt, "tolist"):
            prompt = prompt.tolist()
        if not isinstance(prompt, (str, list, tuple)) or not prompt:
            raise PromptError(
                "a prompt is a text, a list of chat messages or a list of token ids, none of "
                f"them empty; got {prompt!r}"
            )
        run.prompt = prompt if isinstance(prompt, str) else list(prompt)
        return
    if not isinstance(prompt, str):
        raise SettingError(
            "prompt: messages and token ids can only be what a program begins with; what is "
            f"appended later is a str, not {type(prompt).__name__}"
        )
    index_M = p.living(p.begin("prompt"))
    append_texts(p, index_M, [prompt] * len(index_M), "prompt", markup=True)


def append_texts(
    p: Population, index_M: NDArray[np.int64], texts: list[str], kind: str, *, markup: bool
) -> None:
    """Append a text to each of some particles, as tokens of the model that was last asked."""
    lm = p.run.lm
    made: dict[str, Piece] = {}
    for text in texts:
        if text not in made:
            piece = Piece(kind, text.encode(errors="replace"), markup=markup)
            made[text] = piece if lm is None else _read(piece, lm)
    need_M = np.array([len(made[text].tokens) for text in texts], dtype=np.int64)
    fits_M = p.fitting(index_M, need_M)
    for i, text, fits in zip(index_M, texts, fits_M, strict=True):
        if fits and text:
            p.append(int(i), made[text])


def read_by(p: Population, index_M: NDArray[np.int64], lm: LM) -> None:
    """A model is asked: texts that none had read yet get its tokens."""
    p.run.lm = lm
    for i in index_M:
        history = p.histories[i]
        if any(piece.vocab is None for piece in history):
            p.histories[i] = tuple(_read(piece, lm) for piece in history)


def _read(piece: Piece, lm: LM) -> Piece:
    if piece.vocab is not None:
        return piece
    tokens = encode_text(lm, piece.data.decode(), markup=piece.markup)
    return dataclasses.replace(
        piece, vocab=lm.vocab, tokens=tokens, logprobs=(math.nan,) * len(tokens)
    )
