"""The bytes that each token of a Hugging Face tokenizer stands for.

They follow from the tokenizer's *decoder*. Two kinds of decoder treat every token alike, so that
the bytes of an output are those of its tokens, one after the other:

- byte level (GPT-2, and what is converted from tiktoken): each character is one byte;
- SentencePiece: ``▁`` is a blank, and ``<0xE2>`` a byte where there is byte fallback.

Others look at a token's neighbours (WordPiece joins by blanks) and are refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from smcprog.errors import ModelError

__all__ = ["bytes_by_id"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def bytes_by_id(tokenizer: Any) -> Callable[[], dict[int, bytes]]:
    """How to list the bytes of all tokens, special ones included, by id.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerFast
        Its decoder is looked at now, its vocabulary when the result is called.

    Raises
    ------
    ModelError
        If bytes cannot be told token by token; names what stands in the way.
    """
    backend = tokenizer.backend_tokenizer
    steps = list(_steps(backend.decoder))
    if not steps:
        raise ModelError(
            "the tokenizer has no decoder, so the bytes of its tokens cannot be told; byte-level "
            "and SentencePiece tokenizers have one"
        )
    spell = _byte_level if steps[0]["type"] == "ByteLevel" else _pieces(steps)

    def table() -> dict[int, bytes]:
        bytes_of = {i: spell(piece) for piece, i in backend.get_vocab(False).items()}
        for i, added in backend.get_added_tokens_decoder().items():
            if i not in bytes_of:  # it is found in texts as it stands, whatever the model does
                bytes_of[i] = added.content.encode()
        return bytes_of

    return table


def _steps(decoder: Any) -> Iterator[dict[str, Any]]:
    """What a decoder does, in order, nested sequences opened."""

    def flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if step["type"] == "Sequence":
            for inner in step["decoders"]:
                yield from flat(inner)
        else:
            yield step

    if decoder is not None:
        yield from flat(json.loads(decoder.__getstate__()))


def _pieces(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """Bytes of SentencePiece's pieces under a list of decoder steps."""
    replaced: list[tuple[str, str]] = []
    fallback = fused = False
    for step in steps:
        kind = step["type"]
        if kind == "Replace" and "String" in step["pattern"]:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            # It also drops the blank before a text, which an output is not the beginning of.
            replaced.append((step["replacement"], " "))
        elif kind == "ByteFallback":
            fallback = True
        elif kind == "Fuse":
            fused = True
        elif kind == "Strip" and fused and step["content"] == " " and step["stop"] == 0:
            pass  # the blank before a text, again
        else:
            raise ModelError(
                f"the tokenizer's decoder has a step {kind}, under which the bytes of a token "
                "depend on its neighbours; byte-level and SentencePiece tokenizers can be used"
            )

    def spell(piece: str) -> bytes:
        byte = _BYTE_PIECE.fullmatch(piece) if fallback else None
        if byte is not None:
            return bytes([int(byte.group(1), 16)])
        for old, new in replaced:
            piece = piece.replace(old, new)
        return piece.encode()

    return spell


def _byte_of() -> dict[str, int]:
    """GPT-2's characters for bytes: printable Latin-1 stands for itself, the rest from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    shown = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
    return {character: byte for byte, character in shown.items()}


_BYTE_OF = _byte_of()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF[c] for c in piece)
    except KeyError:  # not of that alphabet: text as it stands, as the decoder has it
        return piece.encode()
