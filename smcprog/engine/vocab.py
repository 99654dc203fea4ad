"""The token-id map of a model: bytes of every token, EOS ids, and the mask engine's view of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.engine.token_bytes import bytes_by_id
from smcprog.errors import ModelError, VocabularyMismatchError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["Vocabulary"]


class Vocabulary:
    """Token ids 0 .. size-1 and what each stands for.

    One table of bytes (`token_bytes`) is behind the text of an output and the masks of grammars
    alike. Everything but the size and the EOS ids is computed on first use.

    Build one with `from_tokenizer` (a model's tokenizer) or `from_tokens` (a list of bytes).

    Attributes
    ----------
    size : int
        V, the width of the logits; ids without a token (padding of the embedding matrix)
        included.
    eos_ids : tuple of int
        Ids that end an output.
    tokenizer : transformers.PreTrainedTokenizerFast or None
        What it was made from; None for a list of bytes.

    Raises
    ------
    ModelError
        If there is no EOS id, or one is out of range.
    """

    def __init__(
        self,
        size: int,
        eos_ids: Iterable[int],
        *,
        make_bytes: Callable[[], Mapping[int, bytes]],
        make_ids: Callable[[], dict[str, int]],
        make_special: Callable[[], Iterable[int]] = tuple,
        tokenizer: Any = None,
    ) -> None:
        self.size = int(size)
        self.eos_ids = tuple(dict.fromkeys(int(i) for i in eos_ids))
        if not self.eos_ids:
            raise ModelError(
                "no end-of-sequence token is known, so no output could end; set eos_token_id in "
                "the model's generation config"
            )
        wrong = [i for i in self.eos_ids if not 0 <= i < self.size]
        if wrong:
            raise ModelError(f"end-of-sequence ids {wrong} are outside the vocabulary of {size}")
        self.tokenizer = tokenizer
        self._make_bytes = make_bytes
        self._make_ids = make_ids
        self._make_special = make_special
        self._same: weakref.WeakSet[Vocabulary] = weakref.WeakSet()

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, size: int, eos_ids: Iterable[int]) -> Vocabulary:
        """Vocabulary of a Hugging Face fast tokenizer.

        Parameters
        ----------
        tokenizer : transformers.PreTrainedTokenizerFast
        size : int
            Width of the model's logits; may exceed the number of tokens.
        eos_ids : iterable of int

        Raises
        ------
        ModelError
            If the tokenizer is not a fast one, the bytes of its tokens cannot be told, there
            is no EOS id, or one is out of range.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; the model folder needs a "
                "tokenizer.json"
            )

        def make_ids() -> dict[str, int]:
            return {token: i for token, i in tokenizer.get_vocab().items() if i < size}

        def make_special() -> Iterable[int]:
            added = tokenizer.added_tokens_decoder.items()
            return [*tokenizer.all_special_ids, *(i for i, t in added if t.special)]

        return cls(
            size,
            eos_ids,
            make_bytes=bytes_by_id(tokenizer),
            make_ids=make_ids,
            make_special=make_special,
            tokenizer=tokenizer,
        )

    @classmethod
    def from_tokens(cls, tokens: Sequence[bytes], eos_ids: Iterable[int]) -> Vocabulary:
        """Vocabulary given by the bytes of each token, for toy models and tests.

        Parameters
        ----------
        tokens : sequence of bytes
            One entry an id. The entries of EOS ids only name them; their text is empty.
        eos_ids : iterable of int
            At least one.
        """
        tokens = [bytes(t) for t in tokens]

        def make_ids() -> dict[str, int]:
            ids: dict[str, int] = {}
            for i, token in enumerate(tokens):
                name = token.decode("latin-1")
                ids[name if name not in ids else f"{name}#{i}"] = i
            return ids

        return cls(
            len(tokens), eos_ids, make_bytes=lambda: dict(enumerate(tokens)), make_ids=make_ids
        )

    @cached_property
    def ll_tokenizer(self) -> LLTokenizer:
        """The mask engine's tokenizer over the same ids (built once, up to a second)."""
        from llguidance import LLTokenizer, TokenizerWrapper

        # No text holds the byte FF, by which the engine knows special tokens; FE is as good.
        tokens = [text.replace(b"\xff", b"\xfe") for text in self.token_bytes]
        wrapper = TokenizerWrapper(_ByteTokens(tokens, self.eos_ids))
        return LLTokenizer(wrapper, eos_token=list(self.eos_ids))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return self._make_ids()

    def ids(self) -> Mapping[str, int]:
        """Token string -> id, as the tokenizer spells them. Read only."""
        return MappingProxyType(self._ids)

    @cached_property
    def known_V(self) -> Tensor | None:
        """bool [V], True where an id is a real token; None if every id is."""
        known = torch.zeros(self.size, dtype=torch.bool)
        known[torch.tensor(list(self._ids.values()), dtype=torch.int64)] = True
        return None if bool(known.all()) else known

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids without text of their own: EOS ids, and what the tokenizer marks as special.

        Markup that the tokenizer shows as text, such as ``<think>`` in some models, is not
        among them: it is one more spelling of that text, in grammars, too.
        """
        return frozenset(i for i in (*self.eos_ids, *self._make_special()) if i < self.size)

    @cached_property
    def token_bytes(self) -> list[bytes]:
        """Bytes of each id; b"" for special tokens and for ids without a token."""
        bytes_of, special = self._make_bytes(), self.special_ids
        return [b"" if i in special else bytes_of.get(i, b"") for i in range(self.size)]

    def to_bytes(self, tokens: Iterable[int]) -> bytes:
        """Bytes of a token sequence, special tokens left out."""
        table = self.token_bytes
        return b"".join(table[int(t)] for t in tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of a token sequence, special tokens left out.

        Bytes that are not UTF-8 (a character cut in half at the end, for instance) become
        the replacement character.
        """
        return self.to_bytes(tokens).decode("utf-8", errors="replace")

    def check_same(self, other: Vocabulary, *, this: str, that: str) -> None:
        """Raise unless both vocabularies give every id the same token.

        Logits may be padded to different widths; the ids beyond the tokens mean nothing.

        Parameters
        ----------
        other : Vocabulary
        this, that : str
            What to call the two models in the message.

        Raises
        ------
        VocabularyMismatchError
            Naming the first id whose tokens differ.
        """
        if other is self or other in self._same:
            return
        if self._ids != other._ids:
            mine, theirs = ({i: t for t, i in v._ids.items()} for v in (self, other))
            first = min(i for i in mine.keys() | theirs.keys() if mine.get(i) != theirs.get(i))
            raise VocabularyMismatchError(
                f"{this} and {that} do not share one vocabulary: token id {first} is "
                f"{_show(mine.get(first))} in {this} and {_show(theirs.get(first))} in {that}; "
                "use two models with the same tokenizer"
            )
        self._same.add(other)

    def __repr__(self) -> str:
        return f"Vocabulary(size={self.size}, eos_ids={self.eos_ids})"


def _show(token: str | None) -> str:
    return "unused" if token is None else repr(token)


class _ByteTokens:
    """A byte tokenizer in the form `llguidance.TokenizerWrapper` takes."""

    def __init__(self, tokens: Sequence[bytes], eos_ids: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.eos_token_id = int(eos_ids[0])
        self.bos_token_id = None
        self.special_token_ids = list(eos_ids)
        self._by_length = sorted(
            (i for i, t in enumerate(tokens) if t and i not in set(eos_ids)),
            key=lambda i: -len(tokens[i]),
        )

    def __call__(self, text: str | bytes) -> list[int]:
        """Greedy, longest token first."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        out: list[int] = []
        at = 0
        while at < len(data):
            for i in self._by_length:
                if data.startswith(self.tokens[i], at):
                    out.append(i)
                    at += len(self.tokens[i])
                    break
            else:
                raise ValueError(f"no token for the bytes {data[at:]!r}")
        return out
