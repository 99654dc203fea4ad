"""Keys and values stored in another type than the model's."""

from __future__ import annotations

import math

import pytest
import torch

from smcprog import SettingError, Target
from smcprog.attention.kv_dtype import KV_DTYPES, resolve_kv_dtype, to_stored
from smcprog.attention.torch_pool import Pool
from smcprog.engine import LM

from ..engine.conftest import make_model, toy_vocabulary

FP8 = ["float8_e4m3fn", "float8_e5m2"]
# Largest relative difference of two neighbouring numbers, by type.
STEPS = {"float8_e4m3fn": 1 / 8, "float8_e5m2": 1 / 4, "bfloat16": 1 / 128, "float16": 1 / 1024}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def lm_of(kv_dtype, arch="llama", dtype=torch.float32, **settings):
    model = make_model(arch).to(dtype)
    return LM.from_model(model, toy_vocabulary(), kv_dtype=kv_dtype, kv_pages=200, **settings)


@pytest.mark.parametrize("name", KV_DTYPES)
def test_names(name):
    assert resolve_kv_dtype(name) == resolve_kv_dtype(getattr(torch, name)) == getattr(torch, name)
    assert resolve_kv_dtype(None) is None


@pytest.mark.parametrize("name", ["float8", "int8", torch.int8, torch.float64, 8, ""])
def test_no_such_type(name):
    with pytest.raises(SettingError, match="kv_dtype must be one of 'float8_e4m3fn'"):
        resolve_kv_dtype(name)


@pytest.mark.parametrize("name", KV_DTYPES)
def test_what_is_out_of_range_becomes_the_largest_number(name):
    dtype = getattr(torch, name)
    x = torch.tensor([3e38, -3e38, 500.0, 1.0, -0.3, 0.0])
    stored = to_stored(x, dtype).float()
    assert stored.isfinite().all()
    largest = torch.finfo(dtype).max
    if largest < 3e38:
        assert stored[:2].tolist() == [largest, -largest]
    step = STEPS.get(name, 0)
    torch.testing.assert_close(stored[3:], x[3:], rtol=step / 2, atol=0)
    assert to_stored(torch.tensor([math.nan]), dtype).float().isnan().all()


@pytest.mark.parametrize("name", [*FP8, "float16"])
def test_pages_hold_the_largest_number_too(name):
    dtype = getattr(torch, name)
    x_M_H_T_D = torch.tensor([[[[1e30, -1e30, 1.0, 0.0]]]])
    pool = Pool.empty(1, 2, 4, x_M_H_T_D, dtype)
    pool.store(torch.tensor([5]), x_M_H_T_D)
    largest = torch.finfo(dtype).max
    assert pool.run(1, 1)[0, 1].tolist() == [largest, -largest, 1.0, 0.0]
    assert torch.equal(pool.take(torch.tensor([1])).view(4, 4)[1], pool.run(1, 1)[0, 1])
    assert torch.equal(pool.gather(torch.tensor([[1]]))[0, 0, 1], pool.run(1, 1)[0, 1])


@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2"])
def test_float32_pages_of_a_float32_model_change_nothing(arch):
    block = torch.arange(24).view(3, 8)
    own, given = (lm_of(kind, arch).sequences([1, 2, 3], 3) for kind in (None, "float32"))
    assert torch.equal(own.score(block), given.score(block))


def rounded(model, dtype):
    """The model, with keys and values rounded as pages round them: what the engine must give."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(module, query, key, value, *arguments, **options):
        key, value = (to_stored(x, dtype).to(x.dtype) for x in (key, value))
        return sdpa_attention_forward(module, query, key, value, *arguments, **options)

    AttentionInterface.register("rounded_keys_and_values", attend)
    model.set_attn_implementation("rounded_keys_and_values")
    return model


@pytest.mark.parametrize("kind", [*FP8, "float16", "bfloat16"])
@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_equals_a_model_whose_keys_and_values_are_rounded(kind, arch):
    """Through prompts, forks, copied tail pages, reused pages and shared prefixes."""
    lm = lm_of(kind, arch, page_size=4)
    lm.engine.attention.min_saved = 1  # read shared prefixes once
    with lm.sequences([9] * 30, 2) as used:  # leaves its pages behind
        used.score(torch.full((2, 9), 7))
    lm.engine.prefixes.clear()
    prompt = [1, 2, 3, 4, 5, 6]
    rows = lm.sequences(prompt, 2)
    first = torch.tensor([[10, 11], [12, 13]])
    logits = [rows.score(first)]
    forked = rows.fork([1, 1, 0])
    rows.close()
    second = torch.tensor([[20, 21, 22], [23, 24, 25], [26, 27, 28]])
    logits.append(forked.score(second))
    last = forked.next_logits()
    lm.check_pages()

    model = rounded(make_model(arch), getattr(torch, kind))
    histories = [prompt + first[a].tolist() + second[i].tolist() for i, a in enumerate([1, 1, 0])]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(histories), use_cache=False).logits
    got = torch.cat([logits[1], last[:, None]], dim=1)
    error = (got - expected[:, 7:]).abs() / expected.std()
    # The last bit of a float32 may round a key to the neighbour, elsewhere than here.
    assert (error > 1e-4).float().mean() < 0.1
    with torch.no_grad():
        plain = make_model(arch)(input_ids=torch.tensor(histories), use_cache=False).logits
    assert ((expected - plain).abs() / expected.std()).max() > 10 * error.mean()


@pytest.mark.parametrize("kind", FP8)
def test_half_precision_models_and_sampling(kind):
    lm = lm_of(kind, dtype=torch.bfloat16)
    plain = lm_of(None, dtype=torch.bfloat16)
    assert lm.engine.pool_size.bytes_per_page * 2 == plain.engine.pool_size.bytes_per_page
    post = Target(lm).sample([1, 2, 3], particles=4, max_tokens=12, seed=0)
    assert post.particles
    assert lm.engine.attention.bytes_per_page == lm.engine.pool_size.bytes_per_page
    assert math.isfinite(post.log_evidence)


def test_bytes_of_a_page():
    sizes = {kind: lm_of(kind).engine.pool_size.bytes_per_page for kind in (None, *KV_DTYPES)}
    assert sizes[None] == sizes["float32"] == 2 * sizes["float16"] == 4 * sizes["float8_e5m2"]


def test_long_prompts_go_through_the_fused_kernel():
    lm, plain = lm_of("float8_e4m3fn"), lm_of(None)
    prompt = [(7 * i) % 49 for i in range(100)]
    got, expected = (m.sequences(prompt, 1).next_logits() for m in (lm, plain))
    assert not torch.equal(got, expected)
    assert (got - expected).norm() < 0.5 * expected.norm()


@pytest.mark.parametrize("kind", [None, *FP8])
def test_move_pages(kind):
    lm = lm_of(kind, page_size=4)
    rows = lm.sequences([1, 2, 3, 4], 1)
    attention = lm.engine.attention
    page = int(rows.live_pages()[0])
    free = page + 5
    with torch.inference_mode():
        attention.move_pages(torch.tensor([page, 0]), torch.tensor([free, 0]))
    for pool in attention._whole:
        assert torch.equal(pool.data[:, page], pool.data[:, free])
        assert pool.data[:, page].any()
