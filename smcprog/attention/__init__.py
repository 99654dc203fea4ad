"""Paged attention: one contract (`base`), its implementations, and the bridge to transformers."""

from smcprog.attention.base import SCRATCH_PAGE, Layout, PagedAttention, StaticPlan
from smcprog.attention.bridge import BATCH_ARGUMENT, IMPLEMENTATION, PagedBatch
from smcprog.attention.torch_paged import TorchPagedAttention

__all__ = [
    "BATCH_ARGUMENT",
    "IMPLEMENTATION",
    "SCRATCH_PAGE",
    "Layout",
    "PagedAttention",
    "PagedBatch",
    "StaticPlan",
    "TorchPagedAttention",
]
