"""A trained recurrent draft, ready to be fed with the hidden states of its target."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smcprog.drafts.recurrent import RecurrentDraft
from smcprog.engine.linears import install, weight_count

if TYPE_CHECKING:
    from smcprog.engine.lm import LM

__all__ = ["FedDraft"]


class FedDraft:
    """What ``draft=`` takes besides an `LM`: a network on top of the target's own forwards.

    It has no key/value memory, so it needs no pages, and one per target serves all requests.

    Parameters
    ----------
    lm : LM
        The target. From now on its engine keeps hidden states.
    network : RecurrentDraft
        In the target's type, on its device.
    name : str

    Attributes
    ----------
    fed_by : LM
        The target; it drafts for no other.
    network : RecurrentDraft
        As it was given, for training and for measuring.
    vocab : Vocabulary
    tokens : int
        C, how many of the last tokens `step` looks at.
    """

    def __init__(self, lm: LM, network: RecurrentDraft, name: str) -> None:
        lm.engine.keep_hidden()
        self.fed_by = lm
        self.name = name
        self.network = network
        self.vocab = lm.vocab
        self.device = lm.device
        self.dtype = lm.dtype
        self.max_context = lm.max_context
        self.tokens = network.tokens
        self.weights = weight_count(network) - network.embedding.weight.numel()
        install(network, pack=True)

    @torch.inference_mode()
    def step(self, state_M_D: Tensor, tokens_M_C: Tensor) -> Tensor:
        """The state after one more token, [M, D].

        Parameters
        ----------
        state_M_D : Tensor
            The target's last hidden state, or what `step` returned.
        tokens_M_C : Tensor, int64
            The last C tokens, the newest last.
        """
        embedded_M_C_D = self.network.embed(tokens_M_C)
        return self.network.step(state_M_D, list(embedded_M_C_D.flip(1).unbind(1)))

    @torch.inference_mode()
    def logits(self, state_M_D: Tensor) -> Tensor:
        """Logits of the next token, [M, V]."""
        logits_M_V: Tensor = self.network.head(state_M_D)
        return logits_M_V

    def time_step(self, rows: int) -> float:
        """Seconds of one step of some rows, with its logits."""
        width = self.fed_by.engine.hidden_size
        state_M_D = torch.ones(rows, width, dtype=self.dtype, device=self.device)
        tokens_M_C = torch.arange(rows * self.tokens, device=self.device) % self.vocab.size
        begun = time.perf_counter()
        self.logits(self.step(state_M_D, tokens_M_C.view(rows, self.tokens)))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - begun

    def __repr__(self) -> str:
        return f"FedDraft({self.name!r}, {self.weights / 1e6:.1f} M weights)"
