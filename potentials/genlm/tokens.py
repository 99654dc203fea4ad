"""Our token ids as items of a genlm-control potential's vocabulary.

Their vocabularies come in three kinds: `Token` objects of a tokenizer (an id and its bytes),
byte strings of any length, and single bytes (ints, or byte strings of length 1). What a
vocabulary does not hold has weight zero there, and so it has here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SettingError, VocabularyMismatchError

__all__ = ["TokenItems", "Words", "kind_of"]

Items = tuple[Any, ...]


def kind_of(name: str, vocab: Any) -> str:
    """Of what kind a vocabulary is: "tokens", "strings", "bytes" or "ints".

    Raises
    ------
    SettingError
        If it is of none of these.
    """
    first = next(iter(vocab), None)
    if isinstance(first, bytes) and isinstance(getattr(first, "token_id", None), int):
        return "tokens"
    if isinstance(first, bytes):
        return "bytes" if all(len(item) == 1 for item in vocab) else "strings"
    if isinstance(first, int) and all(isinstance(i, int) and 0 <= i < 256 for i in vocab):
        return "ints"
    raise SettingError(
        f"{name}: a vocabulary of {type(first).__name__} has no translation from tokens; coerce "
        "the potential to tokens, byte strings or single bytes (potential.coerce(llm, f=...))"
    )


@dataclasses.dataclass(frozen=True)
class TokenItems:
    """What each id adds to a context; None where the vocabulary does not hold it.

    Attributes
    ----------
    items_V : list of (tuple or None)
        EOS ids have None: they are no part of a context.
    """

    items_V: list[Items | None]

    @classmethod
    def of(cls, name: str, theirs: Any, vocab: Vocabulary) -> TokenItems:
        """Translation between a vocabulary of theirs and of ours.

        Raises
        ------
        SettingError
            If theirs is of an unknown kind, or holds nothing of ours.
        VocabularyMismatchError
            If theirs is of tokens, and an id stands for other bytes there.
        """
        kind = kind_of(name, theirs)
        texts = vocab.token_bytes
        items: list[Items | None] = [None] * vocab.size
        if kind == "tokens":
            for token in theirs:
                v = token.token_id
                if v >= vocab.size:
                    continue
                if texts[v] and bytes(token) != texts[v]:
                    raise VocabularyMismatchError(
                        f"{name}: token id {v} stands for {bytes(token)!r} there and for "
                        f"{texts[v]!r} in the target's model; make it with the same tokenizer"
                    )
                items[v] = (token,)
        else:
            known = set(theirs)
            for v, text in enumerate(texts):
                if not text:
                    continue  # special tokens are no text
                if kind == "strings":
                    parts: Items = (text,)
                elif kind == "ints":
                    parts = tuple(text)
                else:
                    parts = tuple(bytes([b]) for b in text)
                if known.issuperset(parts):
                    items[v] = parts
        for v in vocab.eos_ids:
            items[v] = None
        if not any(items):
            raise SettingError(f"{name}: its vocabulary holds no token of the target's model")
        return cls(items)


@dataclasses.dataclass(frozen=True)
class Words:
    """Where each of our ids is in a next-token row of a vocabulary of whole tokens.

    Attributes
    ----------
    column_V : Tensor, int64
        Place in ``vocab_eos``; one beyond the last where the vocabulary does not hold the id.
    """

    column_V: Tensor

    @classmethod
    def of(cls, potential: Any, tokens: TokenItems, vocab: Vocabulary) -> Words:
        """For a potential over tokens or byte strings."""
        outside, lookup = len(potential.vocab) + 1, potential.lookup
        columns = [outside if not parts else lookup[parts[0]] for parts in tokens.items_V]
        for v in vocab.eos_ids:
            columns[v] = len(potential.vocab)
        return cls(torch.tensor(columns))

    def spread(self, logw_N_W: Tensor) -> Tensor:
        """A block of theirs [N, V' + 1] over our ids, [N, V]."""
        nothing_N_1 = torch.full_like(logw_N_W[:, :1], -torch.inf)
        return torch.cat([logw_N_W, nothing_N_1], dim=1)[:, self.column_V]
