"""Caps on what one call may ask for, so that a typo cannot take the machine down."""

from __future__ import annotations

__all__ = [
    "COMPILED_BYTES",
    "MAX_CHOICES",
    "MAX_DEVICE_ROUND_ELEMENTS",
    "MAX_DRAFT_PATHS",
    "MAX_GRAMMAR_NESTING",
    "MAX_GRAMMAR_TEXT",
    "MAX_LOGITS",
    "MAX_LOOKAHEAD",
    "MAX_MOVES",
    "MAX_OUTPUT_TOKENS",
    "MAX_PARTICLES",
    "MAX_ROLLOUTS",
    "MAX_ROUND_ELEMENTS",
    "MAX_SCHEMA_VALUES",
    "MAX_SUBSCHEMAS",
    "MAX_TOKENS",
    "VET_MEMORY_MB",
    "VET_SECONDS",
    "VET_WORKERS",
]

MAX_PARTICLES = 65_536
"""Particles of one request."""

MAX_DRAFT_PATHS = 64
"""Drafts per particle."""

MAX_MOVES = 256
"""Moves of a particle in a round, and states in a chain of waste-free SMC."""

MAX_LOOKAHEAD = 256
"""Tokens of a rollout."""

MAX_ROLLOUTS = 64
"""Rollouts of a particle before a resampling."""

MAX_TOKENS = 1_048_576
"""Tokens of one output."""

MAX_OUTPUT_TOKENS = 1 << 26
"""Particles × tokens of one request."""

MAX_LOGITS = 1 << 30
"""Rows × positions × vocabulary of the logits of one request's round (4 GiB in float32)."""

MAX_ROUND_ELEMENTS = 1 << 25
"""Rows × positions × vocabulary of the logits of one round (128 MiB in float32).

Requests are worked on in waves that stay below it; one request alone may exceed it.
"""

MAX_DEVICE_ROUND_ELEMENTS = 1 << 28
"""The same where the model is not on the CPU (1 GiB in float32). What does not fit is halved."""

MAX_GRAMMAR_TEXT = 1_000_000
"""Characters of a pattern, of a Lark grammar, of all choices, or of all strings of a schema."""

MAX_GRAMMAR_NESTING = 200
"""Dicts and lists of a schema, or groups of a pattern or grammar, inside one another."""

MAX_SCHEMA_VALUES = 200_000
"""JSON values in a schema."""

MAX_SUBSCHEMAS = 10_000
"""Objects in a schema. A definition counts once, however often it is referred to."""

MAX_CHOICES = 100_000
"""Strings of one choice."""

VET_SECONDS = 5.0
"""Wall-clock time in which an untrusted grammar must be translated, compiled and tried."""

VET_MEMORY_MB = 512
"""Memory that the process which vets a grammar may take, in MiB, its interpreter included."""

VET_WORKERS = 2
"""Processes that vet grammars at one time; further ones wait for their turn."""

COMPILED_BYTES = 256 << 20
"""Estimated bytes of compiled grammars kept for the next one with the same content."""
