"""The mask engine (llguidance): compiling a grammar text, and what its errors mean."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = ["HEADER", "byte_tokenizer", "compile_text", "error_reason", "is_dead_end"]

HEADER = '%llguidance {"no_forcing": true}\n'
"""First line of every grammar: forcing one spelling would delete the others' probability."""

MAX_ITEMS = 5_000  # parser states at one place; a wide schema has some for each property
MAX_SHALLOW = 1_000  # characters of a grammar that cannot recurse deeply
DEEP_STACK = 256 << 20  # bytes of address space, used only as far as needed
_stack_size_lock = threading.Lock()


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """A vocabulary of the 256 bytes, for checks that depend on no model."""
    return LLTokenizer("byte")


def compile_text(lark: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the start of the grammar; its `is_error` says whether it compiled."""

    def compile_now() -> LLMatcher:
        limits = LLParserLimits(max_items_in_row=MAX_ITEMS, verbose_errors=False)
        return LLMatcher(tokenizer, HEADER + lark, log_level=0, limits=limits)

    return compile_now() if len(lark) < MAX_SHALLOW else _on_deep_stack(compile_now)


def _on_deep_stack(call: Callable[[], LLMatcher]) -> LLMatcher:
    """Call in a thread with a large stack.

    The compiler recurses along chains of references, and the end of the stack would be the
    end of the process.
    """
    result: list[LLMatcher] = []
    thread = threading.Thread(target=lambda: result.append(call()))
    with _stack_size_lock:  # the setting is global
        before = threading.stack_size(DEEP_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return result[0]


def error_reason(message: str) -> tuple[str, int | None, int | None]:
    """Reason, line and column (from 1, header not counted) of a compile error."""
    place = re.match(r"(?:at )?(\d+)\((\d+)\): ", message)
    # The engine shows the offending lines after the reason; ours are not the user's.
    reason = re.sub(r"\n\s*\d+ \| (?s:.*)", "", message[place.end() :] if place else message)
    reason = re.sub(r"\s*\n\s*", " ", reason.replace("<non-verbose/>", "")).strip()
    if place is None:
        return reason, None, None
    return reason, int(place.group(1)) - HEADER.count("\n"), int(place.group(2))


def is_dead_end(message: str) -> bool:
    """Whether an error only says that no token of the vocabulary can follow."""
    return message.startswith("NoExtensionBias")
