"""Attention over the reference of FlashInfer's kernels, and rows to run it on."""

from __future__ import annotations

import numpy as np
import torch

from smcprog.attention import Layout
from smcprog.attention.flashinfer import FlashInferAttention, Machine

from . import flashinfer_reference as library

CPU = torch.device("cpu")
ALWAYS = Machine(launch=0.0, replay=0.0, bandwidth=1.0)
"""A device on which reading shared pages once always pays."""


def flash(num_pages, page_size, *, machine=ALWAYS, **options) -> FlashInferAttention:
    attention = FlashInferAttention(num_pages, page_size, CPU, library=library, **options)
    attention.machine = machine
    return attention


class Rows:
    """M rows with pages of their own behind a shared prefix of each group, and all their keys."""

    def __init__(self, groups, each, prefix, own, page_size, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.size, self.groups, self.rows = page_size, groups, groups * each
        self.shared_R = np.full(groups, prefix, dtype=np.int64)
        self.tables = np.zeros((self.rows, prefix + own), dtype=np.int32)
        page = 1
        for group in range(groups):
            mine = slice(group * each, (group + 1) * each)
            self.tables[mine, :prefix] = np.arange(page, page + prefix)
            page += prefix
            for row in range(group * each, (group + 1) * each):
                self.tables[row, prefix:] = np.arange(page, page + own)
                page += own
        self.num_pages = page

    def tensors(self, width, heads=2, group=2, dim=8):
        shape = (self.rows, heads * group, width, dim)
        query = torch.randn(shape, generator=self.generator)
        key, value = (
            torch.randn((self.rows, heads, width, dim), generator=self.generator) for _ in range(2)
        )
        return query, key, value

    def fill(self, attentions, stored, options):
        """Prefixes once a group, then what each row has to itself."""
        each = self.rows // self.groups
        lead = np.arange(0, self.rows, each)
        for begin, count, rows in (
            (0, self.shared_R[0] * self.size, lead),
            (self.shared_R[0] * self.size, None, np.arange(self.rows)),
        ):
            width = int((stored[rows] - begin).max()) if count is None else int(count)
            if not width:
                continue
            tensors = [x[rows] for x in self.tensors(width)]
            counts = stored[rows] - begin if count is None else np.full(len(rows), width)
            layout = Layout(self.tables[rows], np.full(len(rows), begin), counts, width)
            for attention in attentions:
                if begin:
                    attention.clear_pages(np.unique(self.tables[:, begin // self.size :]))
                attention.attend(attention.plan(layout), 0, *tensors, **options)
