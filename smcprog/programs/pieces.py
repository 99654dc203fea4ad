"""What a particle's text is made of: pieces that never change, so that particles share them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import InputError, VocabularyMismatchError

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = [
    "History",
    "Piece",
    "encode_text",
    "history_key",
    "same_vocabulary",
    "settled",
    "text_of",
    "tokens_for",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """What one verb added to one particle.

    Attributes
    ----------
    kind : str
        The verb.
    data : bytes
        The text.
    vocab : Vocabulary or None
        Whose ids the tokens are; None for a text that no model has read yet.
    tokens : tuple of int
        Without the EOS that ended it.
    logprobs : tuple of float
        One a token; NaN where no model was asked.
    end : (int, float) or None
        The EOS that ended it and its log-probability: part of the output if nothing follows.
    finish : str
        Finish reason of the particle if nothing follows.
    markup : bool
        Whether special tokens in the text are read as such by other models.
    """

    kind: str
    data: bytes
    vocab: Vocabulary | None = None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    end: tuple[int, float] | None = None
    finish: str = "stop"
    markup: bool = False

    @cached_property
    def key(self) -> int:
        """A hash of what it says."""
        return hash((self.tokens, self.data))

    @cached_property
    def settled(self) -> Piece:
        """The same without its EOS: something follows."""
        return self if self.end is None else dataclasses.replace(self, end=None, finish="stop")


History = tuple[Piece, ...]


def settled(history: History) -> History:
    """A history that goes on: the EOS that ended its last piece is no part of it."""
    if not history or history[-1].end is None:
        return history
    return (*history[:-1], history[-1].settled)


def history_key(history: History) -> int:
    """A hash of all that a particle says."""
    return hash(tuple(piece.key for piece in history))


def text_of(pieces: Iterable[Piece]) -> str:
    """Their text; bytes that are no UTF-8 become the replacement character."""
    return b"".join(p.data for p in pieces).decode("utf-8", errors="replace")


def tokens_for(lm: LM, pieces: Iterable[Piece]) -> list[int]:
    """Tokens of pieces as a model reads them, an EOS at the end of a piece left out.

    A piece of another vocabulary is tokenised anew, as it stands.
    """
    out: list[int] = []
    for piece in pieces:
        if piece.vocab is not None and same_vocabulary(piece.vocab, lm.vocab):
            out.extend(piece.tokens)
        else:
            text = piece.data.decode("utf-8", errors="replace")
            out.extend(encode_text(lm, text, markup=piece.markup))
    return out


def same_vocabulary(a: Vocabulary, b: Vocabulary) -> bool:
    """Whether ids mean the same in both."""
    if a is b:
        return True
    try:
        a.check_same(b, this="", that="")
    except VocabularyMismatchError:
        return False
    return True


def encode_text(lm: LM, text: str, *, markup: bool) -> tuple[int, ...]:
    """Token ids of a text that follows others: no beginning-of-sequence token is added.

    Parameters
    ----------
    lm : LM
    text : str
    markup : bool
        Whether special tokens are recognised in it; otherwise their letters are text.

    Raises
    ------
    InputError
        If the text is none, or cannot be tokenised.
    """
    if not isinstance(text, str):
        raise InputError(f"a text must be a str, got {type(text).__name__}")
    if not text:
        return ()
    tokenizer: Any = getattr(lm, "tokenizer", None)
    try:
        if tokenizer is None or isinstance(tokenizer, Vocabulary):
            missing = set(text.encode()) - set(b"".join(lm.vocab.token_bytes))
            if missing:
                raise ValueError(f"no token holds the bytes {bytes(sorted(missing))!r}")
            return tuple(lm.vocab.ll_tokenizer.tokenize_str(text))
        encoded = tokenizer(
            text, add_special_tokens=False, split_special_tokens=not markup, verbose=False
        )
        return tuple(encoded["input_ids"])
    except Exception as error:
        raise InputError(f"{lm.name} cannot tokenise {text[:80]!r}: {error}") from error
