"""The hidden state of each row's last token that was run, wherever the row comes from."""

from __future__ import annotations

import pytest
import torch

from ..tiny import tiny_llama, tiny_model

V = 7


def models(**options):
    lm = tiny_llama(vocab_size=V, eos=V - 1, seed=3, **options)
    lm.engine.keep_hidden()
    return lm, tiny_model(vocab_size=V, eos=V - 1, seed=3)


def reference(plain, row):
    with torch.no_grad():
        return plain.model(torch.tensor([row]), use_cache=False).last_hidden_state[0, -1]


def assert_hidden(sequences, plain, rows):
    """Rows are all tokens that were run, of every row."""
    want = torch.stack([reference(plain, row) for row in rows])
    assert torch.allclose(sequences.last_hidden, want, atol=1e-9)


def test_after_a_prompt_and_a_step():
    lm, plain = models()
    prompt = [1, 2, 3, 4, 5, 0, 1, 2, 3]
    for _ in range(2):  # the second time from the prefix store
        with lm.sequences(prompt, 2) as rows:
            assert_hidden(rows, plain, [prompt] * 2)
            rows.append(torch.tensor([[4], [5]]))
            assert_hidden(rows, plain, [prompt] * 2)
            assert rows.pending.tolist() == [1, 1]
            rows.next_logits()
            assert_hidden(rows, plain, [[*prompt, 4], [*prompt, 5]])
            assert rows.pending.tolist() == [0, 0]


@pytest.mark.parametrize("queued", [0, 1, 2])
def test_after_a_block_that_is_cut_back(queued):
    lm, plain = models()
    prompt = [1, 2, 3]
    with lm.sequences(prompt, 3) as rows:
        before = [0, 1][:queued]
        if queued:
            rows.append(torch.tensor([before] * 3))
        block = torch.tensor([[4, 5, 1], [4, 5, 1], [2, 2, 2]])  # two of them twins
        scored = rows.score(block)
        history = [[*prompt, *before, *b] for b in block.tolist()]
        assert_hidden(rows, plain, history)
        logits = torch.cat([scored, rows.next_logits()[:, None]], dim=1)
        kept = [0, 2, 3]
        begin = len(prompt) + queued
        rows.truncate([begin + k for k in kept], logits[range(3), kept])
        cut = [row[: begin + k] for row, k in zip(history, kept, strict=True)]
        assert_hidden(rows, plain, cut)
        with rows.fork([2, 0, 0, 1]) as copies:
            assert_hidden(copies, plain, [cut[i] for i in (2, 0, 0, 1)])
            copies.append(torch.tensor([[1, 3]] * 4), [1, 2, 0, 2])
            assert_hidden(copies, plain, [cut[i] for i in (2, 0, 0, 1)])
            copies.next_logits()
            more = [[*cut[i], *[1, 3][:c]] for i, c in zip((2, 0, 0, 1), (1, 2, 0, 2), strict=True)]
            assert_hidden(copies, plain, more)
    lm.check_pages()


def test_rows_of_different_length():
    """Ragged blocks, some of them empty, and rows that go back further than their block."""
    lm, plain = models(page_size=2)
    with lm.join([lm.sequences([1, 2], 1), lm.sequences([3, 4, 5], 2)]) as rows:
        history = [[1, 2], [3, 4, 5], [3, 4, 5]]
        assert_hidden(rows, plain, history)
        rows.append(torch.tensor([[1, 2], [3, 0], [0, 0]]), [2, 1, 0])
        scored = rows.score(torch.tensor([[5, 5], [2, 0], [1, 1]]), [2, 0, 1])
        history = [[1, 2, 1, 2, 5, 5], [3, 4, 5, 3], [3, 4, 5, 1]]
        assert_hidden(rows, plain, history)
        rows.truncate([4, 4, 3], scored[:, 0])
        assert_hidden(rows, plain, [row[:n] for row, n in zip(history, (4, 4, 3), strict=True)])
        rows.truncate([2, 4, 3], rows.next_logits())
        with pytest.raises(ValueError, match="hidden states"):
            _ = rows.last_hidden


def test_logits_are_the_same_and_hidden_states_are_asked_for():
    plain_lm = tiny_llama(vocab_size=V, eos=V - 1, seed=3)
    lm, _ = models()
    block = torch.tensor([[1, 4], [2, 2]])
    with plain_lm.sequences([1, 2, 3], 2) as a, lm.sequences([1, 2, 3], 2) as b:
        assert torch.equal(a.score(block), b.score(block))
        assert torch.equal(a.next_logits(), b.next_logits())
        with pytest.raises(ValueError, match="hidden states"):
            _ = a.last_hidden


def test_sequences_from_before_it_was_asked_for():
    lm = tiny_llama(vocab_size=V, eos=V - 1, seed=3)
    plain = tiny_model(vocab_size=V, eos=V - 1, seed=3)
    with lm.sequences([1, 2, 3], 2) as rows:
        lm.engine.keep_hidden()
        with pytest.raises(ValueError, match="hidden states"):
            _ = rows.last_hidden
        rows.append(torch.tensor([[1], [2]]), [1, 0])
        rows.next_logits()  # the second row has not run since
        with pytest.raises(ValueError, match="hidden states"):
            _ = rows.last_hidden
        rows.append(torch.tensor([[1], [2]]))
        rows.next_logits()
        assert_hidden(rows, plain, [[1, 2, 3, 1, 1], [1, 2, 3, 2]])
