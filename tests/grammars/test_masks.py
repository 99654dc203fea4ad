"""Masks in bulk: applied to logits, from many threads, and the benchmark that times them."""

from __future__ import annotations

import gzip
import json
import math
import random
import threading

import pytest
import torch

from smcprog import Grammar, InputError, PotentialError, SettingError
from smcprog.bench.mask_share import round_share
from smcprog.bench.masks import BUILT_IN, latency, operations, read_schemas
from smcprog.engine import Vocabulary
from smcprog.grammars.sources import build
from smcprog.potentials import Request, matchers
from smcprog.potentials.bitmask import restrict, unpack_bitmask
from smcprog.potentials.matchers import Compiled, fill_masks
from smcprog.testing import TabularLM

CHARACTERS = [bytes([c]) for c in range(32, 127)]


@pytest.fixture(scope="module")
def vocab():
    tokens = [*CHARACTERS, b'": ', b'{"', b'", "', b"na", b"me", b"18", b"<eos>"]
    return Vocabulary.from_tokens(tokens, [len(tokens) - 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_mask_is_applied_as_minus_infinity_and_changes_nothing_else(dtype):
    logw = torch.randn(5, 70, dtype=dtype, generator=torch.Generator().manual_seed(0))
    logw[0, 3] = -math.inf
    packed = torch.randint(-(2**31), 2**31 - 1, (5, 3), dtype=torch.int32)
    allowed = unpack_bitmask(packed, 70)
    before = logw.clone()
    masked = restrict(logw, allowed)
    assert masked.dtype == dtype
    assert torch.equal(logw, before)
    for row in range(5):
        for v in range(70):
            bit = int(packed[row, v // 32]) >> (v % 32) & 1
            assert masked[row, v] == (logw[row, v] if bit else -math.inf)


def test_a_grammar_may_be_used_from_many_threads(vocab):
    """Each thread's rows are as if it were alone, though they share automaton and start."""
    grammar = Grammar({"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}})

    def walk(seed):
        rng = random.Random(seed)
        state = grammar.start(Request("", (), vocab, 64), 3)
        masks = []
        for _ in range(25):
            mask = grammar.mask(state)
            masks.append(mask)
            allowed = unpack_bitmask(mask, vocab.size)
            allowed[:, vocab.eos_ids[0]] = False
            options = [row.nonzero().flatten().tolist() for row in allowed]
            if not all(options):
                break
            tokens = torch.tensor([[rng.choice(o)] for o in options])
            ones = torch.ones(3, dtype=torch.int64)
            state, _ = grammar.advance(state, tokens, ones, torch.zeros(3, dtype=torch.bool))
            state = grammar.fork(state, torch.tensor([rng.randrange(3) for _ in range(3)]))
        return masks

    alone = [walk(seed) for seed in range(8)]
    together: dict[int, list[torch.Tensor]] = {}

    def run(seed):
        together[seed] = walk(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(8):
        assert len(together[seed]) == len(alone[seed])
        assert all(map(torch.equal, together[seed], alone[seed]))


def test_a_copied_node_goes_its_own_way(vocab):
    grammar = Compiled(build("regex", "ab|cd"), vocab)
    twin = grammar.root.copy()
    assert twin.matcher.consume_token(CHARACTERS.index(b"a"))
    fill_masks(grammar, [twin])
    letters = unpack_bitmask(torch.stack([grammar.root.mask_W, twin.mask_W]), vocab.size)
    assert letters[0].nonzero().flatten().tolist() == [CHARACTERS.index(c) for c in (b"a", b"c")]
    assert letters[1].nonzero().flatten().tolist() == [CHARACTERS.index(b"b")]


@pytest.mark.parametrize("ahead", [False, True])
def test_masks_are_computed_ahead_where_a_core_is_free(vocab, ahead, monkeypatch):
    monkeypatch.setattr(matchers, "_spare_core", lambda: ahead)
    grammar = Grammar.regex("ab|c[a-z]*d")
    state = grammar.start(Request("", (), vocab, 8), 2)
    tokens = torch.tensor([[CHARACTERS.index(b"a")], [CHARACTERS.index(b"c")]])
    ones = torch.ones(2, dtype=torch.int64)
    state, _ = grammar.advance(state, tokens, ones, torch.zeros(2, dtype=torch.bool))
    assert [node.pending is not None for node in state.nodes] == [ahead, ahead]
    copy = grammar.fork(state, torch.tensor([1, 0, 1]))
    copy, _ = grammar.advance(  # while the masks are being computed
        copy,
        torch.full((3, 1), CHARACTERS.index(b"b")),
        torch.ones(3, dtype=torch.int64),
        torch.zeros(3, dtype=torch.bool),
    )
    masks = unpack_bitmask(torch.cat([grammar.mask(state), grammar.mask(copy)]), vocab.size)
    letters = {CHARACTERS.index(bytes([c])) for c in range(ord("a"), ord("z") + 1)}
    letters |= {vocab.size - 4, vocab.size - 3}  # na, me
    after_c = [v in letters for v in range(vocab.size)]
    after_ab = [v in vocab.eos_ids for v in range(vocab.size)]
    only_b = [v == CHARACTERS.index(b"b") for v in range(vocab.size)]
    assert masks.tolist() == [only_b, after_c, after_c, after_ab, after_c]


def test_a_failure_ahead_of_time_is_told_when_the_mask_is_asked_for(vocab, monkeypatch):
    monkeypatch.setattr(matchers, "_spare_core", lambda: True)
    grammar = Grammar.regex("[a-z]*")
    state = grammar.start(Request("", (), vocab, 8), 1)

    def give_up(*_):
        raise PotentialError("the engine gave up", potential="Grammar")

    monkeypatch.setattr(matchers, "fill_masks", give_up)
    token = torch.tensor([[CHARACTERS.index(b"a")]])
    state, _ = grammar.advance(state, token, torch.ones(1).long(), torch.zeros(1).bool())
    with pytest.raises(PotentialError, match="gave up"):
        grammar.mask(state)


# ---------------------------------------------------------------------- the benchmark


def test_latency_counts_each_history_once(vocab):
    row = {
        "name": "short",
        "schema": {"enum": ["a", "ab"]},
        "tests": [{"valid": True, "data": d} for d in ("a", "ab")]
        + [{"valid": False, "data": "longer than that"}],
    }
    report = latency(vocab, [row, {"name": "bad", "schema": {"type": "x"}, "tests": []}])
    # Before each character of "a" and "ab", quotes included; they differ in the last two.
    assert report["masks"] == 3 + 1
    assert report["refused"] == 1
    assert 0 < report["median_us"] <= report["p99_us"] <= report["max_us"]
    assert report["slowest"][0][1] == "short"
    with pytest.raises(SettingError, match="none of the schemas"):
        latency(vocab, [])


def test_operations_are_timed_at_every_size(vocab):
    report = operations(vocab, BUILT_IN[0], counts=(2, 5))
    assert [row["n"] for row in report] == [2, 5]
    for row in report:
        assert all(row[name] >= 0 for name in ("copy_us", "fill_us", "rollback_us", "apply_us"))


def test_the_share_of_a_round():
    tokens = [b"1", b"0", b"<eos>"]
    lm = TabularLM.from_conditionals(tokens, [2], lambda h: (0.4, 0.3, 0.3), 0, "toy")
    share = round_share(lm, {"enum": [1, 10, 11]}, [0], particles=4, max_tokens=4, repeats=1)
    assert 0 < share["mask_share"] < 1
    assert 1 <= share["rounds"] <= 4
    parts = ("mask_share", "step_share", "apply_share")
    assert share["share"] == pytest.approx(sum(share[name] for name in parts))


def test_schemas_are_read_from_a_file(tmp_path):
    rows = [{"name": str(i), "schema": True, "tests": []} for i in range(3)]
    path = tmp_path / "schemas.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert read_schemas(path) == rows
    assert read_schemas(path, 2) == rows[:2]
    assert read_schemas(None, 1) == [BUILT_IN[0]]
    for text, message in (
        ('{"name": "a"}\n', "line 1"),
        ("{\n", "cannot read"),
        ("", "no schemas"),
    ):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(text)
        with pytest.raises(InputError, match=message):
            read_schemas(bad)
    with pytest.raises(InputError, match="cannot read"):
        read_schemas(tmp_path / "absent.jsonl")
