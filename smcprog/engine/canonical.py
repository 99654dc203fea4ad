"""The token sequence that a tokenizer itself would write for a text, and how soon one is off it.

A stretch of text is encoded as a *continuation*: without the blank that some tokenizers put
before a text, without special tokens around it, and with the literal text of special tokens
taken as text. What has become final of the encoding before the text ends depends on the kind of
tokenizer:

- ``pieces``: texts are cut into pieces first (words, numbers, white space), by one of the
  well-known rules. All pieces but the last two stay as they are whatever follows, and so do
  their tokens. (Two, since what follows may complete ``'re``, hand a blank to a word, or join
  white space around a line break.)
- ``pairs``: byte-pair encoding of a text as a whole. Two neighbours of a canonical sequence are
  the encoding of their own text, since no merge has crossed the border between them.
- ``end``: anything else; known when the text is complete.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

from smcprog.engine.vocab import Vocabulary

__all__ = ["CanonicalEncoder", "canonical_encoder"]

_CONTRACTIONS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    r"'s|'t|'re|'ve|'m|'ll|'d",
)
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = "|".join(
    rf"[^\r\n\p{{L}}\p{{N}}]?{letters}(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    for letters in (
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    )
)
PIECES_FINAL_BUT_TWO = frozenset(
    [
        rf"{short}|{_LETTERS}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
        for short in _CONTRACTIONS
        for digits in (r"\p{N}{1,3}", r"\p{N}")
    ]
    + [rf"{_CASED}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"]
    + [rf"{_CONTRACTIONS[2]}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"]
)
"""The patterns of Llama 3, Qwen 2, o200k and GPT-2, of which all but two pieces are final."""


class CanonicalEncoder:
    """Encodes stretches of text as one tokenizer does.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        Not changed.

    Attributes
    ----------
    kind : {"pieces", "pairs", "end"}
        How non-canonical sequences are told before the text ends.
    """

    def __init__(self, backend: Tokenizer) -> None:
        spec = json.loads(backend.to_str())
        spec |= {"truncation": None, "padding": None, "post_processor": None}
        if "dropout" in spec["model"]:
            spec["model"]["dropout"] = None
        normalizers = [s for s in _flat(spec["normalizer"]) if not _marks_a_beginning(s)]
        splitters = list(_flat(spec["pre_tokenizer"]))
        for step in splitters:
            if step["type"] == "Metaspace":
                step["prepend_scheme"] = "never"
            elif step["type"] == "ByteLevel":
                step["add_prefix_space"] = False
        spec["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splitters}
        self._tokenizer = Tokenizer.from_str(json.dumps(spec))
        self._tokenizer.encode_special_tokens = True
        added = [t for t in spec["added_tokens"] if not t["special"]]
        self.kind = _kind(spec, normalizers, splitters, added)
        if self.kind == "pairs":
            self._merger = _merger(spec)
            self._ignores_merges = bool(spec["model"].get("ignore_merges"))
            self._piece_of = {i: piece for piece, i in backend.get_vocab(False).items()}
            self._unpaired = {t["id"] for t in spec["added_tokens"]}
            self._follows = functools.lru_cache(maxsize=1 << 16)(self._compare)

    def encode(self, text: str) -> list[int] | None:
        """Ids of a complete stretch; None if the tokenizer cannot encode it."""
        if not text:
            return []
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        except Exception:  # an unknown character, of a tokenizer without a token for such
            return None

    def final(self, text: str) -> list[int]:
        """First ids of the encoding of every text that begins with `text` (kind "pieces").

        But for texts with an added token over the end of `text`: there, no sequence with a
        token border at that place is canonical.
        """
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception:
            return []
        pieces = [-1 if piece is None else piece for piece in encoding.word_ids]
        if not pieces or -1 in pieces:
            return []
        return [i for i, piece in zip(encoding.ids, pieces, strict=True) if piece < pieces[-1] - 1]

    def follows(self, first: int | None, second: int) -> bool:
        """Whether a canonical sequence may hold two neighbours (kind "pairs"); None: the start."""
        return self._follows(first, second)

    def _compare(self, first: int | None, second: int) -> bool:
        ids = [second] if first is None else [first, second]
        if len(ids) == 1 and self._ignores_merges:
            return True  # the whole text may be one piece
        pieces = [self._piece_of.get(i) for i in ids]
        if any(piece is None or i in self._unpaired for piece, i in zip(pieces, ids, strict=True)):
            return True
        if any(piece.startswith("<0x") for piece in pieces if piece):
            return True  # a byte of a character without a token; never merged
        merged = self._merger.encode("".join(filter(None, pieces)), add_special_tokens=False)
        return list(merged.ids) == ids


_encoders: WeakKeyDictionary[Vocabulary, CanonicalEncoder] = WeakKeyDictionary()


def canonical_encoder(vocab: Vocabulary) -> CanonicalEncoder | None:
    """The encoder of a vocabulary, made once; None where it has no tokenizer."""
    if vocab.tokenizer is None:
        return None
    if vocab not in _encoders:
        _encoders[vocab] = CanonicalEncoder(vocab.tokenizer.backend_tokenizer)
    return _encoders[vocab]


def _flat(step: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, nested sequences opened."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step.get("normalizers") or step.get("pretokenizers") or []:
            yield from _flat(inner)
    else:
        yield step


def _marks_a_beginning(step: dict[str, Any]) -> bool:
    """Whether a normalizer puts a blank before a text, or trims its ends."""
    pattern = step.get("pattern", {}).get("Regex")
    return step["type"] in {"Prepend", "Strip"} or pattern in {r"\A▁", r"\A +| +\z"}


def _kind(
    spec: dict[str, Any],
    normalizers: Sequence[dict[str, Any]],
    splitters: Sequence[dict[str, Any]],
    added: Sequence[dict[str, Any]],
) -> str:
    model = spec["model"]
    plain_bpe = model["type"] == "BPE" and not (
        model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    )
    if plain_bpe and not any(s["type"] != "Metaspace" or s["split"] for s in splitters):
        return "pairs"
    local = all(
        s["type"] == "NFC" or (s["type"] == "Replace" and "String" in s["pattern"])
        for s in normalizers
    )
    eager = any(t["lstrip"] or t["rstrip"] or t["single_word"] for t in added)
    return "pieces" if local and not eager and _known_pieces(splitters) else "end"


def _known_pieces(splitters: Sequence[dict[str, Any]]) -> bool:
    """Whether the last splitter is one of the known rules, and those before look at one place."""
    steps = list(splitters)
    while steps and steps[0]["type"] == "Digits":
        steps.pop(0)
    if steps and steps[0]["type"] == "Metaspace":
        return len(steps) == 1 and steps[0]["split"]
    if steps and steps[0]["type"] == "ByteLevel":
        return len(steps) == 1 and steps[0]["use_regex"]
    if len(steps) != 2 or steps[0]["type"] != "Split":
        return False
    split, last = steps
    whole = (split["behavior"], split["invert"]) in {("Isolated", False), ("Removed", True)}
    known = split["pattern"].get("Regex") in PIECES_FINAL_BUT_TWO
    return whole and known and last["type"] == "ByteLevel" and not last["use_regex"]


def _merger(spec: dict[str, Any]) -> Tokenizer:
    """Merges alone: pieces in, no normalizer, no added tokens."""
    model = {**spec["model"], "ignore_merges": False}
    bare: dict[str, Any] = {
        "normalizer": None,
        "pre_tokenizer": None,
        "added_tokens": [],
        "decoder": None,
    }
    return Tokenizer.from_str(json.dumps({**spec, **bare, "model": model}))
