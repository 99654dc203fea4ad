"""Masks for the last token of a text: those tokens after which it is complete.

An output of at most `max_tokens` tokens has to be complete in time. Where one token of text
is left, most tokens that may follow would leave a bracket or a string open, and the particle
would be dead one token later. This mask holds the others only; it is as exact as the mask
engine's grammar.

The engine is given the grammar followed by a mark that no text holds, and a vocabulary in
which every token ends in that mark: what it allows there are the tokens that finish a text.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from torch import Tensor

from smcprog.engine.vocab import Vocabulary
from smcprog.grammars.text import GrammarText

__all__ = ["Endings"]


class _MarkedTokens:
    """Tokens that end in the mark, the 256 bytes without it, and the mark as EOS.

    In the form that `llguidance.TokenizerWrapper` takes.

    Attributes
    ----------
    first_byte : int
        Id of the byte 0; the ids of the vocabulary come before.
    eos_token_id : int
        The mark.
    """

    bos_token_id = None

    def __init__(self, vocab: Vocabulary) -> None:
        self.first_byte = vocab.size
        self.eos_token_id = vocab.size + 256
        self.special_token_ids = [self.eos_token_id]
        mark = b"\xff[%d]" % self.eos_token_id  # how the engine spells a special token
        self.tokens = [
            text.replace(b"\xff", b"\xfe") + mark if text else b"" for text in vocab.token_bytes
        ]
        self.tokens += [bytes([b]) for b in range(256)] + [b"\xff<end>"]
        self.words = -(-len(self.tokens) // 32)
        self.tokenizer = LLTokenizer(TokenizerWrapper(self))

    def __call__(self, text: str | bytes) -> list[int]:
        """By bytes."""
        data = text.encode() if isinstance(text, str) else text
        return [self.first_byte + b for b in data]


_marked: WeakKeyDictionary[Vocabulary, _MarkedTokens] = WeakKeyDictionary()


class Endings:
    """Masks of the tokens that finish a text of one grammar.

    Parameters
    ----------
    text : GrammarText
    vocab : Vocabulary
    compiled : callable
        A matcher at the start of a grammar, given its text and the tokenizer.
    """

    def __init__(
        self,
        text: GrammarText,
        vocab: Vocabulary,
        compiled: Callable[[str, LLTokenizer], LLMatcher],
    ) -> None:
        self._lark = text.lark
        self._vocab = vocab
        self._compiled = compiled
        self._start: LLMatcher | None = None

    def mask(self, text: bytes) -> Tensor | None:
        """int32 [W]: the tokens that finish `text`, ids beyond the vocabulary's included.

        Returns
        -------
        Tensor or None
            None where it is not known, so that any token may be one.
        """
        if self._vocab not in _marked:
            _marked[self._vocab] = _MarkedTokens(self._vocab)
        tokens = _marked[self._vocab]
        if self._start is None:
            # The end of a grammar inside another is found without what it ignores.
            if "%ignore" in self._lark:
                return None
            mark = f"<[{tokens.eos_token_id}]>"
            lark = f"start: %lark {{\n{self._lark}\n}} {mark}\n"
            self._start = self._compiled(lark, tokens.tokenizer)
        matcher = self._start.deep_copy()
        if matcher.is_error() or (text and not matcher.consume_tokens(tokens(text))):
            return None
        mask_W = torch.zeros(tokens.words, dtype=torch.int32)
        matcher.unsafe_compute_mask_ptr(mask_W.data_ptr(), tokens.words * 4)
        return None if matcher.is_error() else mask_W
