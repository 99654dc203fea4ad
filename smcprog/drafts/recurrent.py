"""A small recurrent network that goes on from the target's last hidden state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from smcprog.drafts.text import Text

__all__ = ["RecurrentDraft", "text_states"]

EPS = 1e-5
SAMPLE = 16_384
"""Positions that the linear prediction is fitted to."""
RIDGE = 0.03


class RecurrentDraft(nn.Module):
    """Predicts the target's next hidden state from the last known one and the tokens since.

    With h the target's hidden state before the head at the last token it has run, and c ‹C›
    newest tokens, each later token moves the state by

        z = W [norm(s); norm(e(x_1)); …; norm(e(x_C))] / (1 + C),
        s' = norm(z + D(silu(G ẑ) ⊙ U ẑ)),

    from s = h, with ẑ = norm(z), e the target's own embeddings, and x_1 the newest token. The
    head, rows of the target's own, makes logits of s'. There is no past but s and C tokens.

    Parameters
    ----------
    embedding : nn.Embedding
        The target's; not trained.
    head : nn.Module
        A `TrimmedHead`, or the target's whole head.
    inner : int
        Width H of the gated part.
    tokens : int
        C.
    """

    def __init__(self, embedding: nn.Embedding, head: nn.Module, inner: int, tokens: int) -> None:
        super().__init__()
        width = embedding.embedding_dim
        options: dict[str, Any] = {
            "device": embedding.weight.device,
            "dtype": embedding.weight.dtype,
        }
        self.tokens = tokens
        self.embedding = embedding
        self.fuse = nn.Linear((1 + tokens) * width, width, bias=False, **options)
        self.gate_proj = nn.Linear(width, inner, bias=False, **options)
        self.up_proj = nn.Linear(width, inner, bias=False, **options)
        self.down_proj = nn.Linear(inner, width, bias=False, **options)
        self.state_norm = nn.Parameter(torch.ones(width, **options))
        self.token_norm = nn.Parameter(torch.ones(width, **options))
        self.inner_norm = nn.Parameter(torch.ones(width, **options))
        self.out_norm = nn.Parameter(torch.ones(width, **options))
        self.head = head

    @torch.no_grad()
    def start(self, text: Text, seed: int) -> RecurrentDraft:
        """Weights to train from: the best linear prediction on a sample of text, and small noise.

        Parameters
        ----------
        text : Text
        seed : int
            Of the noise.
        """
        rng = torch.Generator().manual_seed(seed)
        for layer, scale in ((self.gate_proj, 1.0), (self.up_proj, 1.0), (self.down_proj, 0.1)):
            noise_O_I = torch.randn(layer.weight.shape, generator=rng, dtype=torch.float64)
            layer.weight.copy_(noise_O_I * scale / layer.in_features**0.5)
        inputs, wanted, count = [], [], 0
        for i in range(len(text)):
            hidden_L_D = text.hidden[i].to(self.out_norm)
            tokens_1_T = _padded_tokens(text, [i], self.tokens).to(self.device)
            (embedded,) = self._windows(tokens_1_T, len(hidden_L_D), 1)
            inputs.append(self._input(hidden_L_D, [e[0] for e in embedded])[:-1])
            wanted.append(hidden_L_D[1:])
            count += len(hidden_L_D) - 1
            if count >= SAMPLE:
                break
        x_N_I, y_N_D = torch.cat(inputs), torch.cat(wanted)
        if not count:
            return self
        size_D = y_N_D.square().mean(0).sqrt().clamp_min(1e-6)
        gram_I_I = x_N_I.T @ x_N_I
        gram_I_I.diagonal().add_(RIDGE * gram_I_I.diagonal().mean())
        solved_I_D = torch.linalg.solve(gram_I_I, x_N_I.T @ (y_N_D / size_D))
        self.fuse.weight.copy_(solved_I_D.T)
        # The norm makes every prediction as long as the mean one.
        self.out_norm.copy_(size_D * (x_N_I @ solved_I_D).square().mean().sqrt())
        return self

    def get_output_embeddings(self) -> nn.Module:
        """The head, as models of transformers name theirs."""
        return self.head

    @property
    def device(self) -> torch.device:
        return self.out_norm.device

    def embed(self, tokens: Tensor) -> Tensor:
        """Normalised embeddings of tokens, [..., D]."""
        return _norm(self.embedding(tokens), self.token_norm)

    def step(self, state_M_D: Tensor, embedded: list[Tensor]) -> Tensor:
        """The state after one more token, [..., D].

        Parameters
        ----------
        state_M_D : Tensor, [..., D]
        embedded : list of Tensor, [..., D]
            `embed` of the C newest tokens, the newest first.
        """
        z_M_D = self.fuse(self._input(state_M_D, embedded))
        y_M_D = _norm(z_M_D, self.inner_norm)
        inner_M_H = F.silu(self.gate_proj(y_M_D)) * self.up_proj(y_M_D)
        return _norm(z_M_D + self.down_proj(inner_M_H), self.out_norm)

    def unroll(self, hidden_B_L_D: Tensor, tokens_B_T: Tensor, steps: int) -> list[Tensor]:
        """States after 1, …, K tokens from every position, K tensors [B, L, D].

        Parameters
        ----------
        hidden_B_L_D : Tensor
            The target's hidden states at positions 0 to L − 1.
        tokens_B_T : Tensor, int64, T = L + C − 1
            The tokens that followed positions 1 − C to L − 1.
        steps : int
            K. State k at position t is after the tokens that followed t, …, t + k − 1; where
            those lie beyond the end it means nothing.
        """
        states, state_B_L_D = [], hidden_B_L_D
        for embedded in self._windows(tokens_B_T, hidden_B_L_D.shape[1], steps):
            state_B_L_D = self.step(state_B_L_D, embedded)
            states.append(state_B_L_D)
        return states

    def _input(self, state: Tensor, embedded: list[Tensor]) -> Tensor:
        # Divided by their number, so that a step of training moves z no more than other layers.
        parts = [_norm(state, self.state_norm), *embedded]
        return torch.cat(parts, dim=-1) / len(parts)

    def _windows(self, tokens_B_T: Tensor, length: int, steps: int) -> Iterator[list[Tensor]]:
        """What `step` takes as `embedded`, at `length` positions, for one step after the other."""
        embedded_B_T_D = F.pad(self.embed(tokens_B_T), (0, 0, 0, steps))
        for newest in range(self.tokens - 1, self.tokens - 1 + steps):
            firsts = range(newest, newest - self.tokens, -1)
            yield [embedded_B_T_D[:, first : first + length] for first in firsts]


def text_states(
    draft: RecurrentDraft, text: Text, batch: Sequence[int], steps: int
) -> list[list[Tensor]]:
    """States for some sequences of a text, by the number of steps and by sequence.

    Item [k − 1][b] has a row for every position from k on of the sequence's `hidden`, made from
    the hidden state k positions before and the k tokens since.
    """
    states = [text.hidden[i].to(draft.out_norm) for i in batch]
    tokens_B_T = _padded_tokens(text, batch, draft.tokens).to(draft.device)
    hidden_B_L_D = nn.utils.rnn.pad_sequence(states, batch_first=True)
    return [
        [row[: max(0, len(h) - k)] for row, h in zip(state_B_L_D, states, strict=True)]
        for k, state_B_L_D in enumerate(draft.unroll(hidden_B_L_D, tokens_B_T, steps), 1)
    ]


def _padded_tokens(text: Text, batch: Sequence[int], count: int) -> Tensor:
    """Tokens that followed positions 1 − count, 2 − count, … of some sequences, [B, T]."""
    rows = []
    for i in batch:
        tokens, begin = text.tokens[i].long(), text.prompts[i] - count + 1
        rows.append(F.pad(tokens[max(0, begin) :], (max(0, -begin), 0)))
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), EPS)
