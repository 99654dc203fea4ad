"""A reward model or classifier as a reward: `Reward.model`.

A model for decoders runs in rows of the engine's paged memory, which go on token by token and
fork with the particles. Any other classifier is a function of texts, run in plain batches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smcprog.engine.scoring import ScoringLM, is_decoder, load_classifier
from smcprog.engine.sequences import PagedSequences
from smcprog.errors import PotentialError, SettingError, VocabularyMismatchError
from smcprog.potentials.base import Request
from smcprog.potentials.rewards.judged import Judged
from smcprog.potentials.rewards.labels import Label
from smcprog.potentials.rewards.model_rows import Ids, Rows, common_length
from smcprog.potentials.rewards.paged_scores import PagedScores
from smcprog.potentials.rewards.reward import Reward, RewardRow
from smcprog.potentials.texts import prompt_text

if TYPE_CHECKING:
    from smcprog.engine.lm import LM
    from smcprog.engine.vocab import Vocabulary

__all__ = ["ModelReward", "reward_of_model"]


def reward_of_model(
    model: Any,
    tokenizer: Any = None,
    *,
    label: int | str | None = None,
    beta: float = 1.0,
    at: Any = "end",
    kind: str = "last",
    prompt: bool = True,
    chat: bool | None = None,
    template: Callable[[str, str], str] | None = None,
    name: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    kv_pages: int | None = None,
    **options: Any,
) -> Reward:
    """See `Reward.model`."""
    folder = None
    if isinstance(model, (str, os.PathLike)):
        model, own, folder = load_classifier(model, device, dtype)
        tokenizer = own if tokenizer is None else tokenizer
    elif not hasattr(model, "config") or not hasattr(getattr(model, "config", None), "num_labels"):
        raise SettingError(
            "Reward.model takes a path, a hub id, or a sequence classifier of transformers, got "
            f"{type(model).__name__}"
        )
    if tokenizer is None:
        raise SettingError("Reward.model of a model in memory needs its tokenizer, too")
    judged = Judged(tokenizer, prompt, chat, template)
    labels = Label(model.config, label)
    if name is None:
        shown = folder.name if folder is not None else getattr(model, "name_or_path", "")
        name = f"{shown or type(model).__name__}{':' if labels.name else ''}{labels.name}"
    options = {"beta": beta, "at": at, "kind": kind, "name": name, **options}
    if not is_decoder(model):
        from smcprog.potentials.rewards.encoder_scores import EncoderScores

        return Reward(EncoderScores(model.eval(), judged, labels), **options)
    if folder is not None:
        lm = ScoringLM.own(model, tokenizer, folder, kv_pages=kv_pages)
    else:
        made = ScoringLM.from_model(model, tokenizer, name=name, kv_pages=kv_pages)
        assert isinstance(made, ScoringLM)
        lm = made
    return ModelReward(PagedScores(lm, judged, labels), **options)


@dataclasses.dataclass(frozen=True)
class Frame:
    """What stands around the output of one request, as ids; None where texts are encoded whole."""

    before: Ids
    after: Ids
    by_tokens: bool


@dataclasses.dataclass
class ModelState:
    """Rows of a reward, and of its model."""

    rows: list[RewardRow]
    frames: list[Frame]
    model: Rows


class ModelReward(Reward):
    """A reward by a model in paged memory; made by `Reward.model`, which see.

    Attributes
    ----------
    lm : ScoringLM
        Its engine and its pages.
    """

    def __init__(self, score: PagedScores, **options: Any) -> None:
        if options.get("time_limit") is not None:
            raise SettingError(
                "time_limit is for functions that may hang; this reward model runs in the engine"
            )
        super().__init__(score, **options)
        self._scores = score
        self.lm = score.lm
        self._vocabularies: weakref.WeakKeyDictionary[Vocabulary, bool] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def calls(self) -> int:
        """How often the model was run so far."""
        return self._scores.passes

    def start(self, request: Request, n: int) -> ModelState:
        rows = super().start(request, n)
        frame = self._frame(request)
        if frame.before:
            sequences = self.lm.sequences(frame.before, n)
        else:
            sequences = PagedSequences.empty(self.lm.engine, n)
        return ModelState(rows, [frame] * n, Rows(sequences, [frame.before] * n))

    def advance(
        self, state: ModelState, tokens_N_T: Tensor, lengths_N: Tensor, ended_N: Tensor
    ) -> tuple[ModelState, Tensor]:
        rows, judged = self._move(state.rows, tokens_N_T, lengths_N, ended_N)
        found: list[dict[int, float]] = [{} for _ in rows]
        for turn in range(max(map(len, judged), default=0)):
            places = {i: list(texts)[turn] for i, texts in enumerate(judged) if len(texts) > turn}
            wanted = {
                i: self._ids(rows[i], state.frames[i], judged[i][place])
                for i, place in places.items()
            }
            for i, score in self._run(state.model, wanted).items():
                found[i][places[i]] = score
        rows, log_psi_N = self._valued(state.rows, rows, judged, found)
        return ModelState(rows, state.frames, state.model), log_psi_N

    def fork(self, state: ModelState, ancestors_M: Tensor) -> ModelState:
        index = ancestors_M.tolist()
        return ModelState(
            [state.rows[i] for i in index],
            [state.frames[i] for i in index],
            state.model.fork(ancestors_M),
        )

    def join(self, states: Sequence[ModelState]) -> ModelState:
        return ModelState(
            [row for s in states for row in s.rows],
            [frame for s in states for frame in s.frames],
            Rows(
                PagedSequences.join([s.model.sequences for s in states]),
                [ids for s in states for ids in s.model.ids],
            ),
        )

    def release(self, state: ModelState) -> None:
        state.model.close()

    def memory(self, request: Request, n: int) -> dict[LM, int]:
        frame = self._frame(request)
        tokens = request.max_tokens + len(frame.after)
        if not frame.by_tokens:
            tokens *= 2  # another tokenizer may need more of them
        return {self.lm: self.lm.pages_needed(len(frame.before), n, tokens)}

    # ------------------------------------------------------------------ inside

    def _longer(self, row: RewardRow, new: Sequence[int], ended: bool) -> RewardRow:
        moved = super()._longer(row, new, ended)
        return dataclasses.replace(moved, tokens=(*row.tokens, *new))

    def _run(self, model: Rows, wanted: Mapping[int, Ids]) -> dict[int, float]:
        longest = max(map(len, wanted.values()), default=0)
        if longest > self.lm.max_context:
            raise PotentialError(
                f"{self.name}: prompt and output are {longest} tokens, and the model's context is "
                f"{self.lm.max_context}: use fewer max_tokens or a shorter prompt",
                potential=self.name,
            )
        scores = self._scores.run(model, wanted)
        wrong = next((i for i, score in scores.items() if not math.isfinite(score)), None)
        if wrong is not None:
            raise PotentialError(
                f"{self.name}: the model's score is {scores[wrong]}", potential=self.name
            )
        return scores

    def _frame(self, request: Request) -> Frame:
        """What stands around the outputs of a request."""
        judged, text = self._scores.judged, prompt_text(request)
        if judged.template is not None:
            before, after = _text_before(judged.template, text), ""
        else:
            before, after = judged.around(request.prompt, text)
        chat = judged.is_chat(request.prompt)
        same = judged.template is None and self._same_vocabulary(request)
        if same and not chat and judged.prompt:
            ids = request.prompt_tokens  # as they stand
        elif same and not chat:
            ids = _first_special(judged)
        else:
            ids = tuple(judged.encode(before, special=not chat))
        return Frame(ids[: self.lm.max_context], tuple(judged.encode(after, special=False)), same)

    def _same_vocabulary(self, request: Request) -> bool:
        known = self._vocabularies.get(request.vocab)
        if known is None:
            try:
                self.lm.vocab.check_same(request.vocab, this="one", that="the other")
                known = True
            except VocabularyMismatchError:
                known = False
            self._vocabularies[request.vocab] = known
        return known

    def _ids(self, row: RewardRow, frame: Frame, text: str) -> Ids:
        """What the model is shown of a row whose text so far this is."""
        if not frame.by_tokens:
            return self._scores.encoded(row.request.prompt, row.prompt, text)
        token_bytes, data = row.request.vocab.token_bytes, text.encode()
        taken, at = 0, 0
        for token in row.tokens:
            piece = token_bytes[token]
            if at == len(data) or data[at : at + len(piece)] != piece:
                break
            taken, at = taken + 1, at + len(piece)
        # A text that ends inside of a token, before a stop string perhaps.
        rest = self._scores.judged.encode(data[at:].decode(errors="replace"), special=False)
        return self._scores.some((*frame.before, *row.tokens[:taken], *rest, *frame.after))


def _first_special(judged: Judged) -> Ids:
    """The id that the tokenizer puts before every text, if it does."""
    bos = getattr(judged.tokenizer, "bos_token_id", None)
    return (bos,) if bos is not None and judged.encode("", special=True)[:1] == [bos] else ()


def _text_before(template: Callable[[str, str], str], prompt: str) -> str:
    """What a template begins with whatever the output is, as far as two outputs tell."""
    with contextlib.suppress(Exception):
        one, other = template(prompt, "a"), template(prompt, "b")
        return one[: common_length(one, other)]
    return ""
