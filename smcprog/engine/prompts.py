"""A prompt as the user gives it, to token ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import PromptError

__all__ = ["check_tokens", "encode_prompt"]


def encode_prompt(prompt: Any, tokenizer: Any, vocab: Vocabulary, max_context: int) -> list[int]:
    """Token ids of a text, of chat messages, or of token ids given as they are.

    Raises
    ------
    PromptError
        If the prompt is empty, of another form, longer than the context, holds an unknown id,
        or is a chat and the model has no chat template.
    """
    if isinstance(prompt, str):
        tokens = _encode_text(prompt, tokenizer, vocab)
    elif isinstance(prompt, bytes) or not hasattr(prompt, "__iter__") or isinstance(prompt, dict):
        raise PromptError(
            f"a prompt is a text, a list of chat messages or a list of token ids, not "
            f"{type(prompt).__name__}"
        )
    else:
        items = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
        if items and isinstance(items[0], dict):
            tokens = _encode_chat(items, tokenizer)
        else:
            tokens = items
    return check_tokens(tokens, vocab, max_context)


def check_tokens(tokens: Sequence[Any], vocab: Vocabulary, max_context: int) -> list[int]:
    """The ids as ints, if there are any, all are known and they fit the context."""
    if len(tokens) == 0:
        raise PromptError(
            "the prompt is empty; to generate without a prompt, pass a list that holds the "
            "beginning-of-sequence id"
        )
    if len(tokens) > max_context:
        raise PromptError(
            f"the prompt has {len(tokens)} tokens, and the model's context is {max_context}"
        )
    known = vocab.known_V
    ids = []
    for position, token in enumerate(tokens):
        try:
            if isinstance(token, bool):
                raise TypeError
            i = operator.index(token)
        except TypeError:
            raise PromptError(
                f"the prompt's entry {position} is {token!r}; a list is either all token ids or "
                "all chat messages"
            ) from None
        if not 0 <= i < vocab.size or (known is not None and not known[i]):
            raise PromptError(
                f"the prompt's token {position} is {i}, which is no token of the model "
                f"(ids 0 to {vocab.size - 1})"
            )
        ids.append(i)
    return ids


def _encode_text(text: str, tokenizer: Any, vocab: Vocabulary) -> list[int]:
    if not text:
        return []
    try:
        if isinstance(tokenizer, Vocabulary):
            return list(vocab.ll_tokenizer.tokenize_str(text))
        return list(tokenizer(text, verbose=False)["input_ids"])
    except Exception as error:
        raise PromptError(f"the prompt cannot be tokenized: {error}") from error


def _encode_chat(messages: list[Any], tokenizer: Any) -> list[int]:
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise PromptError(
                f"chat message {i} is {message!r}; each is a dict with 'role' and 'content'"
            )
    if getattr(tokenizer, "chat_template", None) is None:
        raise PromptError("chat messages need a model with a chat template; this one has none")
    try:
        return list(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
    except Exception as error:
        raise PromptError(f"the chat template refuses the messages: {error}") from error
