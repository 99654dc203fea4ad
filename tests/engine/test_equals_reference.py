"""The engine gives the logits of the plain model, whatever was done to the rows before."""

from __future__ import annotations

import random

import pytest
import torch
import transformers

from smcprog.engine import LM, PagedSequences

ARCHS = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt2"]
MOST_ROWS, MOST_TOKENS = 10, 100


class Walk:
    """Random operations on sequences of one LM, mirrored on plain lists of tokens."""

    def __init__(self, lm, model, vocab_size, reference, seed):
        self.lm, self.model, self.size, self.reference = lm, model, vocab_size, reference
        self.rng = random.Random(seed)
        self.live: list[tuple[PagedSequences, list[list[int]]]] = []
        self.compared = 0

    def tokens(self, count):
        return [self.rng.randrange(self.size) for _ in range(count)]

    def block(self, rows):
        """Tokens [M, T], counts (None for all), and the real tokens of each row."""
        width = self.rng.choice([1, 1, 2, 5])
        block = [self.tokens(width) for _ in rows]
        counts = None
        if self.rng.random() < 0.6:
            counts = [self.rng.randint(0, width) for _ in rows]
            if self.rng.random() < 0.3:
                counts = [counts[0]] * len(rows)
        room = max(map(len, rows)) + width <= MOST_TOKENS
        if not room:
            counts = [0] * len(rows)
        real = [b[:c] for b, c in zip(block, counts or [width] * len(rows), strict=True)]
        return torch.tensor(block), counts, real

    def equal(self, actual, expected):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
        self.compared += 1

    def start(self):
        prompt = self.tokens(self.rng.randint(1, 20))
        n = self.rng.randint(1, 4)
        self.live.append((self.lm.sequences(prompt, n), [list(prompt) for _ in range(n)]))

    def pick(self):
        return self.rng.randrange(len(self.live))

    def append(self):
        rows, texts = self.live[self.pick()]
        block, counts, real = self.block(texts)
        rows.append(block, counts)
        for text, new in zip(texts, real, strict=True):
            text += new

    def score(self):
        rows, texts = self.live[self.pick()]
        block, counts, real = self.block(texts)
        logits = rows.score(block, counts)
        assert logits.shape == (len(texts), block.shape[1], self.size)
        assert rows.has_next
        expected = self.reference(self.model, [t + new for t, new in zip(texts, real, strict=True)])
        for i, (text, new) in enumerate(zip(texts, real, strict=True)):
            self.equal(logits[i, : len(new)], expected[i][len(text) - 1 : len(text) - 1 + len(new)])
            self.equal(rows.next_logits()[i], expected[i][-1])
            text += new

    def next(self):
        rows, texts = self.live[self.pick()]
        logits = rows.next_logits()
        for i, expected in enumerate(self.reference(self.model, texts)):
            self.equal(logits[i], expected[-1])

    def fork(self):
        at = self.pick()
        rows, texts = self.live[at]
        ancestors = [self.rng.randrange(rows.n) for _ in range(self.rng.randint(1, MOST_ROWS))]
        self.live.append((rows.fork(ancestors), [list(texts[a]) for a in ancestors]))
        if self.rng.random() < 0.6:
            rows.close()
            del self.live[at]

    def free(self):
        if len(self.live) > 1:
            rows, _ = self.live.pop(self.pick())
            if self.rng.random() < 0.5:
                rows.close()

    def join(self):
        if len(self.live) > 1:
            (a, texts_a), (b, texts_b) = (self.live.pop(self.pick()) for _ in range(2))
            self.live.append((self.lm.join([a, b]), texts_a + texts_b))
            if len(self.live[-1][1]) > MOST_ROWS:
                rows, texts = self.live.pop()
                keep = self.rng.sample(range(rows.n), MOST_ROWS)
                self.live.append((rows.fork(keep), [texts[k] for k in keep]))
                rows.close()

    def run(self, operations):
        self.start()
        moves = [self.append, self.score, self.score, self.next, self.fork, self.fork]
        for _ in range(operations):
            self.rng.choice([*moves, self.free, self.join, self.start])()
            self.lm.check_pages()
        for rows, _ in self.live:
            rows.close()
            self.lm.check_pages()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("arch", ARCHS)
def test_random_operations(arch, seed, model_of, vocabulary, reference):
    model = model_of(arch)
    lm = LM.from_model(model, vocabulary, page_size=[4, 5, 16][seed], kv_pages=1500)
    lm._engine.attention.min_saved = [1, 2, 8][seed]  # with and without shared prefixes
    walk = Walk(lm, model, vocabulary.size, reference, seed)
    walk.run(50)
    assert walk.compared > 50
    assert lm.pages_in_use == 0


