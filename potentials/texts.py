"""Texts of outputs, finished and unfinished, as functions of text see them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from smcprog.potentials.base import Request

__all__ = ["prompt_text", "settled_text", "unfinished_text"]


def prompt_text(request: Request) -> str:
    """The prompt as text: a text as it was given, anything else as its tokens read."""
    if isinstance(request.prompt, str):
        return request.prompt
    return request.vocab.decode(request.prompt_tokens)


def settled_text(data: bytes, stop: Sequence[str]) -> str:
    """What the text of every continuation of an output begins with, however it goes on.

    Without a last character of which bytes are missing, and without what may turn out to begin
    a stop string.
    """
    held = 0
    for needle in (s.encode() for s in stop):
        for length in range(min(len(needle) - 1, len(data)), held, -1):
            if data.endswith(needle[:length]):
                held = length
                break
    return whole_characters(data[: len(data) - held])


def unfinished_text(data: bytes, stop: Sequence[str]) -> str:
    """`settled_text`, cut before a stop string that the output holds already."""
    cuts = [i for i in (data.find(s.encode()) for s in stop) if i >= 0]
    return whole_characters(data[: min(cuts)]) if cuts else settled_text(data, stop)


def whole_characters(data: bytes) -> str:
    """Bytes as text, without a last character that may still become whole."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data)
