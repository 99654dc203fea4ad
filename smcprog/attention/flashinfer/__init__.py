"""Paged attention through FlashInfer's kernels; `docs/gpu-attention.md` tells which and when."""

from smcprog.attention.flashinfer.cost import Machine
from smcprog.attention.flashinfer.paged import FlashInferAttention
from smcprog.attention.flashinfer.static import FlashInferStaticPlan

__all__ = ["FlashInferAttention", "FlashInferStaticPlan", "Machine"]
