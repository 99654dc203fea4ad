"""The mask engine (llguidance): compiling a grammar text, and what its errors mean."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = [
    "HEADER",
    "LIMITS",
    "byte_tokenizer",
    "compile_text",
    "error_reason",
    "is_dead_end",
    "is_limit",
    "on_deep_stack",
    "parser_limits",
]

HEADER = '%llguidance {"no_forcing": true}\n'
"""First line of every grammar: forcing one spelling would delete the others' probability."""

T = TypeVar("T")

LIMITS: dict[str, int] = {
    "max_items_in_row": 5_000,  # parser items at one place; a wide schema has some per property
    "step_max_items": 50_000,  # parser items of one mask
    "max_grammar_size": 500_000,  # symbols of the grammar
    "initial_lexer_fuel": 1_000_000,  # building the automaton of the terminals; some 50,000 a ms
    "step_lexer_fuel": 200_000,  # growing it for one mask; some 14,000 a ms
    "max_lexer_states": 50_000,  # states of it, of all texts together; 1 to 2 kB each
}
"""Fuel of the engine: work is counted, so that a grammar costs the same on every machine."""

MAX_SHALLOW = 1_000  # characters of a grammar that cannot recurse deeply
DEEP_STACK = 256 << 20  # bytes of address space, used only as far as needed
_stack_size_lock = threading.Lock()


@lru_cache(maxsize=1)
def byte_tokenizer() -> LLTokenizer:
    """A vocabulary of the 256 bytes, for checks that depend on no model."""
    return LLTokenizer("byte")


def parser_limits() -> LLParserLimits:
    """`LIMITS` as the engine takes them; its messages quote no grammar."""
    options: dict[str, Any] = {**LIMITS, "verbose_errors": False}
    return LLParserLimits(**options)


def compile_text(lark: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the start of the grammar; its `is_error` says whether it compiled."""

    def compile_now() -> LLMatcher:
        return LLMatcher(tokenizer, HEADER + lark, log_level=0, limits=parser_limits())

    return compile_now() if len(lark) < MAX_SHALLOW else on_deep_stack(compile_now)


def on_deep_stack(call: Callable[[], T]) -> T:
    """Call in a thread with a large stack.

    The compiler recurses along chains of references, and the end of the stack would be the
    end of the process.
    """
    result: list[T] = []
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


_LIMIT = re.compile(
    r"fuel exhausted|schema too large|\((?:grammar|number of symbols)\) too big|"
    r"too many (?:expressions|states|items)|items; max is|unable to determine if regex",
    re.IGNORECASE,
)


def is_limit(message: str) -> bool:
    """Whether an error says that the fuel ran out."""
    return _LIMIT.search(message) is not None
