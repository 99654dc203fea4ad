"""Caps on what one call may ask for, so that a typo cannot take the machine down."""

from __future__ import annotations

__all__ = [
    "MAX_DRAFT_PATHS",
    "MAX_LOGITS",
    "MAX_OUTPUT_TOKENS",
    "MAX_PARTICLES",
    "MAX_ROUND_ELEMENTS",
    "MAX_TOKENS",
]

MAX_PARTICLES = 65_536
"""Particles of one request."""

MAX_DRAFT_PATHS = 64
"""Drafts per particle."""

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
