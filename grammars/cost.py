"""What a grammar costs the mask engine, counted in its own fuel: the same on every machine."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from llguidance import LLInterpreter

from smcprog.errors import GrammarLimitError
from smcprog.grammars.engine import (
    HEADER,
    LIMITS,
    byte_tokenizer,
    error_reason,
    is_limit,
    on_deep_stack,
    parser_limits,
)

__all__ = ["Cost", "walk_cost"]

WALK_BYTES = 48
WALKS = 2
SECONDS_PER_ITEM = 1 / 20e6  # the engine's own figures, on one core of a few years ago
SECONDS_PER_FUEL = 1 / 14e6
SECONDS_PER_BUILD_FUEL = 1 / 50e6


@dataclass(frozen=True)
class Cost:
    """Work of the mask engine for a grammar, over the vocabulary of the 256 bytes.

    Attributes
    ----------
    text : int
        Characters of the grammar as the engine gets it.
    build : int
        Lexer fuel that building the automaton of the terminals took.
    masks : int
        Masks along the walks.
    items, fuel : int
        Parser items and lexer fuel of the dearest mask of the walks.
    """

    text: int
    build: int
    masks: int
    items: int
    fuel: int

    def __str__(self) -> str:
        slowest = self.items * SECONDS_PER_ITEM + self.fuel * SECONDS_PER_FUEL
        return (
            f"{self.text:,} characters for the mask engine, lexer fuel {self.build:,} to build "
            f"(about {self.build * SECONDS_PER_BUILD_FUEL * 1e3:.1f} ms); the dearest of "
            f"{self.masks} masks on a walk by bytes took {self.items:,} parser items and lexer "
            f"fuel {self.fuel:,} (about {slowest * 1e6:.0f} µs, without the walk over the tokens)"
        )


def walk_cost(lark: str, *, walks: int = WALKS, steps: int = WALK_BYTES) -> Cost:
    """Build the grammar and follow random texts of it, byte by byte.

    Parameters
    ----------
    lark : str
        A grammar that compiles.
    walks, steps : int
        How many texts, and how many bytes of each at most. The random choices are fixed.

    Raises
    ------
    GrammarLimitError
        If the engine runs out of fuel on the way.
    """

    def begin() -> LLInterpreter:
        engine = LLInterpreter(
            byte_tokenizer(),
            HEADER + lark,
            enable_backtrack=False,
            enable_ff_tokens=False,
            log_level=0,
            limits=parser_limits(),
        )
        engine.start_without_prompt()
        return engine

    first = on_deep_stack(begin)
    build = masks = items = fuel = 0
    for walk in range(walks):
        rng = random.Random(walk)
        engine = first.deep_copy()
        for step in range(steps):
            allowed, spent = _next_bytes(engine)
            masks += 1
            if step == 0:
                # The engine counts building the automaton with the first mask.
                build = spent["lexer_cost"]
            else:
                fuel = max(fuel, spent["lexer_cost"])
            items = max(items, spent["all_items"])
            if not allowed:
                break
            engine.commit_token(rng.choice(allowed))
    return Cost(len(lark), build, masks, items, fuel)


def _next_bytes(engine: LLInterpreter) -> tuple[list[int], dict[str, int]]:
    """The bytes that may follow, and what finding them took."""
    spent = {"lexer_cost": 0, "all_items": 0}
    try:
        mask, report = engine.compute_mask()
    except ValueError as error:
        if is_limit(str(error)):
            raise _gave_up(error_reason(str(error))[0]) from None
        return [], spent
    for entry in json.loads(report)["progress"]:
        for name in spent:
            spent[name] += entry.get("stats", {}).get(name, 0)
    reason = engine.stop_reason()
    if reason in ("ParserTooComplex", "LexerTooComplex", "InternalError"):
        raise _gave_up(reason)
    if mask is None:
        return [], spent
    return [b for b in range(256) if mask[b]], spent  # one byte a token


def _gave_up(reason: str) -> GrammarLimitError:
    return GrammarLimitError(
        f"the mask engine gave up on a text of the grammar ({reason}): its fuel is "
        f"{LIMITS['step_max_items']:,} parser items and {LIMITS['step_lexer_fuel']:,} units of "
        "lexer work a mask; make the grammar less ambiguous, or its repeats smaller",
        limit="fuel",
    )