def test_float64_agrees_closely(model_of, vocabulary, reference):
    model = model_of("gpt2").double()  # the others compute their norms in float32
    lm = LM.from_model(model, vocabulary, page_size=4)
    rows = lm.sequences(list(range(1, 20)), 3)
    block = torch.randint(0, vocabulary.size, (3, 12), generator=torch.Generator().manual_seed(0))
    logits = rows.score(block)
    assert logits.dtype == torch.float64
    expected = reference(model, [[*range(1, 20), *row] for row in block.tolist()])
    for i in range(3):
        torch.testing.assert_close(logits[i], expected[i][18:-1], atol=1e-10, rtol=0)


@pytest.mark.parametrize("arch", ["llama", "mistral", "gemma2"])
def test_long_prompt_runs_in_pieces(arch, model_of, vocabulary, reference):
    model = model_of(arch, max_position_embeddings=2048)
    lm = LM.from_model(model, vocabulary)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(0, vocabulary.size, (1300,), generator=generator).tolist()
    rows = lm.sequences(prompt, 2)
    (expected,) = reference(model, [prompt])
    torch.testing.assert_close(rows.next_logits()[1], expected[-1], atol=1e-4, rtol=0)


def test_wide_ragged_score_runs_in_pieces(model_of, vocabulary, reference):
    model = model_of("llama", max_position_embeddings=2048)
    lm = LM.from_model(model, vocabulary)
    generator = torch.Generator().manual_seed(0)
    rows = lm.sequences([1, 2, 3], 2)
    rows.append(torch.tensor([[4, 5], [6, 7]]), [2, 0])
    block = torch.randint(0, vocabulary.size, (2, 1200), generator=generator)
    logits = rows.score(block, [1200, 700])
    texts = [[1, 2, 3, 4, 5, *block[0].tolist()], [1, 2, 3, *block[1, :700].tolist()]]
    first, second = reference(model, texts)
    torch.testing.assert_close(logits[0], first[4:-1], atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[1, :700], second[2:-1], atol=1e-4, rtol=0)
    torch.testing.assert_close(rows.next_logits()[1], second[-1], atol=1e-4, rtol=0)


def test_window_that_only_the_mask_knows(vocabulary, reference):
    """Qwen2-MoE tells its attention nothing of the window of a layer."""
    config = transformers.Qwen2MoeConfig(
        vocab_size=vocabulary.size,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=2,
        num_experts_per_tok=1,
        sliding_window=8,
        use_sliding_window=True,
        layer_types=["sliding_attention", "full_attention"],
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    rows = LM.from_model(model, vocabulary).sequences(list(range(30)), 1)
    (expected,) = reference(model, [list(range(30))])
    torch.testing.assert_close(rows.next_logits()[0], expected[-1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("counts", [[2, 2], [5, 5], [0, 0], [0, 5], [1, 3]])
@pytest.mark.parametrize("queued", [[0, 0], [2, 2], [0, 2], [1, 2]])
def test_every_raggedness(model_of, vocabulary, reference, counts, queued):
    model = model_of("llama")
    lm = LM.from_model(model, vocabulary)
    rows = lm.sequences([1, 2, 3], 2)
    rows.append(torch.tensor([[4, 5], [6, 7]]), queued)
    block = torch.tensor([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]])
    logits = rows.score(block, counts)
    assert logits.shape == (2, 5, vocabulary.size)
    before = [[1, 2, 3, *[4, 5][: queued[0]]], [1, 2, 3, *[6, 7][: queued[1]]]]
    after = [b + block[i, : counts[i]].tolist() for i, b in enumerate(before)]
    assert rows.lengths.tolist() == [len(a) for a in after]
    for i, expected in enumerate(reference(model, after)):
        begin = len(before[i]) - 1
        torch.testing.assert_close(
            logits[i, : counts[i]], expected[begin : begin + counts[i]], atol=1e-4, rtol=0
        )
        torch.testing.assert_close(rows.next_logits()[i], expected[-1], atol=1e-4, rtol=0)


def test_buffer_of_queued_tokens_may_be_reused(lm_of):
    lm = lm_of()
    rows, same = lm.sequences([1], 2), lm.sequences([1], 2)
    block = torch.tensor([[2], [3]])
    rows.append(block)
    same.append(block.clone())
    block.fill_(7)
    torch.testing.assert_close(rows.next_logits(), same.next_logits())


def test_plain_model_still_works_after_from_model(model_of, vocabulary):
    model = model_of("llama")
    tokens = torch.tensor([[1, 2, 3]])
    before = model(tokens).logits
    lm = LM.from_model(model, vocabulary)
    torch.testing.assert_close(model(tokens).logits, before)
    assert lm.model.get_input_embeddings().weight is model.get_input_embeddings().weight
