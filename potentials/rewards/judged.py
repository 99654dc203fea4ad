"""What a reward model is shown: a prompt and an output, as one text or as a chat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smcprog.engine.vocab import Vocabulary
from smcprog.errors import PotentialError, SettingError

__all__ = ["Judged"]

PLACE = "\ue000output\ue001"  # stands for the output in a chat template


class Judged:
    """How a prompt and the text of an output become what a model judges.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase or Vocabulary
        The reward model's.
    prompt : bool
        Whether the prompt is part of it.
    chat : bool or None
        Whether prompt and output become the turns of a chat, through the tokenizer's chat
        template; None: where the prompt is a list of messages and there is a template.
    template : callable or None
        From the texts of prompt and output to the text that is judged, instead.

    Raises
    ------
    SettingError
        Two of them exclude each other, or there is no chat template.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: bool = True,
        chat: bool | None = None,
        template: Callable[[str, str], str] | None = None,
    ) -> None:
        for option, value in (("prompt", prompt), ("chat", chat)):
            if not isinstance(value, bool) and not (option == "chat" and value is None):
                raise SettingError(f"{option} must be True or False, got {value!r}")
        if template is not None and not callable(template):
            raise SettingError(
                f"template must be a function of two texts, got {type(template).__name__}"
            )
        has_chat = getattr(tokenizer, "chat_template", None) is not None
        if chat and not has_chat:
            raise SettingError("chat=True needs a tokenizer with a chat template; this has none")
        if chat and (not prompt or template is not None):
            raise SettingError("chat=True goes neither with prompt=False nor with a template")
        self.tokenizer = tokenizer
        self.prompt = prompt
        self.template = template
        self._chat = has_chat and prompt and template is None if chat is None else chat
        self._always_chat = bool(chat)

    def is_chat(self, prompt: Any) -> bool:
        """Whether this prompt makes a chat."""
        return self._chat and (self._always_chat or _is_messages(prompt))

    def around(self, prompt: Any, prompt_text: str) -> tuple[str, str]:
        """What comes before and after the text of an output."""
        if not self.is_chat(prompt):
            return (prompt_text if self.prompt else ""), ""
        messages = list(prompt) if _is_messages(prompt) else [_turn("user", prompt_text)]
        try:
            whole = self.tokenizer.apply_chat_template(
                [*messages, _turn("assistant", PLACE)], tokenize=False
            )
        except Exception as error:
            raise SettingError(
                f"the reward model's chat template refuses the messages: {error}"
            ) from error
        before, place, after = whole.partition(PLACE)
        if not place:
            raise SettingError("the reward model's chat template leaves the output out")
        return before, after

    def whole(self, prompt: Any, prompt_text: str, text: str) -> str:
        """All that is judged, as one text."""
        if self.template is not None:
            try:
                made = self.template(prompt_text, text)
            except Exception as error:
                raise PotentialError(
                    f"the template of the reward model raised {type(error).__name__}: {error}",
                    potential="Reward",
                ) from error
            if not isinstance(made, str):
                raise PotentialError(
                    f"the template of the reward model must return a text, got "
                    f"{type(made).__name__}",
                    potential="Reward",
                )
            return made
        before, after = self.around(prompt, prompt_text)
        return before + text + after

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids; with what the tokenizer puts around a text, or without."""
        if not text and not special:
            return []
        if isinstance(self.tokenizer, Vocabulary):
            return _longest_first(self.tokenizer.token_bytes, text.encode())
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def _longest_first(token_bytes: Sequence[bytes], data: bytes) -> list[int]:
    """Ids of a vocabulary without a tokenizer; bytes that no token has are left out."""
    ids = {token: i for i, token in reversed(list(enumerate(token_bytes))) if token}
    longest = max(map(len, ids), default=0)
    out, at = [], 0
    while at < len(data):
        sizes = range(min(longest, len(data) - at), 0, -1)
        size = next((n for n in sizes if data[at : at + n] in ids), 0)
        if size:
            out.append(ids[data[at : at + size]])
        at += size or 1
    return out


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _is_messages(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], dict)
