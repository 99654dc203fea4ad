"""What a user may pass as a prompt, and which of it is one request and which many."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from smcprog.errors import PromptError

__all__ = ["as_prompts"]


def as_prompts(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts of one call, and whether the call was for many.

    A text, a list of chat messages (mappings), or a list of token ids is one prompt; any
    other list is many. Arrays and tensors of ids count as lists.

    Raises
    ------
    PromptError
        For an empty list or anything that is no prompt.
    """
    if hasattr(prompt, "tolist"):
        prompt = prompt.tolist()
    if isinstance(prompt, str):
        return [prompt], False
    if isinstance(prompt, Mapping):
        raise PromptError(
            "a prompt is a text, a list of chat messages or a list of token ids; put the "
            "single message in a list"
        )
    if not isinstance(prompt, (list, tuple)):
        raise PromptError(
            "a prompt is a text, a list of chat messages or a list of token ids, got "
            f"{type(prompt).__name__}"
        )
    if not prompt:
        raise PromptError("the list of prompts is empty: there is nothing to sample from")
    if all(isinstance(p, Mapping) for p in prompt) or all(_is_id(p) for p in prompt):
        return [list(prompt)], False
    return [p.tolist() if hasattr(p, "tolist") else p for p in prompt], True


def _is_id(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
