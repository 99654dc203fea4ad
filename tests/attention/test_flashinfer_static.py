"""Passes of fixed shape over FlashInfer's documented layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog import Target
from smcprog.attention import Layout, TorchPagedAttention
from smcprog.attention.flashinfer import Machine
from smcprog.errors import ModelError

from ..tiny import tiny_llama
from . import flashinfer_reference as library
from .flashinfer_cases import ALWAYS, CPU, Rows, flash


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("window", [None, 6, 500])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("page_size", [1, 8])
def test_passes_of_fixed_shape(page_size, width, window, groups):
    """One plan, several rounds: what `place` writes is what `schedule` told, and results agree."""
    options = {"scaling": 0.4, "window": window, "softcap": None if window == 6 else 1.5}
    rows = Rows(2, 3, 16 // page_size, 40 // page_size, page_size)
    attention = flash(rows.num_pages, page_size)
    plain = TorchPagedAttention(rows.num_pages, page_size, CPU)
    random = np.random.default_rng(width)
    stored = 16 + random.integers(0, 9, rows.rows)
    rows.fill((attention, plain), stored, options)
    static = attention.static_plan(rows.rows, width, rows.tables.shape[1], groups)
    library.MADE.clear()
    for _ in range(3):
        shared = random.integers(0, rows.shared_R + 1) if groups else None
        layout = Layout(rows.tables, stored, np.full(rows.rows, width), width)
        tensors = rows.tensors(width)
        static.schedule(stored, shared)
        static.place(
            torch.from_numpy(rows.tables),
            torch.from_numpy(stored),
            None if shared is None else torch.from_numpy(shared),
        )
        expected = plain.attend(plain.plan(layout), 0, *tensors, **options)
        got = attention.attend(static, 0, *tensors, **options)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
        assert static.positions_M_T.tolist() == [[s + t for t in range(width)] for s in stored]
        stored = stored + width
    made = 2 if groups and window != 6 else 1
    assert len(library.MADE) == made and all(w.graph and w.plans == 3 for w in library.MADE)
    assert all(w.room < 1 << 20 for w in library.MADE)
    decode = isinstance(library.MADE[0], library.BatchDecodeWithPagedKVCacheWrapper)
    assert decode == (width == 1 and made == 1)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("machine", [ALWAYS, Machine()], ids=["cascade", "plain"])
def test_rounds_of_a_target_and_a_draft(graphs, machine):
    """Tokens and evidence are those that PyTorch gives, in passes of any and of fixed shape."""
    results = []
    for kernels in (False, True):
        models = []
        for seed in (0, 1):
            lm = tiny_llama(6, 5, seed=seed, kv_pages=300, page_size=4, graphs=kernels and graphs)
            if kernels:
                lm._engine.attention = flash(301, 4, machine=machine, layers=2)
            models.append(lm)
        library.MADE.clear()
        target = Target(models[0])
        results.append(
            target.sample(
                [0, 1, 2, 3, 0, 1, 2, 4, 4],
                particles=4,
                draft=models[1],
                draft_tokens=3,
                max_tokens=16,
                seed=5,
            )
        )
        for lm in models:
            lm.check_pages()
    fixed = [w for w in library.MADE if w.graph]
    assert bool(fixed) == graphs and all(w.plans > 1 for w in fixed)
    first, second = results
    assert [p.tokens for p in first.particles] == [p.tokens for p in second.particles]
    assert first.log_evidence == pytest.approx(second.log_evidence, abs=1e-5)


def test_rows_of_padding_stay_among_themselves():
    """A pass for three rows with two in use gives those two the same as one for two."""
    options = {"scaling": 0.4, "window": None, "softcap": None}
    rows = Rows(1, 2, 0, 4, 8)
    attention = flash(rows.num_pages, 8)
    stored = np.array([9, 12])
    rows.fill((attention,), stored, options)
    tensors = rows.tensors(4)
    plan = attention.plan(Layout(rows.tables, stored, np.array([4, 4]), 4))
    expected = attention.attend(plan, 0, *tensors, **options)
    tables, begin = np.concatenate([rows.tables, [[0] * 4]]), np.append(stored, 0)
    static = attention.static_plan(3, 4, 4)
    static.schedule(begin)
    static.place(torch.from_numpy(tables), torch.from_numpy(begin))
    padded = [torch.cat([x, torch.full_like(x[:1], 3e4)]) for x in tensors]
    got = attention.attend(static, 0, *padded, **options)
    assert torch.isfinite(got).all()
    torch.testing.assert_close(got[:2], expected)


def test_unscheduled_pass_is_refused():
    attention = flash(4, 8)
    static = attention.static_plan(1, 1, 1)
    static.place(torch.tensor([[1]]), torch.tensor([0]))
    x = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ModelError, match="before it was scheduled"):
        attention.attend(static, 0, x, x, x, scaling=1.0, window=None, softcap=None)
