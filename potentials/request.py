"""What a potential may know of the request it works for."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smcprog.errors import PromptError

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.sequences import Sequences
    from smcprog.engine.vocab import Vocabulary

__all__ = ["Request"]


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """What a potential may know of the request it works for.

    Attributes
    ----------
    prompt : str or list
        The prompt as the user gave it (text, chat messages or token ids).
    prompt_tokens : tuple of int
        The prompt of the lead model (its own, if it has one), as its tokenizer encodes it.
    vocab : Vocabulary
        The target's token-id map.
    max_tokens : int
        The longest output, EOS included.
    truncate : bool
        Whether an output of `max_tokens` tokens without EOS is an outcome.
    stop : tuple of str
        Strings that end an output.
    """

    prompt: Any
    prompt_tokens: tuple[int, ...]
    vocab: Vocabulary
    max_tokens: int
    truncate: bool = True
    stop: tuple[str, ...] = ()
    _made: dict[int, tuple[Any, Any, Any]] = dataclasses.field(default_factory=dict, repr=False)

    def prompt_for(self, own: Any = None) -> Any:
        """What a model continues: this request's prompt, or one that a factor has for itself.

        Parameters
        ----------
        own : optional
            None is the request's prompt; a function is called with a copy of it, once a request.

        Raises
        ------
        PromptError
            If the function raises.
        """
        if own is None:
            return self.prompt
        if not callable(own):
            return own
        made = self._made.get(id(own))
        if made is None or made[1] is not self.prompt:
            try:
                made = (own, self.prompt, own(copy.deepcopy(self.prompt)))
            except Exception as error:
                name = getattr(own, "__name__", type(own).__name__)
                raise PromptError(
                    f"the prompt function {name} raised {type(error).__name__}: {error}"
                ) from error
            self._made[id(own)] = made
        return made[2]

    def sequences(self, lm: LM, n: int, prompt: Any = None) -> Sequences:
        """`n` rows of a model that continue the prompt, or one that a factor has for itself.

        Models start their rows here and nowhere else, so that a request may begin from rows
        that exist already.
        """
        return lm.sequences(lm.encode(self.prompt_for(prompt)), n)

    def draft_sequences(self, lm: LM, n: int) -> Sequences:
        """`n` rows of a draft, which continue the very tokens of the prompt."""
        return lm.sequences(self.prompt_tokens, n)

    def output_text(self, tokens: Sequence[int]) -> str:
        """Text of an output, without EOS and cut before the first stop string."""
        return self.finished_text(self.vocab.to_bytes(tokens))

    def finished_text(self, data: bytes) -> str:
        """Text of an output's bytes, cut before the first stop string."""
        cuts = [i for i in (data.find(s.encode()) for s in self.stop) if i >= 0]
        return (data[: min(cuts)] if cuts else data).decode("utf-8", errors="replace")
