"""Canonical tokenisations only: φ is 1 where the tokenizer would write the text so, else 0."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from smcprog.engine.canonical import CanonicalEncoder, canonical_encoder
from smcprog.engine.vocab import Vocabulary
from smcprog.errors import SettingError
from smcprog.potentials.base import Potential, Request

__all__ = ["Canonical"]


@dataclasses.dataclass(frozen=True)
class _Row:
    """The stretch of text at the end of an output, back to a special token or the start.

    Attributes
    ----------
    tokens : tuple of int
        All of it.
    open_from : int
        Tokens before are known to be canonical, whatever follows.
    pending : bytes
        Of the tokens from there on.
    """

    tokens: tuple[int, ...] = ()
    open_from: int = 0
    pending: bytes = b""


class _State:
    __slots__ = ("encoder", "rows", "vocab")

    def __init__(
        self, vocab: Vocabulary, encoder: CanonicalEncoder, rows: list[_Row | None]
    ) -> None:
        self.vocab = vocab
        self.encoder = encoder
        self.rows = rows  # None: dead


class Canonical(Potential):
    """Keep only outputs that the model's own tokenizer would write that way.

    A text has many spellings as tokens; a tokenizer writes one of them, and a model has seen
    hardly any other. Without this factor all spellings count, each with the model's
    probability.

    An output is canonical if ``encode(decode(tokens)) == tokens``, its EOS left out. The text
    is encoded on its own, as a continuation: no blank is put before it, no special token
    around it, and the prompt's last token is not part of it. Special tokens inside an output
    are no text; what stands between them is encoded stretch by stretch.

    Notes
    -----
    ψ(prefix) becomes 0 only once no continuation can be canonical. For byte-pair encoding
    without pre-tokenizer (as in Llama 2 and Gemma) that is at the first pair of tokens which
    does not occur; where texts are cut into words first, two words later; for other tokenizers
    at the end. There is no mask: a sequence that leaves the canonical one dies afterwards.

    Raises
    ------
    SettingError
        While sampling: the model has no tokenizer (a vocabulary given as bytes), so that there
        is nothing to compare with.

    Examples
    --------
    >>> Target(lm) * Grammar(schema) * Canonical()  # doctest: +SKIP
    """

    joins = True
    indicator = True

    def __repr__(self) -> str:
        return "Canonical()"

    def start(self, request: Request, n: int) -> _State:
        encoder = canonical_encoder(request.vocab)
        if encoder is None:
            raise SettingError(
                "Canonical() compares with what a tokenizer writes, and this model has none: its "
                "vocabulary is a list of bytes; leave Canonical() out"
            )
        return _State(request.vocab, encoder, [_Row()] * n)

    def advance(
        self, state: _State, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[_State, Tensor]:
        known: dict[tuple[int, tuple[int, ...], bool], _Row | None] = {}
        rows: list[_Row | None] = []
        columns = zip(
            state.rows, tokens_N_T.tolist(), lengths_N.tolist(), ended_N.tolist(), strict=True
        )
        for row, tokens, length, ended in columns:
            if row is None:
                rows.append(None)
                continue
            new = tuple(tokens[:length])
            key = (id(row), new, ended)  # rows of one history share the work
            if key not in known:
                known[key] = _extended(state, row, new, ended)
            rows.append(known[key])
        log_psi = [-math.inf if row is None else 0.0 for row in rows]
        after = _State(state.vocab, state.encoder, rows)
        return after, torch.tensor(log_psi, dtype=torch.float64)

    def fork(self, state: _State, ancestors_M: Tensor) -> _State:
        return _State(state.vocab, state.encoder, [state.rows[a] for a in ancestors_M.tolist()])

    def join(self, states: Sequence[_State]) -> _State:
        rows = [row for state in states for row in state.rows]
        return _State(states[0].vocab, states[0].encoder, rows)


def _extended(state: _State, row: _Row | None, new: tuple[int, ...], ended: bool) -> _Row | None:
    """The row after more tokens, or None where no continuation is canonical."""
    table, special = state.vocab.token_bytes, state.vocab.special_ids
    at = 0
    for i, token in enumerate(new):
        if table[token]:
            continue
        if token not in special:
            return None  # an id without a token
        row = _grown(state, row, new[at:i])
        if row is None or not _is_canonical(state, row):
            return None
        row, at = _Row(), i + 1
    row = _grown(state, row, new[at:])
    if row is not None and ended and not _is_canonical(state, row):
        return None
    return row


def _grown(state: _State, row: _Row | None, new: tuple[int, ...]) -> _Row | None:
    """The row after more tokens of text."""
    if row is None or not new:
        return row
    encoder, table = state.encoder, state.vocab.token_bytes
    if encoder.kind == "pairs":
        before = row.tokens[-1] if row.tokens else None
        for token in new:
            if not encoder.follows(before, token):
                return None
            before = token
    tokens = row.tokens + new
    pending = row.pending + b"".join(table[token] for token in new)
    text = _text(pending)
    if text is None:
        return None
    if encoder.kind != "pieces":
        # Only the bytes of a character that is not yet whole are looked at again.
        return _Row(tokens, 0, pending[len(text.encode()) :])
    final = encoder.final(text)
    end = row.open_from + len(final)
    if list(tokens[row.open_from : end]) != final:
        return None
    settled = sum(len(table[token]) for token in final)
    return _Row(tokens, end, pending[settled:])


def _is_canonical(state: _State, row: _Row) -> bool:
    data = b"".join(state.vocab.token_bytes[token] for token in row.tokens)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return state.encoder.encode(text) == list(row.tokens)


def _text(data: bytes) -> str | None:
    """The whole characters of a text that may go on; None if it can be none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return None
        return data[: error.start].decode()
