"""Drafts made from a target: layers left out, and trained students that share its embeddings."""

from __future__ import annotations

from smcprog.drafts.distill import distill
from smcprog.drafts.fed import FedDraft
from smcprog.drafts.load import load_draft, with_layers, without_layers
from smcprog.drafts.report import Figures, measure
from smcprog.drafts.settings import DistillSettings

__all__ = [
    "DistillSettings",
    "FedDraft",
    "Figures",
    "distill",
    "load_draft",
    "measure",
    "with_layers",
    "without_layers",
]
